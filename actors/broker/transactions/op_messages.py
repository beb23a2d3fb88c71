"""Op messages: they name the half messages of finished transactions (store format 11.3).

    RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0, tag `d`, body `12,13,`: queue offsets of half messages

RocketMQ before 5.1 writes one offset per op message, without a comma.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from actors.broker.metadata.topics import TRANSACTION_OP_TOPIC
from actors.broker.sending.acks import Acks, PendingAck
from actors.broker.transactions.half_messages import HALF_QUEUE_ID
from store.clock import Clock
from store.logs import get_logger
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

REMOVED_TAG = "d"
OP_BODY_MAX_BYTES = 4096  # RocketMQ's transactionOpMsgMaxSize
_OFFSET = re.compile(rb"[0-9]{1,18}")
_PROPERTIES = encode_properties({MessageConst.TAGS: REMOVED_TAG, MessageConst.WAIT: "true"})


def op_bodies(offsets: Iterable[int]) -> Iterator[bytes]:
    """Yield the bodies of as few op messages as possible for these half messages."""
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
    """Return the half-message offsets of an op message; entries that are not offsets are skipped."""
    return [int(entry) for entry in body.split(b",") if _OFFSET.fullmatch(entry)]


def op_draft(body: bytes, born_ms: int, born_host: bytes) -> RecordDraft:
    """Return the record of an op message."""
    return RecordDraft(
        TRANSACTION_OP_TOPIC,
        HALF_QUEUE_ID,
        body,
        _PROPERTIES,
        born_timestamp=born_ms,
        born_host=born_host,
    )


class OpWriter:
    """Appends the op messages of one broker: one for all transactions that finish in one turn."""

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
        # Each op message: its offset, and the largest offset of a half message in it.
        self._written: deque[tuple[int, int]] = deque()

    def restart(self, begin: int) -> None:
        """Forget the op messages before `begin`, the first one that may still be needed."""
        self._begin = begin
        self._written.clear()

    def note(self, op_offset: int, half_offsets: list[int]) -> None:
        """Record an op message, so that `begin_for` does not pass it while it is needed."""
        self._written.append((op_offset, max(half_offsets, default=-1)))

    def begin_for(self, half_begin: int) -> int:
        """Return the offset of the first op message that names a half message from `half_begin` on."""
        while self._written and self._written[0][1] < half_begin:
            self._begin = self._written.popleft()[0] + 1
        return self._begin

    def add(self, half_offset: int, ack: PendingAck | None = None) -> None:
        """Write an op message for a half message soon; send the response `ack` when it is confirmed."""
        self._offsets.append(half_offset)
        if ack is not None:
            self._waiting.append(ack)
        if self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self.write)

    def write(self) -> None:
        """Append the op messages now. If the store refuses, the next call tries again."""
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
