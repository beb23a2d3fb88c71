"""PopAcks: the requests ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME.

claim of this process ──► done in memory
older claim           ──► an ack record in the revive topic
ordered message       ──► `Orders`
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.metadata.topics import REVIVE_QUEUES, Topics
from actors.broker.features.pop.claim_log import ClaimLog
from actors.broker.features.pop.claims import ClaimQueue, Claims, check_invisible_ms
from actors.broker.features.pop.orders import Orders
from actors.broker.features.pop.retries import requested_topic_of
from actors.broker.features.pop.revive_log import ReviveLog
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.wire.bodies.pops import (
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
    decode_batch_acks,
    read_receipt,
)
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target
from store.common.clock import Clock
from store.message.pop_records import MESSAGES_MAX, ORDER_REVIVE_QUEUE, CheckPoint, ClaimKey, Receipt
from store.message_store import MessageStore
from store.store_errors import StoreError

CLOCK_DIFFERENCE_MS: Final = 1_000
"""The clock of the former master or leader may be ahead of this one by so much."""


class LiteAcks(Protocol):
    """Handles the requests about messages of lite topics."""

    def ack(self, header: AckMessageHeader, receipt: Receipt) -> None:
        """Note an ack. Raises Refused."""

    def change(self, header: ChangeInvisibleTimeHeader, receipt: Receipt) -> int | None:
        """Return the invisible time to report, counted from the pop; None without effect. Raises Refused."""


class PopAcks:
    """Request handler for acks of popped messages."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        topics: Topics,
        offsets: ConsumerOffsets,
        claims: Claims,
        orders: Orders,
        log: ClaimLog,
        revive_log: ReviveLog,
        lite: LiteAcks,
        clock: Clock,
    ) -> None:
        """Create the handler, which refuses requests until `start`."""
        self._settings = settings
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._claims = claims
        self._orders = orders
        self._log = log
        self._revive_log = revive_log
        self._lite = lite
        self._clock = clock
        self._earlier_ms = 0
        """Claims whose messages were popped before this time may be those of another process."""
        self._is_serving = False

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode
        change = code.CHANGE_MESSAGE_INVISIBLETIME
        row = partial(RequestRow, is_ack=True, needs_services=True)
        return (
            row(code.ACK_MESSAGE, self.ack, AckMessageHeader, _ack_targets, Cost.CLIENT),
            row(code.BATCH_ACK_MESSAGE, self.batch_ack, None, _batch_targets, Cost.CLIENT),
            row(change, self.change, ChangeInvisibleTimeHeader, _ack_targets, Cost.CLIENT),
        )

    async def start(self) -> None:
        """Accept acks from now on: older claims are those of an earlier process, or another master."""
        ahead_ms = CLOCK_DIFFERENCE_MS if self._offsets.acked.is_replicated else 0
        self._earlier_ms = self._clock.wall_ms() + ahead_ms
        self._is_serving = True

    async def stop(self) -> None:
        """Refuse acks from now on, because the claims are being stored."""
        self._is_serving = False

    def ack(self, context: RequestContext) -> RemotingCommand:
        """Handle ACK_MESSAGE. A second ack, or one after the invisible time, has no effect.

        Raises Refused if the receipt is invalid, or the topic, queue or offset does not exist.
        """
        header: AckMessageHeader = context.header
        receipt = read_receipt(header.extra_info)
        if header.lite_topic:
            self._check_serving()
            self._lite.ack(header, receipt)
            return RemotingCommand.response()
        self._check_queue(header.topic, header.queue_id)
        self._check_offset(header.topic, header.queue_id, header.offset)
        key = ClaimKey(
            header.topic, header.consumer_group, header.queue_id, receipt.start_offset, receipt.pop_ms
        )
        self._ack(key, receipt.invisible_ms, receipt.revive_queue, [header.offset])
        return RemotingCommand.response()

    def batch_ack(self, context: RequestContext) -> RemotingCommand:
        """Handle BATCH_ACK_MESSAGE: acks of several claims; offsets that do not exist are ignored.

        Raises Refused if the body is invalid or empty, or a topic or queue does not exist.
        """
        acks = decode_batch_acks(context.command.body)
        if not acks:
            raise Refused(ResponseCode.NO_MESSAGE, "the request has no acks")
        for each in acks:
            self._check_queue(each.key.topic, each.key.queue_id)
        for each in acks:
            first = self._store.min_offset(each.key.topic, each.key.queue_id)
            end = self._store.max_offset(each.key.topic, each.key.queue_id)
            offsets = [offset for offset in each.offsets if first <= offset <= end]
            if offsets:
                self._ack(each.key, each.invisible_ms, each.revive_queue, offsets)
        return RemotingCommand.response()

    def change(self, context: RequestContext) -> RemotingCommand:
        """Handle CHANGE_MESSAGE_INVISIBLETIME: the message is visible again after another time from now.

        Raises Refused if the receipt or the time is invalid, the topic, queue or offset does not exist, or
        the message is not claimed any more (NO_MESSAGE).
        """
        header: ChangeInvisibleTimeHeader = context.header
        receipt = read_receipt(header.extra_info)
        check_invisible_ms(header.invisible_time, self._settings)
        if header.lite_topic:
            self._check_serving()
            return _changed(receipt, self._lite.change(header, receipt))
        self._check_queue(header.topic, header.queue_id)
        self._check_offset(header.topic, header.queue_id, header.offset, is_readable=True)
        queue = ClaimQueue(header.topic, header.consumer_group, header.queue_id)
        if receipt.revive_queue == ORDER_REVIVE_QUEUE:
            return self._change_ordered(queue, header, receipt)
        try:
            pop_ms = self._changed(queue, header, receipt)
        except StoreError as error:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
        if pop_ms is None:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"the message at offset {header.offset} of {header.topic}@{header.queue_id} is not claimed "
                "with this receipt any more: it was acked, or is visible again",
            )
        changed = ChangeInvisibleTimeResponse(pop_ms, header.invisible_time, receipt.revive_queue)
        return RemotingCommand.response(ext=changed.to_ext())

    def _change_ordered(
        self, queue: ClaimQueue, header: ChangeInvisibleTimeHeader, receipt: Receipt
    ) -> RemotingCommand:
        invisible_ms = self._orders.change(queue, header.offset, receipt.pop_ms, header.invisible_time)
        if invisible_ms is not None:
            self._offsets.acked.note(queue.topic, queue.group)
        return _changed(receipt, invisible_ms)

    def _changed(self, queue: ClaimQueue, header: ChangeInvisibleTimeHeader, receipt: Receipt) -> int | None:
        """Return the pop time of the new claim; None if the message is not claimed. Raises StoreError."""
        offset, invisible_ms = header.offset, header.invisible_time
        key = ClaimKey(*queue, receipt.start_offset, receipt.pop_ms)
        claim = self._claims.find(key)
        pop_ms = self._claims.free_time(queue, offset, self._clock.wall_ms())
        changed_key = ClaimKey(*queue, offset, pop_ms)
        point = CheckPoint(changed_key, invisible_ms, (offset,))
        if claim is not None:
            if offset not in claim.open:
                return None
            if claim.is_stored:  # the new claim has to be safe before the old one is acked
                self._log.store_point(point, claim.revive_queue)
            changed = self._claims.change(claim, offset, pop_ms, invisible_ms)
            if claim.is_stored:
                self._log.own[changed.key] = changed
                self._claims.stored(changed, (offset,))
            return pop_ms
        if not self._is_earlier(key, receipt.invisible_ms):
            return None
        self._check_revive_queue(receipt.revive_queue)
        self._log.store_point(point, receipt.revive_queue)
        self._ack(key, receipt.invisible_ms, receipt.revive_queue, [offset])
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id) or 0
        adopted = self._claims.adopt(changed_key, (offset,), invisible_ms, receipt.revive_queue, committed)
        self._log.own[changed_key] = adopted
        return pop_ms

    def _ack(self, key: ClaimKey, invisible_ms: int, revive_queue: int, offsets: list[int]) -> None:
        if revive_queue == ORDER_REVIVE_QUEUE:
            for offset in offsets:
                self._orders.ack(ClaimQueue(*key[:3]), offset, key.pop_ms)
            return
        claim = self._claims.find(key)
        if claim is not None:
            for offset in offsets:
                self._claims.finish(claim, offset)
        elif self._is_earlier(key, invisible_ms):
            self._check_revive_queue(revive_queue)
            if len(offsets) > MESSAGES_MAX:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{len(offsets)} acks of one claim: a claim has at most {MESSAGES_MAX} messages",
                )
            try:
                self._log.store_acks(key, offsets, invisible_ms, revive_queue)
            except StoreError as error:
                raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
            self._revive_log.ack(key, offsets)
            queue = ClaimQueue(*key[:3])
            committed = self._offsets.query(key.group, key.topic, key.queue_id) or 0
            for offset in offsets:
                self._claims.finish_earlier(queue, offset, committed)

    def _is_earlier(self, key: ClaimKey, invisible_ms: int) -> bool:
        """Return True if the claim may be that of an earlier process, and it is not over.

        Acks of claims of this process that are done need no record.
        """
        return key.pop_ms < self._earlier_ms and key.pop_ms + invisible_ms >= self._clock.wall_ms()

    def _check_revive_queue(self, revive_queue: int) -> None:
        if revive_queue >= REVIVE_QUEUES:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the receipt names the revive queue {revive_queue}: it must be 0 to {REVIVE_QUEUES - 1}",
            )

    def _check_serving(self) -> None:
        if not self._is_serving:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker does not serve acks at present")

    def _check_queue(self, topic_name: str, queue_id: int) -> None:
        self._check_serving()
        topic = self._topics.get(topic_name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic_name}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}]",
            )

    def _check_offset(self, topic: str, queue_id: int, offset: int, *, is_readable: bool = False) -> None:
        first, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if not first <= offset <= end - is_readable:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{first}~{end}",
            )


def _changed(receipt: Receipt, invisible_ms: int | None) -> RemotingCommand:
    """Return the response to a change of an ordered message; `invisible_ms` is None without effect."""
    if invisible_ms is None:
        return RemotingCommand.response()
    changed = ChangeInvisibleTimeResponse(receipt.pop_ms, invisible_ms, receipt.revive_queue)
    return RemotingCommand.response(ext=changed.to_ext())


def _ack_targets(context: DecodedRequest) -> Iterable[Target]:
    return _targets(context.header.consumer_group, context.header.topic)


def _batch_targets(context: DecodedRequest) -> Iterable[Target]:
    acks = decode_batch_acks(context.command.body)
    return [target for each in acks for target in _targets(each.group, each.requested_topic)]


def _targets(group: str, topic: str) -> Iterable[Target]:
    """Return the targets of an ack: a retry topic of POP belongs to the group and the requested topic."""
    requested = requested_topic_of(ClaimQueue(topic, group, 0))
    return (Target(Resource.GROUP, group, Action.SUB), Target(Resource.TOPIC, requested, Action.SUB))
