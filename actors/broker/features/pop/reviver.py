"""Reviver: makes messages visible again when their claims are over, and stores claims that live long.

    due claim  ──► each open message: read, append to the retry topic ──► done; waiting pops are resumed
    old claim  ──► check point in the revive topic ──────────────────────► safe, the commit offset advances
    acks of a stored claim ──► an ack in the revive topic
    stop       ──► a check point for each claim that exists only in memory

A message is done, or safe, when its record is confirmed; if acks are logged too, when it is appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.features.pop.claim_log import ClaimLog
from actors.broker.features.pop.claims import Claim, ClaimQueue, Claims
from actors.broker.features.pop.retries import Retries
from actors.wire.remoting_errors import Refused
from store.commitlog.positions import Callback
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.pop_records import CheckPoint
from store.message.record import decode_record
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

RETRY_PAUSE_MS: Final = 1000
MESSAGES_PER_SLICE: Final = 32
CONFIRM_TIMEOUT_S: Final = 2.0


class Reviver:
    """Revives the messages of one broker's claims."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        offsets: ConsumerOffsets,
        claims: Claims,
        log: ClaimLog,
        retries: Retries,
        wake: Callable[[ClaimQueue], None],
        request_tick: Callable[[], None],
    ) -> None:
        """Create the service.

        Args:
            store: has the messages, and confirms appends.
            reads: reads messages without blocking the loop.
            offsets: has the pending resets, which end the claims of a queue.
            claims: the claims in memory.
            log: stores check points and acks.
            retries: stores messages for another delivery.
            wake: resumes a waiting pop of the group when a message of the queue is visible again.
            request_tick: requests a turn of the broker's loop, which confirms the appends.
        """
        self._store = store
        self._reads = reads
        self._offsets = offsets
        self._claims = claims
        self._log = log
        self._retries = retries
        self._wake = wake
        self._request_tick = request_tick
        self._handled = 0
        self.revived = 0
        """Number of messages that became visible again because they were not acked in time."""
        self.lost = 0
        """Number of messages that were deleted before their claim was over."""

    async def tick(self) -> None:
        """Handle the claims that are due or old now; to be called several times per second."""
        written, due = self._store.positions.written, self._claims.take_due()
        for number, claim in enumerate(due):
            if not await self._revive_claim(claim):
                for each in due[number + 1 :]:
                    self._claims.put_back(each, RETRY_PAUSE_MS)
                break
        self._store_claims(self._claims.take_old())
        self._claims.expire()
        if self._store.positions.written > written:
            self._request_tick()

    def record_acks(self) -> None:
        """Record the acks of stored claims; to be called about once per second."""
        self.record()

    def record(self) -> StoreError | None:
        """Record the acks of stored claims. Return the first error: the next call tries again."""
        found: StoreError | None = None
        for claim, offsets in self._claims.take_unrecorded():
            try:
                self._log.store_acks(claim.key, offsets, claim.invisible_ms, claim.revive_queue)
            except StoreError as error:
                _log.warning("pop_acks_not_recorded", claim=claim.key, error=str(error))
                self._claims.put_back_unrecorded(claim, offsets)
                found = found or error
        return found

    async def stop(self) -> None:
        """Store all claims and acks, so that the next master knows them, and forget them."""
        self._store_claims(self._claims.take_all())
        self.record_acks()
        are_confirmed = asyncio.Event()  # after the callbacks of the claims
        self._store.on_confirmed(self._store.positions.written, lambda _: are_confirmed.set())
        self._request_tick()
        with suppress(TimeoutError):  # then the commit offsets stay, and the messages are delivered early
            await asyncio.wait_for(are_confirmed.wait(), CONFIRM_TIMEOUT_S)
        self._claims.clear()

    async def revive(self, queue: ClaimQueue, offset: int, pop_ms: int, is_open: Callable[[], bool]) -> int:
        """Append the message at an offset to its retry topic.

        Args:
            is_open: returns False if the message was acked while it was read.

        Returns:
            The end of its new record; 0 if there is nothing to do: the message, its topic or the group is
            deleted, or the message is acked.

        Raises:
            Refused: the retry topic cannot be created, or the disk is too slow.
            StoreError: the store refuses appends.
        """
        if not self._retries.is_wanted(queue):
            return 0
        self._handled += 1
        if self._handled % MESSAGES_PER_SLICE == 0:
            await asyncio.sleep(0)
        message = await self._reads.read(partial(self._message, queue, offset))
        if not is_open():
            return 0
        if message is None:
            self.lost += 1
            _log.warning(
                "popped_message_deleted", topic=queue.topic, group=queue.group, queue_id=queue.queue_id,
                offset=offset,
            )  # fmt: skip
            return 0
        return self._retries.append(queue, message, pop_ms)

    async def _revive_claim(self, claim: Claim) -> bool:
        """Revive the open messages of a claim; return False if the store or the disk refuses that."""
        queue = claim.queue
        if (queue.topic, queue.group, queue.queue_id) in self._offsets.resets:
            self._claims.forget(queue)  # the next pop begins at the new offset
            return True
        for offset in tuple(claim.open):
            try:
                end = await self.revive(queue, offset, claim.key.pop_ms, lambda at=offset: at in claim.open)  # type: ignore[misc]
            except (Refused, StoreError, OSError) as error:
                _log.warning("pop_revival_failed", topic=queue.topic, group=queue.group, error=str(error))
                self._claims.put_back(claim, RETRY_PAUSE_MS)
                return False
            if claim.is_dropped:
                return True
            if not end:
                self._claims.finish(claim, offset)
                continue
            self._when_safe(end, partial(self._revived, claim, offset))
            self._store.on_confirmed(end, partial(self._wake_confirmed, claim.queue))
        return True

    def _when_safe(self, end: int, callback: Callback) -> None:
        """Call back when the record that ends at `end` is confirmed; at once if acks are logged.

        What follows from the record is logged after it, in the same turn. If that waited, the next master or
        leader could have the record without it, and deliver a message twice.
        """
        if self._offsets.acked.is_replicated:
            callback(None)
        else:
            self._store.on_confirmed(end, callback)

    def _revived(self, claim: Claim, offset: int, error: StoreError | None) -> None:
        if error is not None:
            self._claims.put_back(claim, RETRY_PAUSE_MS)
        elif self._claims.finish(claim, offset):
            self.revived += 1

    def _wake_confirmed(self, queue: ClaimQueue, error: StoreError | None) -> None:
        if error is None:
            self._wake(queue)

    def _message(self, queue: ClaimQueue, offset: int) -> MessageExt | None:
        """Return the message at a queue offset, or None if it is deleted. Raises NotResident."""
        found = self._store.get_message(queue.topic, queue.queue_id, offset, 1, 1)
        if not found.slices:
            return None
        message = decode_record(found.slices[0], check_crc=False)
        return message if message.queue_offset == offset else None

    def _store_claims(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.is_stored or claim.is_dropped or not claim.open:
                continue
            try:
                point, end = self._log.store_claim(claim)
            except StoreError as error:  # the commit offset stays: the group pops them again after a crash
                _log.warning("pop_claim_not_stored", claim=claim.key, error=str(error))
                return
            self._when_safe(end, partial(self._stored, claim, point))

    def _stored(self, claim: Claim, point: CheckPoint, error: StoreError | None) -> None:
        if error is None:
            self._claims.stored(claim, point.offsets)
            self.record()  # before the commit offset: the check point does not have the acks since then
