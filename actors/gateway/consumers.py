"""Consumers: the rpcs QueryAssignment, ReceiveMessage and those about received messages, and their end.

ReceiveMessage ──► POP_MESSAGE, POP_LITE_MESSAGE to the queue's broker ──► status, messages, time
AckMessage, ChangeInvisibleDuration ──► ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME to the handle's broker
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from actors.gateway.access import Access
from actors.gateway.callers import Caller
from actors.gateway.groups import GatewayGroup, GatewayGroups, group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.lite import LiteSubscriptions
from actors.gateway.members import GatewayMembers
from actors.gateway.messages import ID_CHARS_MAX, message_of
from actors.gateway.proto.definition_pb2 import (
    Assignment,
    Broker,
    Code,
    FilterType,
    Message,
    MessageQueue,
    Permission,
    Resource,
)
from actors.gateway.proto.service_pb2 import (
    AckMessageEntry,
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from actors.gateway.receipts import INVISIBLE_MS, RENEWAL_MS_MAX, Handle, ReceiptRenewals, Renewal
from actors.gateway.receive_times import check_invisible_ms, invisible_ms, polling_ms
from actors.gateway.statuses import RpcFailed, check_length, ok, status_of, status_of_all, status_of_handle
from actors.gateway.topics import GatewayTopics, check_endpoints, topic_name
from actors.transport.client import RemotingClient
from actors.wire.bodies.lite import popped_lite_messages
from actors.wire.bodies.pops import (
    INIT_MAX,
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponse,
    PopMessageHeader,
    popped_messages,
)
from actors.wire.bodies.routes import MASTER_ID, PERM_READ, PERM_WRITE
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import Header
from actors.wire.headers import ConsumerSendMsgBackHeader
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.compression import try_decompress
from store.message.message import MessageExt
from store.message.pop_records import Receipt, real_topic
from store.message.properties import MessageConst
from store.message.sys_flag import is_compressed
from store.store_errors import MessageInvalid, RecordDamaged

_log = get_logger(__name__)

BATCH_MAX: Final = 32
RETURNED_MS: Final = 1000
ACKS_MAX: Final = 1024
RENEWED_AT_ONCE: Final = 4096
"""Renewals that wait for brokers at the same time: a broker that does not respond delays no others."""
_EMPTY: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
_TO_DEAD_LETTERS: Final = -1
_ANY_QUEUE: Final = -1


class _Claimed(NamedTuple):
    """A popped message."""

    message: MessageExt
    handle: Handle


class _HasHandle(Protocol):
    @property
    def receipt_handle(self) -> str: ...
    @property
    def lite_topic(self) -> str: ...


class Consumers:
    """The consumers that are connected to one gateway."""

    def __init__(
        self,
        access: Access,
        topics: GatewayTopics,
        groups: GatewayGroups,
        members: GatewayMembers,
        renewals: ReceiptRenewals,
        lite: LiteSubscriptions,
        client: RemotingClient,
        clock: Clock,
        timeout_ms: int,
    ) -> None:
        """Create the object; `timeout_ms` limits each request to a broker, beyond the time that it waits."""
        self._access = access
        self._topics = topics
        self._groups = groups
        self._members = members
        self._client = client
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._renewals = renewals
        self._lite = lite

    async def query_assignment(
        self, call: Call, caller: Caller, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Handle QueryAssignment: one per broker, or per queue for a FIFO group that is no lite group."""
        group, name = group_name(request.group), topic_name(request.topic)
        check_endpoints(request.endpoints)
        topic = await self._topics.get(name)
        settings = await self._groups.get(group, name)
        by_queue = settings.is_fifo and not settings.bound_to
        response = QueryAssignmentResponse(status=ok())
        places = [
            (data.broker_name, data.perm, range(data.read_queue_nums) if by_queue else (_ANY_QUEUE,))
            for data in topic.queue_datas
            if data.broker_name in topic.masters and data.perm & PERM_READ
        ]
        if not by_queue:
            places += [(name, PERM_READ | PERM_WRITE, (_ANY_QUEUE,)) for name in topic.absent]
        for broker_name, perm, queue_ids in places:
            broker = Broker(name=broker_name, id=MASTER_ID, endpoints=request.endpoints)
            permission = Permission.READ_WRITE if perm & PERM_WRITE else Permission.READ
            for queue_id in queue_ids:
                queue = MessageQueue(topic=request.topic, id=queue_id, permission=permission, broker=broker)
                response.assignments.append(Assignment(message_queue=queue))
        if not response.assignments:
            raise RpcFailed(Code.FORBIDDEN, f"topic {name} has no readable queue")
        return response

    async def receive(self, call: Call) -> None:
        """Handle ReceiveMessage: the status, then messages, then the time of delivery."""
        try:
            caller = await self._access.caller(call)
            request: ReceiveMessageRequest = await call.request()
            messages = await self._popped(call, caller, request)
        except (RpcFailed, Refused, RemotingError) as error:
            await call.send(ReceiveMessageResponse(status=status_of(error)))
        else:
            status = ok()
            if not messages:
                status.code, status.message = Code.MESSAGE_NOT_FOUND, "no new message"
            await call.send(ReceiveMessageResponse(status=status))
            await self._deliver(call, caller, request, messages)
        last = ReceiveMessageResponse()
        last.delivery_timestamp.FromMilliseconds(self._clock.wall_ms())
        await call.send(last)

    async def ack(self, call: Call, caller: Caller, request: AckMessageRequest) -> AckMessageResponse:
        """Handle AckMessage: each entry has its own result."""
        group, topic = group_name(request.group), topic_name(request.topic)
        if not 0 < len(request.entries) <= ACKS_MAX:
            raise RpcFailed(
                Code.BAD_REQUEST, f"the request has {len(request.entries)} acks, not 1 to {ACKS_MAX}"
            )
        entries = [await self._ack(caller, group, topic, entry) for entry in request.entries]
        return AckMessageResponse(status=status_of_all(entries), entries=entries)

    async def change(
        self, call: Call, caller: Caller, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Handle ChangeInvisibleDuration: the response has the new handle, or the old one after an error."""
        try:
            group, topic = group_name(request.group), topic_name(request.topic)
            wanted_ms = request.invisible_duration.ToMilliseconds()
            check_invisible_ms(wanted_ms, 0)
            handle = await self._claimed(caller, group, request)
            is_suspension = request.suspend and bool(handle.lite_topic)
            if is_suspension:  # of all messages that were received with it
                self._renewals.forget_batch(group, handle)
            changed = await self._change(
                caller, group, topic, handle, max(wanted_ms, 1), is_suspension=is_suspension
            )
        except (RpcFailed, Refused, RemotingError) as error:
            return ChangeInvisibleDurationResponse(
                status=status_of_handle(error, Code.INVALID_RECEIPT_HANDLE),
                receipt_handle=request.receipt_handle,
            )
        return ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    async def dead_letter(
        self, call: Call, caller: Caller, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Handle ForwardMessageToDeadLetterQueue: copy the message there, then ack it."""
        group, topic = group_name(request.group), topic_name(request.topic)
        check_length(request.message_id, ID_CHARS_MAX, Code.ILLEGAL_MESSAGE_ID, "message id")
        handle = await self._renewals.take(caller, group, request.receipt_handle, request.lite_topic)
        try:
            await self._move_to_dead_letters(caller, group, topic, handle, request.message_id)
            status = ok()
        except Refused as error:
            status = status_of_handle(error, Code.INVALID_RECEIPT_HANDLE)
        return ForwardMessageToDeadLetterQueueResponse(status=status)

    async def terminate(
        self, call: Call, caller: Caller, request: NotifyClientTerminationRequest
    ) -> NotifyClientTerminationResponse:
        """Handle NotifyClientTermination: unfinished messages of a consumer become visible again."""
        self._renewals.forget_client(caller)
        self._client.hub.spawn(self.renew())
        if request.HasField("group"):
            await self._lite.leave(caller, group_name(request.group))
        return NotifyClientTerminationResponse(status=ok())

    async def renew(self) -> None:
        """Extend the invisible time of the messages that push consumers work on, or release them."""
        due = self._renewals.due()
        for first in range(0, len(due), RENEWED_AT_ONCE):
            await asyncio.gather(*(self._renew(each) for each in due[first : first + RENEWED_AT_ONCE]))

    async def _renew(self, renewal: Renewal) -> None:
        renewal.changed.clear()
        try:
            renewal.handle = await self._change(
                renewal.caller,
                renewal.group,
                renewal.topic,
                renewal.handle,
                RETURNED_MS if renewal.is_released else INVISIBLE_MS,
            )
        except (RpcFailed, Refused, RemotingError) as error:
            _log.info("receipt_not_renewed", group=renewal.group, topic=renewal.topic, error=str(error))
        finally:
            renewal.changed.set()

    async def _popped(self, call: Call, caller: Caller, request: ReceiveMessageRequest) -> list[_Claimed]:
        # Not cancelled with the call: the broker may have claimed messages already.
        pop = asyncio.ensure_future(self._pop(call, caller, request))
        try:
            return await asyncio.shield(pop)
        except asyncio.CancelledError:
            self._client.hub.spawn(self._return_popped(caller, request, pop))
            raise

    async def _pop(self, call: Call, caller: Caller, request: ReceiveMessageRequest) -> list[_Claimed]:
        group, name = group_name(request.group), topic_name(request.message_queue.topic)
        check_length(request.attempt_id, ID_CHARS_MAX, Code.BAD_REQUEST, "attempt id")
        topic = await self._topics.get(name)
        settings = await self._groups.get(group, name)
        broker_name = request.message_queue.broker.name or next(iter(topic.masters))
        address = topic.master(broker_name, Code.BAD_REQUEST)
        header = PopMessageHeader(
            group,
            name,
            _ANY_QUEUE,  # as in RocketMQ's proxy: a client names a queue, but all of its broker are read
            min(max(request.batch_size, 1), BATCH_MAX),
            invisible_ms(request),
            polling_ms(call, request, self._members.request_timeout_ms(caller.client_id)),
            init_mode=INIT_MAX,
            exp_type="SQL92" if request.filter_expression.type == FilterType.SQL else "TAG",
            exp=request.filter_expression.expression or "*",
            order=settings.is_fifo,
            attempt_id=request.attempt_id,
        )
        try:
            if settings.bound_to:
                response = await self._lite.pop(caller, address, header)
            else:
                command = caller.request(RequestCode.POP_MESSAGE, header)
                response = await self._client.invoke(address, command, header.poll_time + self._timeout_ms)
        except RemotingError as error:
            self._topics.failed(name, error)
            raise
        if response.code in _EMPTY:
            return []
        if response.code != ResponseCode.SUCCESS:
            refusal = Refused(response.code, response.remark or "the broker refused the request")
            self._topics.failed(name, refusal)
            raise refusal
        claimed = _received(response, broker_name, is_lite=bool(settings.bound_to))
        return [each for each in claimed if not await self._is_dead(caller, group, name, each, settings)]

    async def _return_popped(
        self, caller: Caller, request: ReceiveMessageRequest, pop: asyncio.Future[list[_Claimed]]
    ) -> None:
        try:
            messages = await pop
        except (RpcFailed, Refused, RemotingError):
            return  # nothing is claimed
        await self._return(caller, request, messages)

    async def _return(
        self, caller: Caller, request: ReceiveMessageRequest, messages: Iterable[_Claimed]
    ) -> None:
        """Make the messages of a call that the client has cancelled visible again."""
        group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        for each in messages:
            try:
                handle = await self._renewals.take(caller, group, each.handle.encode())
                await self._change(caller, group, topic, handle, RETURNED_MS)
            except (RpcFailed, Refused, RemotingError) as error:
                _log.info("message_not_returned", group=group, topic=topic, error=str(error))

    async def _is_dead(
        self, caller: Caller, group: str, topic: str, claimed: _Claimed, settings: GatewayGroup
    ) -> bool:
        """Move a message that was delivered too often to the dead letters; return True if it is there."""
        message = claimed.message
        if message.reconsume_times <= settings.retry_max:
            return False
        try:
            await self._move_to_dead_letters(caller, group, topic, claimed.handle, message.msg_id)
        except (RpcFailed, Refused, RemotingError) as error:
            _log.warning("dead_letter_failed", group=group, topic=topic, error=str(error))
            return False
        return True

    async def _move_to_dead_letters(
        self, caller: Caller, group: str, topic: str, handle: Handle, message_id: str
    ) -> None:
        """Copy a message to the dead letters, and ack it."""
        header = ConsumerSendMsgBackHeader(
            handle.commit_log_offset, group, _TO_DEAD_LETTERS, message_id, topic, False, 0
        )
        await self._ask(caller, topic, handle, RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self._send_ack(caller, group, topic, handle)

    async def _deliver(
        self, call: Call, caller: Caller, request: ReceiveMessageRequest, messages: list[_Claimed]
    ) -> None:
        call.keep(sum(len(each.message.body) for each in messages))
        for index, claimed in enumerate(messages):
            message = claimed.message
            try:
                await _decompress(call, message)
                await call.send(ReceiveMessageResponse(message=self._delivered(caller, request, claimed)))
            except asyncio.CancelledError:
                # With the message that was being sent: the client may not have it.
                self._client.hub.spawn(self._return(caller, request, messages[index:]))
                raise
            call.keep(-len(message.body))
            message.body = b""

    def _delivered(self, caller: Caller, request: ReceiveMessageRequest, claimed: _Claimed) -> Message:
        """Return the message of the protocol, with its handle; begin its renewal for a push consumer."""
        resource: Resource = request.message_queue.topic
        handle = claimed.handle
        message = message_of(claimed.message, resource)
        system = message.system_properties
        system.receipt_handle = handle.encode()
        system.invisible_duration.FromMilliseconds(handle.receipt.invisible_ms)
        if request.auto_renew:
            until_ms = self._clock.wall_ms() + RENEWAL_MS_MAX
            group, topic = group_name(request.group), topic_name(resource)
            self._renewals.add(Renewal(caller, group, topic, handle, until_ms))
        return message

    async def _ack(
        self, caller: Caller, group: str, topic: str, entry: AckMessageEntry
    ) -> AckMessageResultEntry:
        try:
            check_length(entry.message_id, ID_CHARS_MAX, Code.ILLEGAL_MESSAGE_ID, "message id")
            handle = await self._claimed(caller, group, entry)
            await self._send_ack(caller, group, topic, handle)
            status = ok()
        except (RpcFailed, Refused, RemotingError) as error:
            status = status_of_handle(error, Code.INVALID_RECEIPT_HANDLE)
        return AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    async def _claimed(self, caller: Caller, group: str, given: _HasHandle) -> Handle:
        """Return the present handle for the one that the client has. Raises RpcFailed if it has expired.

        The broker does not report it: as in RocketMQ, a late ack has no effect there.
        """
        text = given.receipt_handle
        handle = await self._renewals.take(caller, group, text, given.lite_topic)
        late_ms = self._clock.wall_ms() - handle.visible_ms
        if late_ms >= 0:
            raise RpcFailed(
                Code.INVALID_RECEIPT_HANDLE,
                f"receipt handle is expired: {text[:100]!r} was valid until {late_ms} ms ago, and the "
                "message is delivered again; receive with a longer invisible duration, or extend it in time",
            )
        return handle

    async def _send_ack(self, caller: Caller, group: str, topic: str, handle: Handle) -> None:
        receipt = handle.receipt
        header = AckMessageHeader(
            group, real_topic(topic, group, receipt.kind), receipt.queue_id, receipt.encode(), receipt.offset,
            handle.lite_topic,
        )  # fmt: skip
        await self._ask(caller, topic, handle, RequestCode.ACK_MESSAGE, header)

    async def _change(
        self,
        caller: Caller,
        group: str,
        topic: str,
        handle: Handle,
        invisible_ms: int,
        *,
        is_suspension: bool = False,
    ) -> Handle:
        receipt = handle.receipt
        header = ChangeInvisibleTimeHeader(
            group, real_topic(topic, group, receipt.kind), receipt.queue_id, receipt.encode(), receipt.offset,
            invisible_ms, handle.lite_topic, is_suspension,
        )  # fmt: skip
        response = await self._ask(caller, topic, handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = ChangeInvisibleTimeResponse.from_ext(response.ext)
        if changed.pop_time is None:
            return handle
        return handle._replace(
            receipt=receipt._replace(
                start_offset=receipt.offset,
                pop_ms=changed.pop_time,
                invisible_ms=changed.invisible_time or invisible_ms,
                revive_queue=receipt.revive_queue if changed.revive_qid is None else changed.revive_qid,
            )
        )

    async def _ask(
        self, caller: Caller, topic: str, handle: Handle, code: RequestCode, header: Header
    ) -> RemotingCommand:
        """Return the response of the broker that a message is from."""
        broker_name = handle.receipt.broker_name
        address = (await self._topics.get(topic)).master(broker_name, Code.INVALID_RECEIPT_HANDLE)
        try:
            return await self._client.ask(address, caller.request(code, header), self._timeout_ms)
        except (Refused, RemotingError) as error:
            self._topics.failed(topic, error)
            raise


async def _decompress(call: Call, message: MessageExt) -> None:
    """Replace a compressed body; one that cannot be decompressed stays as it is."""
    if is_compressed(message.sys_flag):
        body, sys_flag = message.body, message.sys_flag
        message.body, message.body_error = await call.in_thread(lambda: try_decompress(body, sys_flag))
        call.keep(len(message.body) - len(body))


def _received(response: RemotingCommand, broker_name: str, *, is_lite: bool) -> list[_Claimed]:
    """Return the messages in the response to a pop, with their handles."""
    messages_of = popped_lite_messages if is_lite else popped_messages
    try:
        return [
            _Claimed(
                message,
                Handle(
                    Receipt.decode(message.properties[MessageConst.POP_CK]),
                    message.commit_log_offset,
                    message.properties[MessageConst.LITE_TOPIC] if is_lite else "",
                ),
            )
            for message in messages_of(response.ext, response.body, broker_name, decompresses=False)
        ]
    except (RecordDamaged, MessageInvalid, KeyError, ValueError) as error:
        raise RpcFailed(
            Code.INTERNAL_SERVER_ERROR, f"the response of broker {broker_name} is damaged: {error!r}"
        ) from error
