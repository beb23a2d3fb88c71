"""Turn: in which order the connections of one loop are served, and how much of its time one turn takes.

    read      what has come: cheap requests are done at once, costly ones stand in line
    costly    of each connection in line one, and round again
    tick      the service's own end of a turn
    write     each connection that has something, once
    read on   those whose bytes came when the turn was over, then those who had had their share

So a send waits for about one turn, however many pulls stand in line and however much others send. Who sends
one message after the other is soon back: while such are about, the costly get no more of a turn than the
cheap took, so that pulls are done while he is away. No kind starves: the costly, the late and those that read
on each have a share, whatever the others took. Requests of one connection keep their order among the cheap,
and among the costly; a send may overtake a pull, as with RocketMQ, which has threads for each. Timers, new
connections and writes have their moment between two turns.
"""

from collections import deque
from typing import Protocol

from actors.remoting.limits import RemotingLimits
from store.clock import Clock

_NS_PER_US = 1_000
# Whoever has had a cheap request answered is expected back for so long.
_EXPECTED_NS = 1_000_000
# What the costly have of a turn in which others are expected: less costs more turns than it saves waiting.
_SHARE_MIN_NS = 50_000
# Of one that came late, before another that came late: there may be many, each with much.
LATE_REQUESTS = 16


class Served(Protocol):
    """The face of a connection that a turn knows."""

    is_queued: bool
    """It is to be read on."""
    is_in_line: bool

    @property
    def has_answered_enough(self) -> bool:
        """Whether what has collected is to be written before more is produced."""

    def go_on(self, requests_max: int) -> None:
        """Read on, and take so many requests."""

    def serve_costly(self) -> bool:
        """Do the first of its costly requests; whether it stays in line for the next."""


class Turn:
    """What all connections of one loop share."""

    def __init__(self, clock: Clock, limits: RemotingLimits) -> None:
        self.is_over = False
        """Its time is used up, or its bytes, as far as is known."""
        self.collected_bytes = 0
        """Answers of this turn that are not written yet."""
        self.line: deque[Served] = deque()
        """Those with costly requests."""
        self.late: deque[Served] = deque()
        """Those whose bytes came when the turn was over."""
        self.held: deque[Served] = deque()
        """Those who had their share and have more."""
        self.has_cheap = False
        """Whether a cheap request has been done in this turn; connections say so."""
        self._clock = clock
        self._budget_ns = limits.turn_budget_us * _NS_PER_US
        self._share_ns = limits.turn_share_us * _NS_PER_US
        self._output_bytes = limits.turn_output_bytes
        self._requests_max = limits.input_budget_requests
        self._began_ns = 0
        self._ends_ns = 0
        self._expected_until_ns = 0

    def begin(self) -> None:
        """From now on there is the whole budget."""
        self.is_over = False
        now_ns = self._clock.monotonic_ns()
        if self.has_cheap:
            self.has_cheap = False
            self._expected_until_ns = now_ns + _EXPECTED_NS
        self._began_ns = now_ns
        self._ends_ns = now_ns + self._budget_ns

    def is_spent(self) -> bool:
        """Whether what is left to do for peers waits for the next turn."""
        if not self.is_over:
            self.is_over = (
                self.collected_bytes > self._output_bytes or self._clock.monotonic_ns() >= self._ends_ns
            )
        return self.is_over

    def hold(self, connection: Served, *, is_late: bool = False) -> None:
        """Read this connection on in the next turn: among the first, where it has had nothing of this one."""
        if not connection.is_queued:
            connection.is_queued = True
            (self.late if is_late else self.held).append(connection)

    def line_up(self, connection: Served) -> None:
        """This connection has costly requests."""
        if not connection.is_in_line:
            connection.is_in_line = True
            self.line.append(connection)

    def serve_costly(self) -> None:
        """Go round those in line. Who has more to do, or has to be written first, stands at the end."""
        line = self.line
        self._give_costly_share()
        to_be_written: list[Served] = []
        try:
            while line and not self.is_spent():
                connection = line.popleft()
                if connection.has_answered_enough:
                    to_be_written.append(connection)
                    continue
                connection.is_in_line = False
                if connection.serve_costly():
                    self.line_up(connection)
        finally:
            line.extend(to_be_written)

    def read_on(self) -> None:
        """Begin with those who wait to be read on."""
        self.begin()  # what the tick and the writes have taken is not theirs
        for waiting, requests_max in ((self.late, LATE_REQUESTS), (self.held, self._requests_max)):
            if waiting:
                self._give_share()
            for _ in range(len(waiting)):
                if self.is_spent():
                    break
                connection = waiting.popleft()
                connection.is_queued = False
                connection.go_on(requests_max)

    def _give_costly_share(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if not self.has_cheap and now_ns >= self._expected_until_ns:
            self._give_share()
            return
        taken_ns = now_ns - self._began_ns
        self._ends_ns = now_ns + min(max(taken_ns, _SHARE_MIN_NS), self._share_ns)
        self.is_over = False

    def _give_share(self) -> None:
        ends_ns = self._clock.monotonic_ns() + self._share_ns
        if ends_ns > self._ends_ns:
            self._ends_ns = ends_ns
            self.is_over = False
