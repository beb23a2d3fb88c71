"""Turn: in which order the connections of one loop are served, and how much of its time one turn takes.

    read      what has come: cheap requests are done at once, costly ones stand in line
    tick      the service's own end of a turn
    write     each connection that has something, once
    resume    requests that waited for what has come now, or whose time is over
    costly    of each connection in line one, and round again
    write     what these were answered
    read on   those whose bytes came when the turn was over, then those who had had their share

So a send waits for about one turn, however many pulls stand in line and however much others send. Who sends
one message after the other has his answer before the costly are done, and is soon back: while such are about,
the costly get no more of a turn than the cheap took, so that they are done while he is away; costly requests
that come are not even decoded before their turn in line. No kind starves:
the resumed, the costly, the late and those that read on each have a share, whatever the others took. Requests
of one connection keep their order among the cheap, and among the costly; a send may overtake a pull, as with
RocketMQ, which has threads for each. Timers, new connections and writes have their moment between two turns.
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


class Waiting(Protocol):
    """The face of a request that waits."""

    def resume(self) -> None:
        """Go on with it: what it waited for has come, or its time is over."""


class Turn:
    """What all connections of one loop share."""

    def __init__(self, clock: Clock, limits: RemotingLimits) -> None:
        self.is_over = False
        """Its time is used up, or its bytes, as far as is known."""
        self.collected_bytes = 0
        """Answers of this turn that are not written yet."""
        self.resumed: deque[Waiting] = deque()
        """Requests that wait no more."""
        self.line: deque[Served] = deque()
        """Those with costly requests."""
        self.late: deque[Served] = deque()
        """Those whose bytes came when the turn was over."""
        self.held: deque[Served] = deque()
        """Those who had their share and have more."""
        self.now_ns = clock.monotonic_ns
        self._budget_ns = limits.turn_budget_us * _NS_PER_US
        self._share_ns = limits.turn_share_us * _NS_PER_US
        self._output_bytes = limits.turn_output_bytes
        self._requests_max = limits.input_budget_requests
        self._has_cheap = False
        self._cheap_ns = 0
        self._read_ns = 0  # when all that had come was read
        self._ends_ns = 0
        self._expected_until_ns = 0

    def begin(self) -> None:
        """From now on there is the whole budget."""
        self.is_over = False
        self._ends_ns = self.now_ns() + self._budget_ns

    def took_cheap(self, began_ns: int) -> None:
        """Cheap requests have been done since `began_ns`."""
        self._has_cheap = True
        self._cheap_ns += self.now_ns() - began_ns

    def end_reading(self) -> None:
        """All that has come is read; what follows, up to the costly, is not taken from anybody's time."""
        self._read_ns = self.now_ns()

    def end(self) -> None:
        """All have been served, each as far as this turn goes."""
        self.is_over = False
        if self._has_cheap:
            self._has_cheap = False
            self._cheap_ns = 0
            self._expected_until_ns = self.now_ns() + _EXPECTED_NS

    def is_spent(self) -> bool:
        """Whether what is left to do for peers waits for the next turn."""
        if not self.is_over:
            self.is_over = self.collected_bytes > self._output_bytes or self.now_ns() >= self._ends_ns
        return self.is_over

    @property
    def has_more(self) -> bool:
        """Whether somebody waits for the next turn."""
        return bool(self.resumed or self.line or self.late or self.held)

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
        """Go on with the requests that wait no more, then go round those in line."""
        self._ends_ns += self.now_ns() - self._read_ns
        self.is_over = False
        if self.resumed:
            self._give_costly_share()
            self._serve_resumed()
        if self.line:
            self._give_costly_share()
            self._serve_line()

    def _serve_resumed(self) -> None:
        resumed = self.resumed
        while resumed and not self.is_spent():
            resumed.popleft().resume()

    def _serve_line(self) -> None:
        # Who has more to do, or has to be written first, stands at the end.
        line = self.line
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
        """Begin the next turn with those who wait to be read on."""
        self.begin()
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
        now_ns = self.now_ns()
        if not self._has_cheap and now_ns >= self._expected_until_ns:
            self._give_share()
            return
        self._ends_ns = now_ns + min(max(self._cheap_ns, _SHARE_MIN_NS), self._share_ns)
        self.is_over = False

    def _give_share(self) -> None:
        ends_ns = self.now_ns() + self._share_ns
        if ends_ns > self._ends_ns:
            self._ends_ns = ends_ns
            self.is_over = False
