"""Turn: decides in which order one event loop serves its connections, and for how long.

One turn of the loop, from left to right:

    sockets          end of turn
    read ──► tick ──► flush ──► costly ──► flush ──► cheap that waited
     │                            ▲                    ▲
     │ costly requests            │                    │
     ├────────────────────────────┘                    │
     │ cheap requests, if the turn's time is used up   │
     └─────────────────────────────────────────────────┘

Cheap requests (sends, heartbeats) run as soon as they are read. Costly requests (pulls, queries) wait in a
queue of their own, so a send waits for about one turn however many pulls are waiting. Work is a callable
without arguments; it does one piece and adds itself again if it has more, which makes both queues
round-robin:

- cheap: connections to read on. `new` are connections that received bytes when the turn's time was used up
  and were not served; they go before `old`, those that had their share and have more (as fq_codel does with
  flows).
- costly: one piece per connection, and resumed requests (held pulls).

A turn has one time budget, `turn_budget_us`. Each queue may use what is left of it, but at least
`turn_share_us`, so that neither starves. The time of the tick is not counted. While a cheap request was
handled within the last millisecond, costly work has only as much of a turn as the cheap took: a peer that
sends one message after another would wait for milliseconds otherwise. Responses have a budget too,
`turn_output_bytes`: they are written before more are produced. Timers, new connections and writes run between
two turns.

Requests of one connection keep their order among the cheap and among the costly; a send may overtake a pull,
as in RocketMQ, which has a thread pool for each.
"""

from collections import deque
from collections.abc import Callable

from actors.remoting.limits import RemotingLimits
from store.clock import Clock

_NS_PER_US = 1_000
# A peer that sends one request after another sends the next one within this time.
_EXPECTED_NS = 1_000_000
_COSTLY_MIN_NS = 50_000

Work = Callable[[], object]


class Turn:
    """The queues and the budget that all connections of one loop share."""

    def __init__(self, clock: Clock, limits: RemotingLimits) -> None:
        self.is_over = False
        self.collected_bytes = 0
        self.now_ns = clock.monotonic_ns
        self._budget_ns = limits.turn_budget_us * _NS_PER_US
        self._share_ns = limits.turn_share_us * _NS_PER_US
        self._output_bytes = limits.turn_output_bytes
        self._new: deque[Work] = deque()
        self._old: deque[Work] = deque()
        self._costly: deque[Work] = deque()
        self._read_ns = 0
        self._cheap_ns = 0  # taken by cheap requests of this turn
        self._expected_until_ns = 0
        self._ends_ns = 0

    def begin(self) -> None:
        """Start a turn with the whole budget."""
        self.is_over = False
        self._ends_ns = self.now_ns() + self._budget_ns

    def end_reading(self) -> None:
        """Stop counting time until `serve_costly`: all sockets are read."""
        self._read_ns = self.now_ns()

    def end(self) -> None:
        """End the turn: bytes that are received now belong to the next one."""
        self.is_over = False
        if self._cheap_ns:
            self._cheap_ns = 0
            self._expected_until_ns = self.now_ns() + _EXPECTED_NS

    def took_cheap(self, began_ns: int) -> None:
        """Count the time of cheap requests that have been handled since `began_ns`."""
        self._cheap_ns += max(1, self.now_ns() - began_ns)

    def is_spent(self) -> bool:
        """Return True if the rest of the work waits for the next turn; `is_over` keeps the result."""
        if not self.is_over:
            self.is_over = self.collected_bytes > self._output_bytes or self.now_ns() >= self._ends_ns
        return self.is_over

    def collect(self, size_bytes: int) -> None:
        """Count the bytes of a response that is not written yet."""
        self.collected_bytes += size_bytes

    def written(self) -> None:
        """Note that all collected responses are written."""
        self.collected_bytes = 0

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next turn."""
        return bool(self._costly or self._new or self._old)

    def add_cheap(self, work: Work, *, is_new: bool) -> None:
        """Queue a connection to be read on after the end of this turn."""
        (self._new if is_new else self._old).append(work)

    def add_costly(self, work: Work) -> None:
        """Queue one piece of costly work for the end of this turn."""
        self._costly.append(work)

    def serve_costly(self) -> None:
        """Do costly work, one piece each, round and round, until the time is used up."""
        costly = self._costly
        if not costly:
            return
        now_ns = self.now_ns()
        self._ends_ns += now_ns - self._read_ns
        self._give_share()
        if self._cheap_ns or now_ns < self._expected_until_ns:
            self._ends_ns = now_ns + min(max(self._cheap_ns, _COSTLY_MIN_NS), self._share_ns)
        while costly and not self.is_spent():
            costly.popleft()()

    def serve_cheap(self) -> None:
        """Begin the next turn with the connections that wait to be read on."""
        self.begin()
        for waiting in (self._new, self._old):
            if waiting:
                self._give_share()
            for _ in range(len(waiting)):
                if self.is_spent():
                    break
                waiting.popleft()()

    def _give_share(self) -> None:
        self._ends_ns = max(self._ends_ns, self.now_ns() + self._share_ns)
        self.is_over = False
