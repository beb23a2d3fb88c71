"""Scheduler: the order in which one event loop serves its connections, and the time for each.

One turn of the loop, from left to right:

    sockets          end of turn
    read ──► tick ──► flush ──► costly ──► flush ──► waiting cheap
     │                            ▲                    ▲
     │ costly requests            │                    │
     ├────────────────────────────┘                    │
     │ cheap requests, if the turn's time is used up   │
     └─────────────────────────────────────────────────┘

Cheap requests (sends, heartbeats) are handled as soon as they are read. Costly requests (pulls, queries) wait
in a separate queue, so a send waits for about one turn however many pulls are waiting. A queue entry is a
callable without arguments that does one piece of work and adds itself again if it has more. This makes both
queues round-robin:

- cheap: connections that still have bytes to decode. `new` connections received bytes after the turn's time
  was used up and were not served in this turn; they run before `old` connections, which were served and have
  more (fq_codel schedules flows in the same way).
- costly: one piece per connection, and resumed requests (held pulls).

A turn has a time budget, `turn_budget_us`. Each queue may use the rest of the budget, but at least
`turn_share_us`, so that neither starves. The time of the tick does not count. If a cheap request was handled
within the last millisecond, costly work gets only as much time as the cheap requests took; otherwise a peer
that sends one message after another would wait for milliseconds. Responses have a budget too: after
`turn_output_bytes` they are written before more are produced. Timers, new connections and writes run between
two turns.

The cheap requests of one connection keep their order, and so do its costly requests. A send may overtake a
pull, as in RocketMQ, which uses a thread pool for each.
"""

from collections import deque
from collections.abc import Callable

from actors.transport.limits import RemotingLimits
from store.common.clock import Clock

_NS_PER_US = 1_000
# A peer that sends one request after another sends the next one within this time.
_EXPECTED_NS = 1_000_000
_COSTLY_MIN_NS = 50_000

Work = Callable[[], object]


class Scheduler:
    """The work queues and budgets that all connections of one event loop share."""

    def __init__(self, clock: Clock, limits: RemotingLimits) -> None:
        self.is_over = False
        self.collected_bytes = 0
        """Bytes of the responses that were collected in this turn, and are not written yet."""
        self.now_ns = clock.monotonic_ns
        self._budget_ns = limits.turn_budget_us * _NS_PER_US
        self._share_ns = limits.turn_share_us * _NS_PER_US
        self._output_bytes = limits.turn_output_bytes
        self._new: deque[Work] = deque()
        self._old: deque[Work] = deque()
        self._costly: deque[Work] = deque()
        self._read_ns = 0
        self._cheap_ns = 0  # time of the cheap requests in this turn
        self._expected_until_ns = 0
        self._ends_ns = 0

    def begin(self) -> None:
        """Start a turn with the full time budget."""
        self.is_over = False
        self._ends_ns = self.now_ns() + self._budget_ns

    def end_reading(self) -> None:
        """Stop counting time until `serve_costly`, because all sockets are read and the tick runs now."""
        self._read_ns = self.now_ns()

    def end(self) -> None:
        """End the turn; bytes received from now on belong to the next one."""
        self.is_over = False
        if self._cheap_ns:
            self._cheap_ns = 0
            self._expected_until_ns = self.now_ns() + _EXPECTED_NS

    def took_cheap(self, began_ns: int) -> None:
        """Add the time since `began_ns` to the time of cheap requests in this turn."""
        self._cheap_ns += max(1, self.now_ns() - began_ns)

    def is_spent(self) -> bool:
        """Return True if the time or output budget of the turn is used up; `is_over` caches the result."""
        if not self.is_over:
            self.is_over = self.collected_bytes > self._output_bytes or self.now_ns() >= self._ends_ns
        return self.is_over

    def collect(self, size_bytes: int) -> None:
        """Add the bytes of a collected response to the output of this turn."""
        self.collected_bytes += size_bytes

    @property
    def has_more(self) -> bool:
        """Whether work is left for the next turn."""
        return bool(self._costly or self._new or self._old)

    def add_cheap(self, work: Work, *, is_new: bool) -> None:
        """Queue `work`, which continues to read a connection, for after the end of this turn."""
        (self._new if is_new else self._old).append(work)

    def add_costly(self, work: Work) -> None:
        """Queue one piece of costly work for the end of this turn."""
        self._costly.append(work)

    def serve_costly(self) -> None:
        """Run costly work round-robin, one piece per entry, until the time is used up."""
        costly = self._costly
        if not costly:
            return
        now_ns = self.now_ns()
        self._ends_ns += now_ns - self._read_ns
        self._extend_to_min_share()
        if self._cheap_ns or now_ns < self._expected_until_ns:
            self._ends_ns = now_ns + min(max(self._cheap_ns, _COSTLY_MIN_NS), self._share_ns)
        while costly and not self.is_spent():
            costly.popleft()()

    def serve_cheap(self) -> None:
        """Begin the next turn and run the waiting cheap work, `new` before `old`."""
        self.begin()
        for waiting in (self._new, self._old):
            if waiting:
                self._extend_to_min_share()
            for _ in range(len(waiting)):
                if self.is_spent():
                    break
                waiting.popleft()()

    def _extend_to_min_share(self) -> None:
        self._ends_ns = max(self._ends_ns, self.now_ns() + self._share_ns)
        self.is_over = False
