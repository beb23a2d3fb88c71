"""QueueReader: what a request that reads a queue does, whether the client pulls the messages or pops them.

check_group, check_queue ──► can_read ──► is_at_end ──► nothing to read: respond, or hold the request
                                │             └───────► read
                                └─ no: wait for dispatch (`Reads.wait_for_dispatch`)
"""

from __future__ import annotations

from typing import NamedTuple

from actors.broker.core.group.clients import Clients
from actors.broker.core.group.popping_groups import PoppingGroups
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.attributes import LITE_BIND_TOPIC
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.stats import BrokerStats
from actors.transport.connection import Connection
from actors.wire.bodies.groups import BROADCASTING
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.validate import lite_topic_of
from store.message_store import GetMessageResult, GetMessageStatus, MessageStore
from store.reading.message_filter import MessageFilter

Queue = tuple[str, int]
"""Topic and queue id."""


class Consumer(NamedTuple):
    """The consumer group of a read, and the filter for its messages."""

    group: str
    message_filter: MessageFilter
    is_subscribed: bool = False
    """True if heartbeats of the group reported the filter, False if the request itself contains it."""


class ReadLimits(NamedTuple):
    """Limits of one response. A single message is returned even if it exceeds `max_bytes`."""

    max_messages: int
    max_bytes: int


class QueueReader:
    """Checks and reads the queues of one broker for consumers."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        stats: BrokerStats,
        popping: PoppingGroups,
    ) -> None:
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = clients
        self._stats = stats
        self._popping = popping

    def check_group(self, name: str, topic: str) -> None:
        """Raise Refused if the group may not consume the topic."""
        config = self._groups.for_consuming(name, topic)
        if LITE_BIND_TOPIC in config.attributes and lite_topic_of(topic) is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"group {name!r} has the attribute {LITE_BIND_TOPIC} and consumes lite topics only: use "
                "another group",
            )
        self._offsets.check_room(name, topic)
        if config.consume_broadcast_enable:
            return
        group = self._clients.group(name)
        if group is not None and group.message_model == BROADCASTING:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                # RocketMQ's remark up to the colon.
                f"the consumer group[{name}] can not consume by broadcast way: use message model CLUSTERING, "
                "or set the group's consumeBroadcastEnable to true",
            )

    def check_mode(self, name: str, topic: str) -> None:
        """Report a pull of a topic that the group pops. Raise Refused if the settings forbid it."""
        if self._popping:
            self._popping.check_pull(topic, name)

    def check_queue(self, topic_name: str, queue_id: int) -> None:
        """Raise Refused if the queue does not exist or is not readable."""
        topic = self._topics.for_pulling(topic_name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic_name!r} does not exist: "
                f"its read queues are 0 to {topic.read_queue_nums - 1}",
            )

    def can_read(self, queue: Queue, offset: int) -> bool:
        """Return True if a read need not wait for dispatch.

        A read waits only if it would find no message. Messages that are dispatched already can be read even
        if dispatch is far behind in other queues, or fails because the disk is full. While the end of the log
        is not known, a read at or beyond the end of its queue moves no offset, so the pull can be held.
        """
        store = self._store
        return (
            store.is_at_end(*queue, offset)
            or self._reads.catch_up()
            or offset < store.max_offset(*queue)
            or not store.positions.is_end_known
        )

    def is_at_end(self, queue: Queue, offset: int) -> bool:
        """Return True if `offset` is the end of the queue, so that no read is necessary."""
        if self._offsets.resets or self._store.max_offset(*queue) != offset:
            return False
        self._stats.gets_missed += 1
        return True

    def read(self, queue: Queue, offset: int, limits: ReadLimits, consumer: Consumer) -> GetMessageResult:
        """Return the messages from `offset` on that the filter accepts, and record the group's position.

        With a pending reset of the group's offset, return no messages, and the offset of the reset as the
        next one. Raises NotResident (see `Reads`) and StoreError.
        """
        if self._offsets.resets and (reset := self._take_reset(queue, offset, consumer.group)) is not None:
            return reset
        found = self.peek(queue, offset, limits, consumer.message_filter)
        if found.status is GetMessageStatus.OFFSET_OVERFLOW_BADLY and consumer.group:
            self._move_to_committed(queue, consumer.group, found)
        self.served(queue, consumer.group, found)
        return found

    def peek(
        self, queue: Queue, offset: int, limits: ReadLimits, message_filter: MessageFilter
    ) -> GetMessageResult:
        """Return the messages from `offset` on that the filter accepts, without recording the read.

        Raises NotResident (see `Reads`) and StoreError.
        """
        topic, queue_id = queue
        return self._store.get_message(topic, queue_id, offset, *limits, message_filter)

    def count(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages that are returned to a group."""
        self._stats.got(group, topic, messages, size_bytes)

    def served(self, queue: Queue, group: str, found: GetMessageResult) -> None:
        """Count messages that are returned to a group, and record the group's position."""
        topic, queue_id = queue
        self._stats.got(group, topic, found.message_count, found.size_bytes)
        if group:
            self._offsets.note_pull(group, topic, queue_id, found.next_begin_offset)

    def empty_result(self, queue: Queue, status: GetMessageStatus, offset: int) -> GetMessageResult:
        """Return a result without messages whose next offset is `offset`."""
        store = self._store
        return GetMessageResult(status, offset, store.min_offset(*queue), store.max_offset(*queue))

    def _move_to_committed(self, queue: Queue, group: str, found: GetMessageResult) -> None:
        """Move the first pull of a group that lies beyond the queue to the group's committed offset.

        The position is of another past of the log, which was restored from a copy or has lost its end. The
        queue may have new messages since then, so its present end would skip them.
        """
        topic, queue_id = queue
        if (topic, group, queue_id) not in self._offsets.pulled:
            committed = self._offsets.query(group, topic, queue_id)
            if committed is not None:
                following = min(found.next_begin_offset, max(committed, found.min_offset))
                found.next_begin_offset = following

    def _take_reset(self, queue: Queue, offset: int, group: str) -> GetMessageResult | None:
        """Return the result that moves the client to a pending reset's offset, or None without a reset."""
        reset = self._offsets.take_reset(group, *queue)
        if reset is None or reset == offset:
            return None
        return self.empty_result(queue, GetMessageStatus.OFFSET_RESET, reset)
