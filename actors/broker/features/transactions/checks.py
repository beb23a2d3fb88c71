"""TransactionChecks: requests the outcome of open transactions from producers, in periodic rounds.

    for `transaction_timeout_ms`          the half message is immune: it is not checked
    as long as the message requests       it is left in place, unless a copy is necessary (`Renewals`)
    after that, in each round             the broker appends a copy with TRANSACTION_CHECK_TIMES + 1, which
                                          replaces the half message, and sends CHECK_TRANSACTION_STATE to one
                                          producer of its group
    after `transaction_check_max` checks  the broker appends the message to TRANS_CHECK_MAX_TIME_TOPIC and
                                          finishes the transaction

The producer responds with END_TRANSACTION. The copies are necessary because the saved progress in the half
queue is a single offset (docs/store-format.md#transaction-checks): without copies, the oldest open
transaction would hold it back.
"""

from __future__ import annotations

import struct
from contextlib import aclosing
from enum import StrEnum
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group.clients import Clients
from actors.broker.core.metadata.topics import TRANSACTION_CHECK_MAX_TOPIC, TRANSACTION_HALF_TOPIC, Topics
from actors.broker.features.transactions.half_messages import (
    FIRST_HALF_OFFSET,
    HALF_QUEUE_ID,
    first_offset,
    number_property,
    real_queue,
    stored_draft,
)
from actors.broker.features.transactions.renewals import MS_PER_HOUR, Renewals
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.transport.connection import Connection
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CheckTransactionStateHeader
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.message_id import offset_message_id
from store.message.properties import MessageConst
from store.message.record import encode_record
from store.message_store import AppendResult, MessageStore
from store.store_errors import MessageInvalid, RecordTooLarge, StoreError

_log = get_logger(__name__)

MS_PER_S = 1000


class Verdict(StrEnum):
    """Decision of a round of checks about an open half message."""

    STOP = "stop"
    """It is immune, and all later half messages are immune too: end the round."""
    WAIT = "wait"
    """It is immune by CHECK_IMMUNITY_TIME_IN_SECONDS: leave it, or append a copy (`Renewals`)."""
    CHECK = "check"
    """Send CHECK_TRANSACTION_STATE to a producer."""
    DISCARD = "discard"
    """It was checked `transaction_check_max` times: give up the transaction."""


def verdict_on(half: MessageExt, now_ms: int, settings: BrokerSettings) -> Verdict:
    """Decide how a round of checks handles a half message.

    Property CHECK_IMMUNITY_TIME_IN_SECONDS, which a producer can set, replaces `transaction_timeout_ms`. The
    time begins at the creation of the message, as in RocketMQ. The setting `file_reserved_time_h` limits it.
    """
    times = number_property(half, MessageConst.TRANSACTION_CHECK_TIMES) or 0
    if times >= settings.transaction_check_max:
        return Verdict.DISCARD
    immunity_s = number_property(half, MessageConst.CHECK_IMMUNITY_TIME_IN_SECONDS)
    if immunity_s is not None:
        limit_ms = min(immunity_s * MS_PER_S, settings.store.file_reserved_time_h * MS_PER_HOUR)
        return Verdict.WAIT if 0 <= now_ms - half.born_timestamp < limit_ms else Verdict.CHECK
    is_copy = times > 0 or FIRST_HALF_OFFSET in half.properties
    if not is_copy and 0 <= now_ms - half.store_timestamp < settings.transaction_timeout_ms:
        return Verdict.STOP
    return Verdict.CHECK


class TransactionChecks:
    """Checks the open transactions of one broker."""

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
        self._renewals = Renewals(settings)
        self._checks = 0
        self.discarded = 0
        """Number of transactions that the broker has given up after `transaction_check_max` checks."""

    async def check(self) -> None:
        """Run one round of checks. The broker calls this every `transaction_check_interval_ms`."""
        await self._transactions.when_loaded()
        now_ms = self._clock.wall_ms()
        end = self._store.max_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE_ID)
        positions = self._store.positions
        self._renewals.begin_round(
            self._transactions.finished_count, positions.min, positions.written, now_ms
        )
        try:
            async with aclosing(self._transactions.open_halves(end)) as halves:
                async for half in halves:
                    verdict = verdict_on(half, now_ms, self._settings)
                    if verdict is Verdict.STOP:
                        return
                    self._handle(half, verdict)
        # Expected, for example if the disk is full or slow. The next round tries again.
        except (StoreError, Refused, OSError) as error:
            _log.warning("transaction_check_failed", error=str(error))
        finally:
            self._renewals.end_round(positions.written)

    def _handle(self, half: MessageExt, verdict: Verdict) -> None:
        try:
            if verdict is Verdict.WAIT:
                if self._renewals.is_due(half):
                    self._transactions.copy(half, {})
            elif verdict is Verdict.CHECK:
                self._check(half)
            else:
                self._discard(half)
        # The message exceeds a lowered limit, or has no room for more properties: a retry would fail again.
        except (MessageInvalid, RecordTooLarge, struct.error) as error:
            _log.error(
                "half_message_invalid",
                offset=half.queue_offset,
                position=half.commit_log_offset,
                error=str(error),
            )
            self._discard(half)

    def _check(self, half: MessageExt) -> None:
        self._topics.check_delivery(*real_queue(half))  # raises MessageInvalid before a copy is stored
        times = (number_property(half, MessageConst.TRANSACTION_CHECK_TIMES) or 0) + 1
        added = {MessageConst.TRANSACTION_CHECK_TIMES: str(times)}
        result = self._transactions.copy(half, added)
        request = self._request(half, added, result)
        # Send it only when the copy is confirmed: END_TRANSACTION for an unconfirmed copy would be refused.
        end = result.physical_offset + result.size_bytes
        group = half.properties.get(MessageConst.PRODUCER_GROUP, "")
        self._store.on_confirmed(end, partial(self._send, group, request))

    def _send(self, group: str, request: RemotingCommand, error: StoreError | None) -> None:
        if error is not None:
            return
        connections = [each for each in self._clients.producer_connections(group) if not each.is_closed]
        if not connections:
            _log.info("transaction_check_skipped", group=group, cause="no connected producer")
            return
        self._checks += 1
        connections[self._checks % len(connections)].oneway(request)

    def _request(self, half: MessageExt, added: dict[str, str], result: AppendResult) -> RemotingCommand:
        """Return CHECK_TRANSACTION_STATE. Its body is the copy's record, with the real topic and queue."""
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
            _log.error("half_message_discard_failed", offset=half.queue_offset, error=str(error))
            return
        self.discarded += 1
        _log.warning(
            "transaction_discarded",
            group=half.properties.get(MessageConst.PRODUCER_GROUP, ""),
            topic=half.properties.get(MessageConst.REAL_TOPIC, ""),
            msg_id=half.msg_id,
        )
        self._transactions.finish(half.queue_offset, first_offset(half), is_urgent=True)
