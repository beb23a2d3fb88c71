"""Op messages: records that mark half messages as finished (docs/store-format.md#op-messages).

    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag `d`, body `12,13,`: the queue offsets of finished half messages

RocketMQ before 5.1 writes one offset per op message, without a comma.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from actors.broker.core.metadata.topics import TRANSACTION_OP_TOPIC
from actors.broker.core.sending.acks import Acks, PendingAck
from actors.broker.features.transactions.half_messages import HALF_QUEUE_ID
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

REMOVED_TAG = "d"
OP_BODY_MAX_BYTES = 4096  # RocketMQ's transactionOpMsgMaxSize
OFFSETS_PER_OP = 200  # of up to 19 digits and a comma, they fit into one op message
_OFFSET = re.compile(rb"[0-9]{1,18}")
_PROPERTIES = encode_properties({MessageConst.TAGS: REMOVED_TAG, MessageConst.WAIT: "true"})


def op_bodies(offsets: Iterable[int]) -> Iterator[bytes]:
    """Yield op message bodies with the half-queue `offsets`, each of at most OP_BODY_MAX_BYTES."""
    body = b""
    for offset in offsets:
        entry = b"%d," % offset
        if len(body) + len(entry) > OP_BODY_MAX_BYTES:
            yield body
            body = b""
        body += entry
    if body:
        yield body


def finished_offsets(body: bytes) -> list[int]:
    """Return the half-queue offsets in the body of an op message. Invalid entries are skipped."""
    return [int(entry) for entry in body.split(b",") if _OFFSET.fullmatch(entry)]


def op_draft(body: bytes, born_ms: int, born_host: bytes) -> RecordDraft:
    """Return the record to append for an op message; `born_host` is the broker's packed address."""
    return RecordDraft(
        TRANSACTION_OP_TOPIC,
        HALF_QUEUE_ID,
        body,
        _PROPERTIES,
        born_timestamp=born_ms,
        born_host=born_host,
    )


class OpWriter:
    """Appends the op messages of one broker.

    Transactions share op messages: one is appended in the turn of a rollback, whose response waits for it, or
    of a transaction that is given up, or when it is full, or by the next periodic `write`. If the broker is
    killed before, `TransactionLog.load` recognizes a commit by its committed message, and a replaced half
    message by its copy.

    It also knows which op messages are still needed after a restart (`begin_for`).
    """

    def __init__(
        self,
        store: MessageStore,
        acks: Acks,
        clock: Clock,
        born_host: bytes,
        request_tick: Callable[[], None],
    ) -> None:
        """Create the writer.

        Args:
            store: appends the op messages.
            acks: delays responses until the op messages are confirmed.
            clock: for the time at which an op message was created.
            born_host: the broker's address, packed.
            request_tick: requests a turn of the broker's loop, which confirms the appends.
        """
        self._store = store
        self._acks = acks
        self._clock = clock
        self._born_host = born_host
        self._request_tick = request_tick
        self._offsets: list[int] = []
        self._waiting: list[PendingAck] = []
        self._scheduled: asyncio.Handle | None = None
        self._begin = 0
        # For each op message its offset, and the largest half-queue offset in it.
        self._written: deque[tuple[int, int]] = deque()

    def restart(self, begin: int) -> None:
        """Forget all recorded and unwritten op messages.

        `begin` is the offset of the first op message that may still be needed.
        """
        self._begin = begin
        self._written.clear()
        # The half messages at these offsets may be others by now.
        self._offsets, self._waiting, waiting = [], [], self._waiting
        for ack in waiting:
            ack(StoreError("the outcome of the transaction was not stored", self._store.root))

    def note(self, op_offset: int, half_offsets: list[int]) -> None:
        """Record the op message at `op_offset`, which finishes the half messages at `half_offsets`."""
        self._written.append((op_offset, max(half_offsets, default=-1)))

    def begin_for(self, half_begin: int) -> int:
        """Return the offset of the first op message that is still needed.

        An op message is needed if it marks a half message at or after `half_begin` as finished.
        """
        while self._written and self._written[0][1] < half_begin:
            self._begin = self._written.popleft()[0] + 1
        return self._begin

    def add(self, half_offset: int, ack: PendingAck | None = None, *, is_urgent: bool = False) -> None:
        """Add the half message at `half_offset` to the next op message; call `ack` when it is confirmed.

        With `ack` or `is_urgent`, the op message is appended in this turn, otherwise it may be later.
        """
        self._offsets.append(half_offset)
        if ack is not None:
            self._waiting.append(ack)
        is_due = is_urgent or ack is not None or len(self._offsets) >= OFFSETS_PER_OP
        if is_due and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self.write)

    def write(self) -> None:
        """Append the scheduled op messages. After an error, the next call appends them again."""
        self._scheduled = None
        offsets, waiting = self._offsets, self._waiting
        self._offsets, self._waiting = [], []
        end = 0
        try:
            for body in op_bodies(offsets):
                result = self._store.append(op_draft(body, self._clock.wall_ms(), self._born_host))
                self.note(result.queue_offset, finished_offsets(body))
                offsets = offsets[len(finished_offsets(body)) :]
                end = result.physical_offset + result.size_bytes
        except StoreError as error:
            _log.warning("op_message_failed", transactions=len(offsets), error=str(error))
            self._offsets = offsets + self._offsets
            for ack in waiting:
                ack(error)
            return
        for ack in waiting:
            self._acks.when_confirmed(end, ack)
        if end:
            self._request_tick()
