"""StickyKeys: keeps the keys of a producer on their queues until these are consumed.

Without it, a sharding key is sent to another queue as soon as the number of queues changes. Consumers may
then read the key's new messages before those in its former queue. With `ProducerConfig.sticky_key_groups`:

    route has the same queue for the key      send to it
    another queue, former one consumed        move the key: send to the other queue
    another queue, former one still writable  stay on the former queue; once the groups have nearly caught
                                              up, hold the send for up to HOLD_ATTEMPTS attempts instead,
                                              because a key that is sent to all the time would never move
    another queue, former one not writable    hold the send: retry until it is consumed, or the deadline

Keys are hashed to SLOTS slots, which move as a whole, so the state is bounded. A slot's former queue is
consumed if no other send of the slot is in flight, and each group has committed an offset after the slot's
last message. A broker that left the routes after it had become read-only was drained, so its queues are
consumed too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cluster.client.errors import ClientError, QueueNotConsumed
from cluster.client.group.offset_client import OffsetClient
from cluster.client.hooks import SendContext
from cluster.client.producer.arguments import keyed_queues
from cluster.client.results import SendResult
from cluster.client.selectors import queue_index
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import QueueShare, TopicRoute
from store.message.message_queue import MessageQueue

SLOTS = 4096
POLL_MS = 200
"""Interval at which the progress of groups in former queues is requested, in milliseconds."""

NEAR_MESSAGES = 1_000
"""A group has nearly caught up if this many messages or fewer of the former queue are not consumed."""

HOLD_ATTEMPTS = 6
"""Attempts for which a send to a writable queue is held; with the back-off of retries about two seconds."""

_NOTE = "sticky_key"


class KeyProgress(NamedTuple):
    """The lowest offset that one of the groups will read next in a queue, and the end of the queue."""

    consumed: int
    end: int


class ProgressSource(Protocol):
    """Requests the progress of the groups."""

    async def progress(self, queue: MessageQueue) -> KeyProgress:
        """Return the progress of the groups in `queue`. Raises ClientError."""


class CommittedProgress:
    """ProgressSource that requests the committed offsets of the groups from the brokers."""

    def __init__(self, instance: ClientInstance, groups: Sequence[str]) -> None:
        self._clients = [OffsetClient(instance, group) for group in groups]

    async def progress(self, queue: MessageQueue) -> KeyProgress:
        """Return the progress of the groups in `queue`; a group without a commit has consumed nothing."""
        consumed = min([await client.committed(queue) or 0 for client in self._clients])
        # requested last: if it equals `consumed`, nothing was unread at that time
        return KeyProgress(consumed, await self._clients[0].end(queue))


@dataclass(slots=True, eq=False)
class _Slot:
    """State of the keys of one slot in one topic.

    Attributes:
        queue: The queue to which its messages are sent.
        in_flight: Number of sends that have chosen a queue and are not finished.
        last_offset: Highest offset of its messages in `queue`; -1 without a message.
        is_uncertain: True if a message may be stored in `queue` at an unknown offset.
        stalled_at: Progress of the groups when a send was held without success; no other one is held before
            they have consumed more.
    """

    queue: MessageQueue
    in_flight: int = 0
    last_offset: int = -1
    is_uncertain: bool = False
    stalled_at: int = -1


class StickyKeys:
    """The queues of the keys of one producer. `choice` and the choices may be used in any thread."""

    def __init__(self, groups: Sequence[str], source: ProgressSource) -> None:
        self._groups = ", ".join(groups)
        self._source = source
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._awaited: set[MessageQueue] = set()
        self._progress: dict[MessageQueue, KeyProgress] = {}

    def choice(self, key: str, messages: int, context: SendContext | None) -> StickyChoice:
        """Return the function that chooses the queue of one send.

        Args:
            key: The sharding key.
            messages: Number of messages of the send.
            context: Context of the send; `StickyKeysHook` finishes the choice by it.
        """
        choice = StickyChoice(self, queue_index(key, SLOTS), messages)
        if context is not None:
            context.notes[_NOTE] = choice
        return choice

    async def poll(self) -> None:
        """Request the progress in the queues that slots want to leave. Unreachable brokers are skipped."""
        with self._lock:
            awaited = list(self._awaited)
        for queue in awaited:
            try:
                found = await self._source.progress(queue)
            except ClientError:
                continue  # requested again at the next poll
            with self._lock:
                self._progress[queue] = found

    # ---- called by StickyChoice ----------------------------------------------------------------------------

    def choose(self, choice: StickyChoice, route: TopicRoute) -> MessageQueue:
        """Return the queue of a send. Raises QueueNotConsumed while its former queue is not consumed."""
        queues = keyed_queues(route)
        wanted = queues[choice.slot % len(queues)]
        with self._lock:
            slot = self._slots.get((route.topic, choice.slot))
            if slot is None:
                slot = self._slots[route.topic, choice.slot] = _Slot(wanted)
            if slot.queue != wanted:
                self._move_or_stay(slot, choice, route, wanted)
            if not choice.has_chosen:
                choice.has_chosen, choice.topic = True, route.topic
                slot.in_flight += 1
            return slot.queue

    def _move_or_stay(
        self, slot: _Slot, choice: StickyChoice, route: TopicRoute, wanted: MessageQueue
    ) -> None:
        # An earlier attempt of this send may be stored in the former queue, at an unknown offset.
        slot.is_uncertain |= choice.has_chosen
        share = _share_of(route, slot.queue)
        is_drained = share is None or (share.left_at_ms is not None and not share.is_writable)
        is_consumed = is_drained or (slot.last_offset < 0 and not slot.is_uncertain)
        if not is_consumed:
            if choice.has_chosen and not choice.has_waited:
                self._progress.pop(slot.queue, None)  # it may be older than the earlier attempt
            choice.has_waited = True
            self._awaited.add(slot.queue)
            is_consumed = self._is_consumed(slot)
        others = slot.in_flight - choice.has_chosen
        if is_consumed and not others:
            slot.queue, slot.last_offset, slot.is_uncertain, slot.stalled_at = wanted, -1, False, -1
            self._forget_unused()
        elif share is None or not share.is_writable or slot.queue.queue_id >= share.write_queues:
            raise QueueNotConsumed(
                f"{slot.queue} is no longer writable, and group {self._groups} has not consumed the "
                "messages of the key there: start its consumers, or remove it from sticky_key_groups"
            )
        elif not choice.has_chosen and self._is_worth_a_wait(slot, choice):
            choice.holds += 1
            raise QueueNotConsumed(f"the key moves from {slot.queue} once its messages there are consumed")

    def _is_worth_a_wait(self, slot: _Slot, choice: StickyChoice) -> bool:
        """Return True if the slot will probably be free to move soon, if no more messages are sent to it."""
        progress = self._progress.get(slot.queue)
        if progress is None or progress.consumed <= slot.stalled_at:
            return False
        if choice.holds >= HOLD_ATTEMPTS:
            slot.stalled_at = progress.consumed
            return False
        return max(slot.last_offset + 1, progress.end) - progress.consumed <= NEAR_MESSAGES

    def _is_consumed(self, slot: _Slot) -> bool:
        progress = self._progress.get(slot.queue)
        if progress is None:
            return False
        end = progress.end if slot.is_uncertain else 0
        return progress.consumed >= max(slot.last_offset + 1, end)

    def _forget_unused(self) -> None:
        """Stop to request the progress in queues that no slot uses."""
        used = {slot.queue for slot in self._slots.values()}
        self._awaited &= used
        for queue in self._progress.keys() - used:
            del self._progress[queue]

    def finish(self, choice: StickyChoice, result: SendResult | None) -> None:
        """Record the outcome of a send; without a result its message may be stored."""
        with self._lock:
            if not choice.has_chosen:
                return
            slot = self._slots[choice.topic, choice.slot]
            choice.has_chosen = False
            slot.in_flight -= 1
            if result is None:
                slot.is_uncertain = True
                self._progress.pop(slot.queue, None)
            else:
                slot.last_offset = max(slot.last_offset, result.queue_offset + choice.messages - 1)


@dataclass(slots=True, eq=False)
class StickyChoice:
    """Chooses the queue of one send with a sharding key, for each of its attempts.

    Attributes:
        keys: The keys of the producer.
        slot: Slot of the key.
        messages: Number of messages of the send.
        topic: Topic of the last route.
        has_chosen: True while the send is in flight.
        has_waited: True once the send has found its former queue unconsumed.
        holds: Number of attempts that were held although the former queue is writable.
    """

    keys: StickyKeys
    slot: int
    messages: int
    topic: str = ""
    has_chosen: bool = False
    has_waited: bool = False
    holds: int = 0

    def __call__(self, route: TopicRoute) -> MessageQueue:
        """Return the queue of the next attempt. Raises as `StickyKeys.choose`."""
        return self.keys.choose(self, route)


class StickyKeysHook:
    """Send hook that passes the outcome of each send to its StickyChoice."""

    def before_send(self, context: SendContext) -> None:
        """Do nothing: the queue is chosen later."""

    def after_send(self, context: SendContext) -> None:
        """Record the outcome of a send with a sharding key."""
        choice = context.notes.get(_NOTE)
        if isinstance(choice, StickyChoice):
            result = context.result if isinstance(context.result, SendResult) else None
            choice.keys.finish(choice, result)


def _share_of(route: TopicRoute, queue: MessageQueue) -> QueueShare | None:
    return next((share for share in route.shares if share.broker_name == queue.broker_name), None)
