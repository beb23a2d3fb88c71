"""TransactionLog: commits and finishes the transactions of one broker, and loads them when the broker starts.

The CommitLog is the source of truth. At the start, and when the broker becomes the master, `load` finds the
open transactions. A half message is open if no op message marks it as finished, no copy replaces it, and its
committed message is not stored. The last condition prevents a second commit if the broker was killed after it
had appended the committed message and before it appended the op message.

`load` reads the half queue and the op queue from the offsets of consumer group CID_RMQ_SYS_TRANS. These
offsets are saved only after the log was flushed and confirmed up to them, so that they are valid after a
power failure, and after the log has lost its unconfirmed end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress

from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.metadata.topics import TRANSACTION_HALF_TOPIC, TRANSACTION_OP_TOPIC, Topics
from actors.broker.core.sending.acks import PendingAck
from actors.broker.features.transactions.half_messages import (
    FIRST_HALF_OFFSET,
    HALF_QUEUE_ID,
    committed_draft,
    first_offset,
    number_property,
    real_queue,
    stored_draft,
)
from actors.broker.features.transactions.op_messages import REMOVED_TAG, OpWriter, finished_offsets
from actors.broker.features.transactions.open_transactions import HalfPlace, OpenTransactions
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst
from store.message.record import decode_record, decode_records
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from store.message_store import AppendResult, GetMessageResult, MessageStore
from store.store_errors import MessageInvalid

_log = get_logger(__name__)

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
READ_MESSAGES = 32
READ_BYTES = 256 * 1024
# Finished half messages to skip before the event loop may run other work.
SKIPS_PER_TURN = 4096


class TransactionLog:
    """Stores the outcome of transactions in the CommitLog, and knows the open transactions of one broker."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        topics: Topics,
        offsets: ConsumerOffsets,
        ops: OpWriter,
    ) -> None:
        """Create the log. It can be used after `load` has finished.

        Args:
            store: stores the messages.
            reads: reads messages without blocking the event loop.
            topics: `load` creates the topics of open transactions in it if they are missing.
            offsets: stores the offsets of group CID_RMQ_SYS_TRANS.
            ops: writes the op messages.
        """
        self._store = store
        self._reads = reads
        self._topics = topics
        self._offsets = offsets
        self._ops = ops
        self._open = OpenTransactions(0)
        self._loaded = asyncio.Event()
        # Half offset, op offset, CommitLog offset: the first two are saved when the log is flushed and
        # confirmed up to the third.
        self._unsaved: tuple[int, int, int] | None = None
        # Topics of the half messages before `_counted_end` that were open at the last count, by offset.
        self._counted: dict[int, str] = {}
        self._counted_end = 0

    @property
    def open_count(self) -> int:
        """Number of transactions that are neither committed nor rolled back."""
        return self._open.count(self._end(TRANSACTION_HALF_TOPIC))

    @property
    def finished_count(self) -> int:
        """Number of finished half messages behind the oldest open one."""
        return self._open.finished_count

    @property
    def is_loaded(self) -> bool:
        """True if `load` has finished."""
        return self._loaded.is_set()

    async def when_loaded(self) -> None:
        """Wait until `load` has finished."""
        await self._loaded.wait()

    async def load(self) -> None:
        """Read the half queue and the op queue to find the open transactions.

        Runs at each start; requests wait for its end. After `stop`, the log may have changed.
        """
        self._loaded.clear()
        self._unsaved = None
        self._counted, self._counted_end = {}, 0
        await self._reads.caught_up()
        end = self._end(TRANSACTION_HALF_TOPIC)
        self._open = state = OpenTransactions(self._saved(TRANSACTION_HALF_TOPIC))
        op_begin = self._saved(TRANSACTION_OP_TOPIC)
        self._ops.restart(op_begin)
        async for op in self._messages(TRANSACTION_OP_TOPIC, op_begin):
            offsets = finished_offsets(op.body) if op.tags == REMOVED_TAG else []
            offsets = [offset for offset in offsets if offset < end]
            self._ops.note(op.queue_offset, offsets)
            for offset in offsets:
                state.finish(offset)
        async for half in self.open_halves(end):
            first = number_property(half, FIRST_HALF_OFFSET)
            if first is not None and first < half.queue_offset:
                self._replace(first, half.queue_offset, half.commit_log_offset)
            if await self._is_committed(half):
                self.finish(half.queue_offset, first_offset(half))
            elif self._open.is_open(half.queue_offset):
                self._ensure_topic(half)
        if self.open_count:
            _log.info("open_transactions_loaded", transactions=self.open_count, begin=state.begin)
        self._loaded.set()

    async def count_by_topic(self) -> Counter[str]:
        """Return the number of open transactions of each topic; none before `load` has finished.

        Reads only half messages that the last count has not read. Raises StoreError, Refused.
        """
        if not self.is_loaded:
            return Counter()
        state, end = self._open, self._end(TRANSACTION_HALF_TOPIC)
        added: dict[int, str] = {}
        async with aclosing(self.open_halves(end, self._counted_end)) as halves:
            async for half in halves:
                with suppress(MessageInvalid):  # possible if another broker wrote the store
                    added[half.queue_offset] = real_queue(half)[0]
        counted = {
            offset: topic for offset, topic in (self._counted | added).items() if state.is_open(offset)
        }
        if self._open is state:
            self._counted, self._counted_end = counted, max(end, self._counted_end)
        return Counter(counted.values())

    def find(self, half: MessageExt) -> HalfPlace | None:
        """Return the location of the newest copy of `half`, or None if the transaction is finished."""
        place = HalfPlace(half.queue_offset, half.commit_log_offset)
        return self._open.newest(first_offset(half), place)

    def commit(self, half: MessageExt, topic: str, queue_id: int, place: HalfPlace) -> AppendResult:
        """Append the committed message of an open transaction to its real topic, and finish the transaction.

        Args:
            half: the half message or any of its copies.
            topic: the real topic.
            queue_id: the real queue.
            place: the newest copy, as `find` has returned it.

        Raises:
            StoreError: the store refuses appends; the transaction stays open.
            MessageInvalid: the message cannot be stored in its real topic; the transaction stays open.
        """
        result = self._store.append(committed_draft(half, topic, queue_id, place.position))
        self.finish(place.offset, first_offset(half))
        return result

    def finish(
        self, offset: int, first: int, ack: PendingAck | None = None, *, is_urgent: bool = False
    ) -> None:
        """Mark a transaction as finished, and schedule its op message.

        Args:
            offset: offset of the newest copy in the half queue.
            first: offset of the first half message in the half queue.
            ack: called when the op message is confirmed, to send the response.
            is_urgent: append the op message in this turn, because nothing else in the log shows that the
                transaction is finished.
        """
        self._open.finish(offset, first)
        self._ops.add(offset, ack, is_urgent=is_urgent)

    def copy(self, half: MessageExt, added: Mapping[str, str]) -> AppendResult:
        """Append a copy of an open half message with the `added` properties; the copy replaces it.

        Raises StoreError if the store refuses the append.
        """
        first = first_offset(half)
        added = {**added, FIRST_HALF_OFFSET: str(first)}
        result = self._store.append(stored_draft(half, TRANSACTION_HALF_TOPIC, HALF_QUEUE_ID, added))
        self._replace(first, result.queue_offset, result.physical_offset)
        return result

    async def stop(self) -> None:
        """Append the pending op messages and save the offsets, before the broker stops."""
        self.save_progress()

    async def open_halves(self, end: int, begin: int = 0) -> AsyncGenerator[MessageExt, None]:
        """Yield the half messages from offset `begin` to `end` that are open, in the order of their offsets.

        Half messages that finish during the iteration are not yielded.
        """
        self._open.skip_to(self._store.min_offset(TRANSACTION_HALF_TOPIC, HALF_QUEUE_ID))
        offset = max(self._open.begin, begin)
        while offset < end:
            if not self._open.is_open(offset):
                offset += 1
                if offset % SKIPS_PER_TURN == 0:
                    await asyncio.sleep(0)
                continue
            found = await self._read(TRANSACTION_HALF_TOPIC, offset)
            for half in _decoded(found):
                self._give_up(offset, min(half.queue_offset, end))
                offset = half.queue_offset + 1
                if offset <= end and self._open.is_open(half.queue_offset):
                    yield half
            self._give_up(offset, min(found.next_begin_offset, end))
            offset = max(found.next_begin_offset, offset + (not found.slices))
            await asyncio.sleep(0)

    def save_progress(self) -> None:
        """Append the pending op messages, and save the offsets of CID_RMQ_SYS_TRANS that are confirmed.

        The broker calls this periodically.
        """
        if not self.is_loaded:
            return
        self._ops.write()
        positions = self._store.positions
        durable = min(positions.flushed, positions.confirmed)
        if self._unsaved is not None and durable >= self._unsaved[2]:
            half_begin, op_begin, _ = self._unsaved
            for topic, offset in ((TRANSACTION_HALF_TOPIC, half_begin), (TRANSACTION_OP_TOPIC, op_begin)):
                if offset != (self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE_ID) or 0):
                    self._offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE_ID, offset)
            self._unsaved = None
        if self._unsaved is None:
            begin = self._open.begin
            self._unsaved = (begin, self._ops.begin_for(begin), positions.written)

    def _ensure_topic(self, half: MessageExt) -> None:
        """Create the topic of a half message if it is missing.

        It can be missing after a crash; see `Topics.prepare_delivery`.
        """
        try:
            topic, queue_id = real_queue(half)
            self._topics.prepare_delivery(half, topic, queue_id)
        except (MessageInvalid, Refused) as error:  # possible if another broker wrote the store
            _log.warning(
                "half_message_invalid",
                offset=half.queue_offset,
                position=half.commit_log_offset,
                error=str(error),
            )

    def _replace(self, first: int, offset: int, position: int) -> None:
        for replaced in self._open.copied(first, HalfPlace(offset, position)):
            self._finish_replaced(replaced)

    def _finish_replaced(self, offset: int) -> None:
        self._open.finish(offset)
        self._ops.add(offset)

    def _give_up(self, begin: int, end: int) -> None:
        """Finish the open half messages from `begin` to `end` (exclusive), which cannot be read."""
        for offset in range(begin, end):
            if self._open.is_open(offset):
                _log.error("half_message_unreadable", offset=offset)
                self._finish_replaced(offset)

    async def _is_committed(self, half: MessageExt) -> bool:
        """Return True if the committed message of `half` is in the log already."""
        try:
            topic, queue_id = real_queue(half)
        except MessageInvalid:
            return False
        uniq_key = half.properties.get(MessageConst.UNIQ_KEY, "")
        if self._store.settings.index and uniq_key:
            records = await self._reads.search(self._store.key_query(topic, uniq_key))
            return any(_commits(decode_record(record, check_crc=False), half) for record in records)
        offset = await self._reads.read(
            lambda: self._store.offset_by_timestamp(topic, queue_id, half.store_timestamp)
        )
        async for message in self._messages(topic, offset, queue_id):
            if _commits(message, half):
                return True
        return False

    async def _messages(
        self, topic: str, offset: int, queue_id: int = HALF_QUEUE_ID
    ) -> AsyncIterator[MessageExt]:
        while offset < self._store.max_offset(topic, queue_id):
            found = await self._read(topic, offset, queue_id)
            for message in _decoded(found):
                yield message
            offset = max(found.next_begin_offset, offset + 1)
            await asyncio.sleep(0)

    async def _read(self, topic: str, offset: int, queue_id: int = HALF_QUEUE_ID) -> GetMessageResult:
        return await self._reads.read(
            lambda: self._store.get_message(topic, queue_id, offset, READ_MESSAGES, READ_BYTES)
        )

    def _end(self, topic: str) -> int:
        return self._store.max_offset(topic, HALF_QUEUE_ID)

    def _saved(self, topic: str) -> int:
        saved = self._offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE_ID) or 0
        return min(max(saved, self._store.min_offset(topic, HALF_QUEUE_ID)), self._end(topic))


def _decoded(found: GetMessageResult) -> list[MessageExt]:
    return [message for part in found.slices for message in decode_records(part, check_crc=False)]


def _commits(message: MessageExt, half: MessageExt) -> bool:
    """Return True if `message` is the committed message of `half`."""
    is_commit = message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    return is_commit and message.prepared_transaction_offset == half.commit_log_offset
