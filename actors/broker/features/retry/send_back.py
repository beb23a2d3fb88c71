"""SendBack: a consumer sends back a message that it could not process (CONSUMER_SEND_MSG_BACK).

The broker appends the message again to the group's retry topic, delayed and with `reconsume_times` + 1, or to
its dead-letter topic if `reconsume_times` has reached the group's `retry_max_times`. See
docs/store-format.md#retries.
"""

from __future__ import annotations

from collections.abc import Iterable

from actors.broker.core.loop.reads import Reads, stored_record
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.sending.acks import Acks
from actors.broker.core.sending.delay_draft import delay_draft
from actors.broker.core.sending.moved import moved
from actors.broker.core.sending.responses import SendAck, not_stored
from actors.broker.core.stats import BrokerStats
from actors.broker.features.retry.dead_letters import origin_topic
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow, TopicCheck
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader
from actors.wire.targets import Action, on_group
from store.message.message import MessageExt
from store.message.properties import MessageConst
from store.message.record import decode_record
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore
from store.store_errors import StoreError

# Used if the consumer sends no level: 10 s after the first failure, then one level higher each time.
FIRST_RETRY_LEVEL = 3


class SendBack:
    """Handles CONSUMER_SEND_MSG_BACK."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        acks: Acks,
        stats: BrokerStats,
        may_read: TopicCheck,
    ) -> None:
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._delays_ms = store.settings.delay_levels_ms()
        self._acks = acks
        self._stats = stats
        self._may_read = may_read

    def rows(self) -> Iterable[RequestRow]:
        """Return the rows of the request table that this object handles."""
        back, header = RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackHeader
        sub = on_group(Action.SUB, "group")
        return (RequestRow(back, self.send_back, header, sub, Cost.SEND, on_slave=OnSlave.BUSY),)

    def send_back(self, context: RequestContext) -> None:
        """Append the message to the retry or dead-letter topic; respond when it is confirmed."""
        header: ConsumerSendMsgBackHeader = context.header
        self._groups.get(header.group)

        def read() -> MessageExt:
            return decode_record(stored_record(self._store, header.offset), check_crc=False)

        self._reads.serve(context, read, lambda message: self._store_retry(context, header, message))

    def _store_retry(
        self, context: RequestContext, header: ConsumerSendMsgBackHeader, message: MessageExt
    ) -> RemotingCommand | None:
        self._may_read(context, message.topic)
        group = self._groups.get(header.group)
        limit = group.retry_max_times if header.max_reconsume_times is None else header.max_reconsume_times
        is_dead = message.reconsume_times >= limit or header.delay_level < 0
        if not is_dead and group.retry_queue_nums <= 0:
            return RemotingCommand.response()
        prefix = DLQ_TOPIC_PREFIX if is_dead else RETRY_TOPIC_PREFIX
        topic = self._topics.ensure(f"{prefix}{group.group_name}", 1 if is_dead else group.retry_queue_nums)
        level = 0 if is_dead else header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        # Spread over the queues of the retry topic; RocketMQ chooses one at random.
        queues = 1 if is_dead else min(group.retry_queue_nums, topic.write_queue_nums)
        queue_id = message.queue_offset % max(queues, 1)
        record = moved(message, topic.topic_name, queue_id, _retry_properties(message, level))
        record.reconsume_times += 1
        if level:
            properties = record.properties.decode()
            record.properties = delay_draft(record, properties, level, self._delays_ms).encode()
        try:
            result = self._store.append(record)
        except StoreError as error:
            raise not_stored(error) from error
        origin = origin_topic(self._topics, message.properties, message.topic)
        self._stats.sent_back(group.group_name, origin, result.size_bytes)
        if is_dead:
            self._stats.dead_letter(group.group_name, origin)
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, SendAck(context, {}))
        return None


def _retry_properties(message: MessageExt, level: int) -> dict[str, str]:
    properties = dict(message.properties)
    properties.setdefault(MessageConst.RETRY_TOPIC, message.topic)
    properties.setdefault(MessageConst.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[MessageConst.WAIT] = "false"
    properties[MessageConst.DELAY] = str(level)
    if level:  # `delay_draft` sets them again; a dead letter keeps those of its last delay, as in RocketMQ
        for name in (MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID):
            properties.pop(name, None)
    return properties
