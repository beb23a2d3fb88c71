"""Waiting pops and notifications: requests that found no message and wait for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from actors.broker.core.loop.wait_registry import HeldRequest, Key, WaitRegistry
from actors.broker.core.metadata.topics import Topics
from actors.broker.features.pop.claims import ClaimQueue
from actors.broker.features.pop.retries import requested_topic_of
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.message_store import Arrival
from store.reading.message_filter import MessageFilter


class Serves(Protocol):
    """The object that handles a waiting request again."""

    def resume(self, request: WaitingPop) -> None:
        """Handle the request again."""


class TimedRequest(HeldRequest[Arrival]):
    """A request that may be held until its deadline, however often it is resumed before."""

    __slots__ = ("deadline_ns",)

    def __init__(self, context: RequestContext, key: Key, clock: Clock, wait_ms: int) -> None:
        super().__init__(context, key)
        self.deadline_ns = clock.monotonic_ns() + wait_ms * NS_PER_MS


class WaitingPop(TimedRequest):
    """A pop, peek or notification that may be held. It waits on a topic, or on one of its queues."""

    __slots__ = (
        "attempt_id",
        "group",
        "handler",
        "invisible_ms",
        "is_notification",
        "is_pop",
        "max_messages",
        "message_filter",
        "order",
        "queue_id",
        "starts_at_end",
        "topic",
        "waits",
    )

    def __init__(
        self,
        context: RequestContext,
        handler: Serves,
        waits: WaitingPops,
        topic: str,
        group: str,
        queue_id: int,
        message_filter: MessageFilter,
        *,
        max_messages: int = 1,
        invisible_ms: int = 0,
        wait_ms: int = 0,
        starts_at_end: bool = False,
        order: bool = False,
        attempt_id: str = "",
        is_notification: bool = False,
        is_pop: bool = False,
    ) -> None:
        """Create a request for one queue, or for all read queues if `queue_id` is -1.

        Only a pop claims messages, and commits the first offset of a new group.
        """
        super().__init__(context, topic if queue_id < 0 else (topic, queue_id), waits.clock, wait_ms)
        self.handler = handler
        self.waits = waits
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.message_filter = message_filter
        self.max_messages = max_messages
        self.invisible_ms = invisible_ms
        self.starts_at_end = starts_at_end
        self.order = order
        self.attempt_id = attempt_id
        self.is_notification = is_notification
        self.is_pop = is_pop

    def is_satisfied(self, arrival: Arrival) -> bool:
        """Return True if the arrived messages may include one for this request.

        Of the pops of one group, as many are resumed as messages have arrived.
        """
        wanted = self.message_filter
        if not (wanted.accepts_all or any(map(wanted.prefilter, arrival.tags_codes))):
            return False
        return self.is_notification or self.waits.admits(self.group, arrival)

    def resume(self) -> None:
        """Handle the request again, at an arrival or at its deadline."""
        self.handler.resume(self)


class WaitingPops:
    """The waiting pops of one broker."""

    def __init__(
        self,
        held: WaitRegistry[Arrival],
        topics: Topics,
        clock: Clock,
        resume: Callable[[Sequence[HeldRequest[Arrival]]], None],
    ) -> None:
        """Create the object; `resume` handles held requests again at the end of the turn."""
        self.clock = clock
        self._held = held
        self._topics = topics
        self._resume = resume
        self._arrival: Arrival | None = None
        self._left: dict[str, int] = {}

    def admits(self, group: str, arrival: Arrival) -> bool:
        """Return True as often per group as messages have arrived."""
        if arrival is not self._arrival:
            self._arrival = arrival
            self._left.clear()
        left = self._left.get(group, arrival.message_count)
        self._left[group] = left - 1
        return left > 0

    def hold(self, request: TimedRequest) -> bool:
        """Hold a request until its deadline. Return False if too many requests are held, or it has passed.

        Raises Refused if the broker is stopping.
        """
        wait_ms = -((self.clock.monotonic_ns() - request.deadline_ns) // NS_PER_MS)
        if wait_ms <= 0:
            return False
        try:
            self._held.hold(request, wait_ms)
        except Refused as refusal:
            if refusal.code != ResponseCode.SYSTEM_BUSY:
                raise
            return False
        request.context.release_request()
        request.context.was_held = True
        return True

    def is_over(self, request: TimedRequest) -> bool:
        """Return True if the deadline of a request has passed."""
        return self.clock.monotonic_ns() >= request.deadline_ns

    def has(self, key: Key) -> bool:
        """Return True if a request waits on `key`."""
        return key in self._held.keys

    def wake_first(self, key: Key, kind: type[TimedRequest]) -> None:
        """Resume the oldest request of one kind that waits on `key`."""
        first = self._held.first(key, kind, lambda each: True)
        if first is not None:
            self._resume([first])

    def wake(self, queue: ClaimQueue) -> None:
        """Resume a pop of the queue's group, because a message of this queue is visible again.

        Waiting notifications of the group are resumed too.
        """
        if not self._held:
            return
        topic, group = requested_topic_of(queue), queue.group
        woken: list[HeldRequest[Arrival]] = []
        for key in self._keys(topic):
            first = self._held.first(key, WaitingPop, lambda each: each.group == group)
            while first is not None and first.is_notification:
                woken.append(first)
                first = self._held.first(key, WaitingPop, lambda each: each.group == group)
            if first is not None:
                woken.append(first)
                break
        if woken:
            self._resume(woken)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of waiting pops of a group on a topic (queue id -1) or a queue."""
        key = topic if queue_id < 0 else (topic, queue_id)
        return self._held.count(
            key, WaitingPop, lambda each: each.group == group and not each.is_notification
        )

    def _keys(self, topic: str) -> Iterator[Key]:
        yield topic
        config = self._topics.find(topic)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            yield topic, queue_id
