"""Long polling: pulls that found nothing wait here, at the price of one small object each.

No task, no thread and no loop over the waiting: an arrival looks only at the pulls of its own queue, and a
heap knows whose deadline comes next. Nothing here knows sockets; whoever holds a pull says what resumes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable
from itertools import count

from actors.remoting.codes import ResponseCode
from actors.remoting.errors import Refused

_STALE_ENTRIES_MIN = 1024


class HeldPull:
    """One waiting pull: resumed by the first arrival at or past `offset` that its tags want, or at its
    deadline.
    """

    __slots__ = ("deadline_ns", "is_held", "offset", "owner", "queue_id", "resume", "tags_codes", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        tags_codes: frozenset[int] | None,
        deadline_ns: int,
        owner: Hashable,
        resume: Callable[[HeldPull], None],
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.tags_codes = tags_codes
        self.deadline_ns = deadline_ns
        self.owner = owner
        self.resume = resume
        self.is_held = False

    def wants(self, tags_codes: Collection[int] | None) -> bool:
        """Say whether messages of these tag hashes may concern the pull (None: of any tags)."""
        wanted = self.tags_codes
        return wanted is None or tags_codes is None or not wanted.isdisjoint(tags_codes)


class HeldPulls:
    """All pulls that wait on one broker, bounded by `pulls_max`."""

    def __init__(self, pulls_max: int) -> None:
        self._pulls_max = pulls_max
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._by_owner: dict[Hashable, set[HeldPull]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._sequence = count()
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def next_deadline_ns(self) -> int | None:
        """The monotonic time at which `expired` has something to do next, if ever."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].is_held:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def hold(self, pull: HeldPull) -> None:
        """Keep `pull` waiting. Raises `Refused` (SYSTEM_BUSY) when the broker already holds as many as it
        may.
        """
        if self._held >= self._pulls_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{self._held} pulls are held, max_held_pulls is {self._pulls_max}: raise it, or poll less",
            )
        pull.is_held = True
        self._held += 1
        self._by_queue.setdefault((pull.topic, pull.queue_id), []).append(pull)
        self._by_owner.setdefault(pull.owner, set()).add(pull)
        heapq.heappush(self._deadlines, (pull.deadline_ns, next(self._sequence), pull))

    def arrived(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Collection[int] | None
    ) -> list[HeldPull]:
        """Release and return the pulls that messages of a queue up to `max_offset` (exclusive) satisfy."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return []
        woken = [pull for pull in waiting if pull.offset < max_offset and pull.wants(tags_codes)]
        for pull in woken:
            self._release(pull)
        return woken

    def expired(self, now_ns: int) -> list[HeldPull]:
        """Release and return the pulls whose deadline has come."""
        woken: list[HeldPull] = []
        while (deadline_ns := self.next_deadline_ns) is not None and deadline_ns <= now_ns:
            pull = heapq.heappop(self._deadlines)[2]
            self._release(pull)
            woken.append(pull)
        return woken

    def of_topic(self, topic: str) -> list[HeldPull]:
        """Release and return all pulls of a topic, as when it is deleted."""
        woken = [pull for key, pulls in self._by_queue.items() if key[0] == topic for pull in pulls]
        for pull in woken:
            self._release(pull)
        return woken

    def forget(self, owner: Hashable) -> None:
        """Drop the pulls of a connection that is gone; nobody is left to answer."""
        for pull in tuple(self._by_owner.get(owner, ())):
            self._release(pull)

    def _release(self, pull: HeldPull) -> None:
        pull.is_held = False
        self._held -= 1
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue[key]
        waiting.remove(pull)
        if not waiting:
            del self._by_queue[key]
        owned = self._by_owner[pull.owner]
        owned.discard(pull)
        if not owned:
            del self._by_owner[pull.owner]
        # An answered pull stays in the heap until its deadline; when most of the heap is such, it is built
        # anew.
        if len(self._deadlines) > 2 * self._held + _STALE_ENTRIES_MIN:
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_held]
            heapq.heapify(self._deadlines)
