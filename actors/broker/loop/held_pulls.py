"""Long polling: pulls that found nothing wait here, at the price of one small object each.

No task, no thread and no loop over the waiting: an arrival looks only at the pulls of its own queue, and a
heap knows when the next deadlines come. Nothing here knows sockets; who holds a pull says what resumes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable
from typing import TypeVar

from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.clock import NS_PER_MS
from store.reading.message_filter import MessageFilter

DEADLINE_SPAN_NS = 1 << 23
"""8 ms: so much later than asked a pull may be answered."""
_LONG_SPAN_NS = 1 << 25
_LONG_WAIT_MS = 5_000
_LATE_MS = 5_000
"""RocketMQ looks at those that wait every 5 s: by so much more than they ask it lets them wait, and clients
allow for it (theirs give up after 30 s).
"""

Key = TypeVar("Key", bound=Hashable)


def deadline_of(now_ns: int, wait_ms: int) -> int:
    """When a pull that waits so long from now on is to be answered.

    Those of the usual 15 s wait up to 34 ms longer, and end together: each end of a wait wakes a client, who
    comes back, and with thousands of them that is more work than the answers.
    """
    deadline_ns = now_ns + wait_ms * NS_PER_MS
    return deadline_ns | (_LONG_SPAN_NS - 1) if wait_ms >= _LONG_WAIT_MS else deadline_ns


def wait_ms_of(asked_ms: int, most_ms: int) -> int:
    """How long a pull of RocketMQ's clients waits: as long as it may there, so fewer come back a second."""
    return min(asked_ms + _LATE_MS if asked_ms >= _LONG_WAIT_MS else asked_ms, most_ms)


def shutting_down() -> Refused:
    """For whom nobody would answer later. As an error: who is told that there is nothing comes again at once,
    over a connection that closes.
    """
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is shutting down")


class HeldPull:
    """A pull that may wait: resumed by the first arrival at or past `offset` that its tags want, or at its
    deadline.
    """

    __slots__ = ("deadline_ns", "offset", "on_resume", "owner", "queue_id", "topic", "wanted")

    topic: str
    queue_id: int
    offset: int
    wanted: MessageFilter
    # What whoever holds it says before:
    deadline_ns: int
    owner: Hashable
    on_resume: Callable[[HeldPull], None]

    def wants(self, tags_codes: Collection[int] | None) -> bool:
        """Say whether messages of these tag hashes may concern the pull (None: of any tags)."""
        return (
            self.wanted.prefilter(None) if tags_codes is None else any(map(self.wanted.prefilter, tags_codes))
        )

    def resume(self) -> None:
        """It waits no more: answer it."""
        self.on_resume(self)

    def end(self) -> None:
        """The broker goes."""
        self.resume()


class HeldPulls:
    """All pulls that wait on one broker, bounded by `pulls_max`.

    Nothing goes through all pulls of a queue or a connection to find one of them: there may be thousands.
    Deadlines are kept by spans of time; a pull's has come when its span is over.
    """

    def __init__(self, pulls_max: int) -> None:
        self._pulls_max = pulls_max
        # Dictionaries serve as sets that keep their order.
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_owner: dict[Hashable, dict[HeldPull, None]] = {}
        self._by_span: dict[int, dict[HeldPull, None]] = {}
        self._spans: list[int] = []
        self._held = 0
        self._has_ended = False
        self._on_sooner: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return self._held

    @property
    def queues(self) -> Collection[tuple[str, int]]:
        """The queues that pulls wait for, (topic, queue id), as they are at any time."""
        return self._by_queue

    @property
    def next_deadline_ns(self) -> int | None:
        """The monotonic time at which `expired` has something to do next, if ever."""
        spans = self._spans
        while spans and spans[0] not in self._by_span:
            heapq.heappop(spans)
        return (spans[0] + 1) * DEADLINE_SPAN_NS if spans else None

    def on_sooner(self, callback: Callable[[], None]) -> None:
        """Call this when `next_deadline_ns` has become sooner than it was."""
        self._on_sooner = callback

    def hold(self, pull: HeldPull) -> None:
        """Keep `pull` waiting. Raises `Refused` when the broker already holds as many as it may, or goes."""
        if self._has_ended:
            raise shutting_down()
        if self._held >= self._pulls_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{self._held} pulls are held, max_held_pulls is {self._pulls_max}: raise it, or poll less",
            )
        self._held += 1
        self._by_queue.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_owner.setdefault(pull.owner, {})[pull] = None
        span = pull.deadline_ns // DEADLINE_SPAN_NS
        in_span = self._by_span.get(span)
        if in_span is None:
            in_span = self._by_span[span] = {}
            heapq.heappush(self._spans, span)
        in_span[pull] = None
        if len(in_span) == 1 and self._spans[0] == span:
            self._on_sooner()

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Collection[int] | None
    ) -> list[HeldPull]:
        """Release and return the pulls that messages of a queue up to `max_offset` (exclusive) satisfy."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return []
        woken = [pull for pull in waiting if pull.offset < max_offset and pull.wants(tags_codes)]
        return self._release_all(woken)

    def expired(self, now_ns: int) -> list[HeldPull]:
        """Release and return the pulls whose deadline has come."""
        woken: list[HeldPull] = []
        while (deadline_ns := self.next_deadline_ns) is not None and deadline_ns <= now_ns:
            woken += self._by_span.pop(self._spans[0])
        return self._release_from_all_but_spans(woken)

    def of_topic(self, topic: str) -> list[HeldPull]:
        """Release and return all pulls of a topic, as when it is deleted."""
        woken = [pull for key, pulls in self._by_queue.items() if key[0] == topic for pull in pulls]
        return self._release_all(woken)

    def of_owner(self, owner: Hashable, is_wanted: Callable[[HeldPull], bool]) -> list[HeldPull]:
        """Release and return those pulls of a connection that are wanted."""
        return self._release_all([pull for pull in self._by_owner.get(owner, ()) if is_wanted(pull)])

    def forget(self, owner: Hashable) -> None:
        """Drop the pulls of a connection that is gone; nobody is left to answer."""
        self._release_all(list(self._by_owner.get(owner, ())))

    def end_all(self) -> None:
        """Release all and tell each that the broker goes; it is told to those that come later, too."""
        self._has_ended = True
        for pull in self._release_all([pull for pulls in self._by_queue.values() for pull in pulls]):
            pull.end()

    def _release_all(self, pulls: list[HeldPull]) -> list[HeldPull]:
        for pull in pulls:
            _remove(self._by_span, pull.deadline_ns // DEADLINE_SPAN_NS, pull)
        return self._release_from_all_but_spans(pulls)

    def _release_from_all_but_spans(self, pulls: list[HeldPull]) -> list[HeldPull]:
        self._held -= len(pulls)
        for pull in pulls:
            _remove(self._by_queue, (pull.topic, pull.queue_id), pull)
            _remove(self._by_owner, pull.owner, pull)
        return pulls


def _nothing() -> None:
    """Nobody has asked to be told."""


def _remove(pulls_by: dict[Key, dict[HeldPull, None]], key: Key, pull: HeldPull) -> None:
    pulls = pulls_by[key]
    del pulls[pull]
    if not pulls:
        del pulls_by[key]
