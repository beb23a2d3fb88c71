"""TransactionChecks: requests the outcome of open transactions from their producers.

    a half message that is open           → immune for `transaction_timeout_ms`
    afterwards, at each round             → appended again with TRANSACTION_CHECK_TIMES + 1 (its copy replaces
                                            it), then CHECK_TRANSACTION_STATE to one producer of its group
    after `transaction_check_max` checks  → TRANS_CHECK_MAX_TIME_TOPIC; the transaction is finished

The producer responds with END_TRANSACTION. Without the copies, one open transaction at the front of the half
queue would stop the progress there: progress is a single offset (store format 11.4).
"""

from __future__ import annotations

import struct
from contextlib import aclosing
from enum import StrEnum
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.group.clients import Clients
from actors.broker.metadata.topics import TRANSACTION_CHECK_MAX_TOPIC, TRANSACTION_HALF_TOPIC, Topics
from actors.broker.transactions.half_messages import (
    FIRST_HALF_OFFSET,
    HALF_QUEUE_ID,
    first_offset,
    number_property,
    real_queue,
    stored_draft,
)
from actors.broker.transactions.transaction_log import TransactionLog
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import CheckTransactionStateHeader
from actors.remoting.remoting_errors import Refused
from store.clock import Clock
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.message_id import offset_message_id
from store.message.properties import MessageConst
from store.message.record import encode_record
from store.message_store import AppendResult, MessageStore
from store.store_errors import MessageInvalid, RecordTooLarge, StoreError

_log = get_logger(__name__)

MS_PER_S = 1000
MS_PER_HOUR = 3_600_000


class Verdict(StrEnum):
    """What a round of checks does with an open half message."""

    STOP = "stop"
    """It is immune, and so are all later ones: end the round."""
    RENEW = "renew"
    """It is immune longer than others: append a copy, because it would hold up the progress."""
    CHECK = "check"
    DISCARD = "discard"


def verdict_on(half: MessageExt, now_ms: int, settings: BrokerSettings) -> Verdict:
    """Return what to do with a half message.

    CHECK_IMMUNITY_TIME_IN_SECONDS counts from the message's creation, as in RocketMQ. It ends after
    `file_reserved_time_h`, because a producer can set any value.
    """
    times = number_property(half, MessageConst.TRANSACTION_CHECK_TIMES) or 0
    if times >= settings.transaction_check_max:
        return Verdict.DISCARD
    immunity_s = number_property(half, MessageConst.CHECK_IMMUNITY_TIME_IN_SECONDS)
    if immunity_s is not None:
        limit_ms = min(immunity_s * MS_PER_S, settings.store.file_reserved_time_h * MS_PER_HOUR)
        return Verdict.RENEW if 0 <= now_ms - half.born_timestamp < limit_ms else Verdict.CHECK
    is_copy = times > 0 or FIRST_HALF_OFFSET in half.properties
    if not is_copy and 0 <= now_ms - half.store_timestamp < settings.transaction_timeout_ms:
        return Verdict.STOP
    return Verdict.CHECK


class TransactionChecks:
    """The checks of the open transactions of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        transactions: TransactionLog,
        topics: Topics,
        clients: Clients[Connection],
        clock: Clock,
    ) -> None:
        """Create the object.

        Args:
            settings: the intervals and limits.
            store: appends discarded messages.
            transactions: the open transactions.
            topics: creates TRANS_CHECK_MAX_TIME_TOPIC.
            clients: the connected producers.
            clock: decides which transactions are immune.
        """
        self._settings = settings
        self._store = store
        self._transactions = transactions
        self._topics = topics
        self._clients = clients
        self._clock = clock
        self._checks = 0
        self.discarded = 0
        """Number of transactions that were given up after `transaction_check_max` checks."""

    async def check(self) -> None:
        """Check the transactions that are open now; to be called every `transaction_check_interval_ms`."""
        await self._transactions.when_loaded()
        now_ms = self._clock.wall_ms()
        end = self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE_ID)
        try:
            async with aclosing(self._transactions.open_halves(end)) as halves:
                async for half in halves:
                    verdict = verdict_on(half, now_ms, self._settings)
                    if verdict is Verdict.STOP:
                        return
                    self._handle(half, verdict)
        # Expected errors: the disk is full or slow. The next round tries again.
        except (StoreError, Refused, OSError) as error:
            _log.warning("transaction_check_failed", error=str(error))

    def _handle(self, half: MessageExt, verdict: Verdict) -> None:
        try:
            if verdict is Verdict.RENEW:
                self._transactions.copy(half, {})
            elif verdict is Verdict.CHECK:
                self._check(half)
            else:
                self._discard(half)
        # A limit was lowered, or the record has no room for more properties: a retry would fail as well.
        except (MessageInvalid, RecordTooLarge, struct.error) as error:
            _log.error("half_message_invalid", offset=half.queue_offset, error=str(error))
            self._discard(half)

    def _check(self, half: MessageExt) -> None:
        real_queue(half)  # raises MessageInvalid before a copy is stored
        times = (number_property(half, MessageConst.TRANSACTION_CHECK_TIMES) or 0) + 1
        added = {MessageConst.TRANSACTION_CHECK_TIMES: str(times)}
        result = self._transactions.copy(half, added)
        request = self._request(half, added, result)
        # Not earlier: END_TRANSACTION for a copy that is not confirmed would be refused.
        end = result.physical_offset + result.size_bytes
        group = half.properties.get(MessageConst.PRODUCER_GROUP, "")
        self._store.on_confirmed(end, partial(self._send, group, request))

    def _send(self, group: str, request: RemotingCommand, error: StoreError | None) -> None:
        if error is not None:
            return
        members = [each for each in self._clients.producers(group) if not each.connection.is_closed]
        if not members:
            _log.info("transaction_check_without_producer", group=group)
            return
        self._checks += 1
        members[self._checks % len(members)].connection.oneway(request)

    def _request(self, half: MessageExt, added: dict[str, str], result: AppendResult) -> RemotingCommand:
        """Return the request; its body is the record of the copy, with its own topic and queue."""
        topic, queue_id = real_queue(half)
        draft = stored_draft(half, topic, queue_id, added)
        record = encode_record(
            draft, result.queue_offset, result.physical_offset, result.store_timestamp, half.store_host.packed
        )
        uniq_key = half.properties.get(MessageConst.UNIQ_KEY, "")
        header = CheckTransactionStateHeader(
            result.queue_offset,
            result.physical_offset,
            uniq_key,
            uniq_key,
            offset_message_id(half.store_host, result.physical_offset),
            topic,
            self._settings.broker_name,
        )
        return RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), record)

    def _discard(self, half: MessageExt) -> None:
        topic = self._topics.ensure(TRANSACTION_CHECK_MAX_TOPIC, 1).topic_name
        try:
            self._store.append(stored_draft(half, topic, 0, {}))
        except (MessageInvalid, RecordTooLarge, struct.error) as error:
            _log.error("half_message_not_discarded", offset=half.queue_offset, error=str(error))
            return
        self.discarded += 1
        _log.warning(
            "transaction_discarded",
            group=half.properties.get(MessageConst.PRODUCER_GROUP, ""),
            topic=half.properties.get(MessageConst.REAL_TOPIC, ""),
            msg_id=half.msg_id,
        )
        self._transactions.finish(half.queue_offset, first_offset(half))
