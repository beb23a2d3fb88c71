"""EndTransaction: handles END_TRANSACTION, with which a producer commits or rolls back a transaction.

    commit    append the message to its real topic; respond when it is confirmed (the op message may follow)
    rollback  append an op message; respond when it is confirmed
    unknown   change nothing: the broker checks the transaction later

RocketMQ's clients send this request one-way and do not read the response, so every refusal is logged.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.topics import TRANSACTION_HALF_TOPIC, Topics
from actors.broker.core.sending.acks import Acks
from actors.broker.core.sending.responses import SendAck, not_stored
from actors.broker.core.stats import BrokerStats
from actors.broker.features.transactions.half_messages import first_offset, real_queue
from actors.broker.features.transactions.open_transactions import HalfPlace
from actors.broker.features.transactions.transaction_counts import TransactionCounts
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow, TopicCheck
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import EndTransactionHeader
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, each_of, on_group, on_topic
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst
from store.message.record import decode_record
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from store.message_store import MessageStore
from store.store_errors import MessageInvalid, StoreError

_log = get_logger(__name__)


class EndTransaction:
    """Request handler for END_TRANSACTION."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        transactions: TransactionLog,
        topics: Topics,
        acks: Acks,
        stats: BrokerStats,
        may_send: TopicCheck,
        counts: TransactionCounts,
    ) -> None:
        self._counts = counts
        self._store = store
        self._reads = reads
        self._transactions = transactions
        self._topics = topics
        self._acks = acks
        self._stats = stats
        self._may_send = may_send

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        targets = each_of(on_topic(Action.PUB), on_group(Action.PUB, "producer_group"))
        code = RequestCode.END_TRANSACTION
        # Not Cost.SEND, whose requests are refused under load: a one-way request is lost if it is refused.
        on_slave = OnSlave.UNAVAILABLE
        row = partial(RequestRow, on_slave=on_slave, needs_services=True)
        return (row(code, self.end, EndTransactionHeader, targets, Cost.CLIENT),)

    def end(self, context: RequestContext) -> RemotingCommand | None:
        """Handle END_TRANSACTION. The response is sent when the outcome is confirmed."""
        outcome = context.header.commit_or_rollback
        if outcome == TRANSACTION_NONE:
            return RemotingCommand.response()
        if outcome not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {outcome}: it must be {TRANSACTION_COMMIT} (commit), "
                f"{TRANSACTION_ROLLBACK} (rollback) or {TRANSACTION_NONE} (unknown)",
            )
        if self._transactions.is_loaded:
            self._read_half(context)
        else:
            context.spawn(self._when_loaded(context))
        return None

    async def _when_loaded(self, context: RequestContext) -> None:
        await self._reads.caught_up()  # refuses the request if the log cannot be read for long
        await self._transactions.when_loaded()
        self._read_half(context)

    def _read_half(self, context: RequestContext) -> None:
        header: EndTransactionHeader = context.header

        def read() -> MessageExt:
            try:
                return decode_record(self._store.record_at(header.commit_log_offset), check_crc=False)
            except StoreError as error:
                raise _refusal(
                    header, f"no half message at CommitLog offset {header.commit_log_offset}: {error.reason}"
                ) from error

        self._reads.serve(context, read, lambda half: self._end(context, header, half))

    def _end(
        self, context: RequestContext, header: EndTransactionHeader, half: MessageExt
    ) -> RemotingCommand | None:
        _check_half(header, half)
        try:
            topic, queue_id = real_queue(half)
            self._topics.check_delivery(topic, queue_id)
        except MessageInvalid as error:  # a round of checks gives it up
            raise _refusal(header, error.remark, ResponseCode.MESSAGE_ILLEGAL) from error
        self._may_send(context, topic)  # clients before 5.0 do not send the topic
        place = self._transactions.find(half)
        if place is None:
            raise _refusal(
                header, "the transaction is finished: it was committed, rolled back or given up earlier",
                ResponseCode.ILLEGAL_OPERATION,
            )  # fmt: skip
        if header.commit_or_rollback == TRANSACTION_COMMIT:
            self._commit(context, half, topic, queue_id, place)
        else:
            self._transactions.finish(place.offset, first_offset(half), SendAck(context, {}))
            self._counts.rolled_back(topic, half)
        return None

    def _commit(
        self, context: RequestContext, half: MessageExt, topic: str, queue_id: int, place: HalfPlace
    ) -> None:
        header: EndTransactionHeader = context.header
        if self._topics.find(topic) is None:
            raise _refusal(
                header, f"topic {topic!r} does not exist any more: create it again to commit the message",
                ResponseCode.TOPIC_NOT_EXIST,
            )  # fmt: skip
        try:
            result = self._transactions.commit(half, topic, queue_id, place)
        except StoreError as error:
            refused = not_stored(error)
            raise _refusal(header, refused.remark, refused.code) from error
        self._stats.put(topic, 1, result.size_bytes)
        self._counts.committed(topic, half)
        self._acks.when_confirmed(result.physical_offset + result.size_bytes, SendAck(context, {}))


def _check_half(header: EndTransactionHeader, half: MessageExt) -> None:
    """Raise Refused if the record is not the half message that the request describes."""
    if half.topic != TRANSACTION_HALF_TOPIC:
        raise _refusal(
            header, f"the record at CommitLog offset {half.commit_log_offset} is not a half message"
        )
    group = half.properties.get(MessageConst.PRODUCER_GROUP)
    if header.producer_group != group:
        raise _refusal(
            header, f"producer group {header.producer_group[:100]!r} is not that of the half message"
        )
    if header.tran_state_table_offset != half.queue_offset:
        raise _refusal(
            header, f"tranStateTableOffset is {header.tran_state_table_offset}, but the half message at "
            f"CommitLog offset {half.commit_log_offset} has queue offset {half.queue_offset}"
        )  # fmt: skip
    if header.transaction_id not in ("", half.properties.get(MessageConst.UNIQ_KEY)):
        raise _refusal(
            header, f"transactionId {header.transaction_id[:100]!r} is not that of the half message"
        )
    # Must be equal: access control has checked only the topic in the header.
    if header.topic not in ("", half.properties.get(MessageConst.REAL_TOPIC)):
        raise _refusal(header, f"topic {header.topic[:100]!r} is not that of the half message")


def _refusal(header: EndTransactionHeader, cause: str, code: int = ResponseCode.SYSTEM_ERROR) -> Refused:
    _log.warning(
        "end_transaction_refused",
        group=header.producer_group,
        transaction_id=header.transaction_id[:100],
        from_check=header.from_transaction_check,
        cause=cause,
    )
    return Refused(code, cause)
