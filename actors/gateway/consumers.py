"""Consumers: the rpcs QueryAssignment, ReceiveMessage, AckMessage, ChangeInvisibleDuration and dead letters.

ReceiveMessage ──► POP_MESSAGE to the queue's broker ──► status, messages with handles, time
AckMessage, ChangeInvisibleDuration ──► ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME to the handle's broker
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from actors.gateway.access import Access
from actors.gateway.callers import Caller
from actors.gateway.groups import GatewayGroup, GatewayGroups, group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.members import GatewayMembers
from actors.gateway.messages import ID_CHARS_MAX, message_of, refuse_lite
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
    QueryAssignmentRequest,
    QueryAssignmentResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
)
from actors.gateway.receipts import INVISIBLE_MS, RENEWAL_MS_MAX, Handle, ReceiptRenewals, Renewal
from actors.gateway.statuses import RpcFailed, check_length, ok, status_of, status_of_all, status_of_handle
from actors.gateway.topics import GatewayTopics, check_endpoints, topic_name
from actors.transport.client import RemotingClient
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
POLLING_MS_MIN: Final = 5_000
"""Of a call that names no polling time."""
POLLING_MS_MAX: Final = 20_000
POLLING_RESERVE_MS: Final = 500
"""Time of a call's deadline that is left for the response."""
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
RETURNED_MS: Final = 1000
ACKS_MAX: Final = 1024
RENEWED_AT_ONCE: Final = 4096
"""Renewals that wait for brokers at the same time: a broker that does not respond delays no others."""
_EMPTY: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)
_TO_DEAD_LETTERS: Final = -1
_ANY_QUEUE: Final = -1


class Consumers:
    """The consumers that are connected to one gateway."""

    def __init__(
        self,
        access: Access,
        topics: GatewayTopics,
        groups: GatewayGroups,
        members: GatewayMembers,
        renewals: ReceiptRenewals,
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

    async def query_assignment(
        self, call: Call, caller: Caller, request: QueryAssignmentRequest
    ) -> QueryAssignmentResponse:
        """Handle QueryAssignment: one assignment per broker, or per queue for a FIFO group."""
        group, name = group_name(request.group), topic_name(request.topic)
        check_endpoints(request.endpoints)
        topic = await self._topics.get(name)
        is_fifo = (await self._groups.get(group, name)).is_fifo
        response = QueryAssignmentResponse(status=ok())
        for data in topic.queue_datas:
            if data.broker_name in topic.masters and data.perm & PERM_READ:
                broker = Broker(name=data.broker_name, id=MASTER_ID, endpoints=request.endpoints)
                permission = Permission.READ_WRITE if data.perm & PERM_WRITE else Permission.READ
                for queue_id in range(data.read_queue_nums) if is_fifo else (_ANY_QUEUE,):
                    queue = MessageQueue(
                        topic=request.topic, id=queue_id, permission=permission, broker=broker
                    )
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
        for each in request.entries:
            refuse_lite(each)
        entries = [await self._ack(caller, group, topic, entry) for entry in request.entries]
        return AckMessageResponse(status=status_of_all(entries), entries=entries)

    async def change(
        self, call: Call, caller: Caller, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Handle ChangeInvisibleDuration: the response has the new handle, or the old one after an error."""
        refuse_lite(request)
        try:
            group, topic = group_name(request.group), topic_name(request.topic)
            invisible_ms = request.invisible_duration.ToMilliseconds()
            _check_invisible_ms(invisible_ms, 0)
            handle = await self._claimed(caller, group, request.receipt_handle)
            changed = await self._change(caller, group, topic, handle, max(invisible_ms, 1))
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
        refuse_lite(request)
        group, topic = group_name(request.group), topic_name(request.topic)
        check_length(request.message_id, ID_CHARS_MAX, Code.ILLEGAL_MESSAGE_ID, "message id")
        handle = await self._renewals.take(caller, group, request.receipt_handle)
        try:
            await self._move_to_dead_letters(caller, group, topic, handle, request.message_id)
            status = ok()
        except Refused as error:
            status = status_of_handle(error, Code.INVALID_RECEIPT_HANDLE)
        return ForwardMessageToDeadLetterQueueResponse(status=status)

    async def renew(self) -> None:
        """Extend the invisible time of the messages that push consumers work on."""
        due = self._renewals.due()
        for first in range(0, len(due), RENEWED_AT_ONCE):
            await asyncio.gather(*(self._renew(each) for each in due[first : first + RENEWED_AT_ONCE]))

    async def _renew(self, renewal: Renewal) -> None:
        renewal.changed.clear()
        try:
            renewal.handle = await self._change(
                renewal.caller, renewal.group, renewal.topic, renewal.handle, INVISIBLE_MS
            )
        except (RpcFailed, Refused, RemotingError) as error:
            _log.info("receipt_not_renewed", group=renewal.group, topic=renewal.topic, error=str(error))
        finally:
            renewal.changed.set()

    async def _popped(self, call: Call, caller: Caller, request: ReceiveMessageRequest) -> list[MessageExt]:
        # Not cancelled with the call: the broker may have claimed messages already.
        pop = asyncio.ensure_future(self._pop(call, caller, request))
        try:
            return await asyncio.shield(pop)
        except asyncio.CancelledError:
            self._client.hub.spawn(self._return_popped(caller, request, pop))
            raise

    async def _pop(self, call: Call, caller: Caller, request: ReceiveMessageRequest) -> list[MessageExt]:
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
            _invisible_ms(request),
            _polling_ms(call, request, self._members.request_timeout_ms(caller.client_id)),
            init_mode=INIT_MAX,
            exp_type="SQL92" if request.filter_expression.type == FilterType.SQL else "TAG",
            exp=request.filter_expression.expression or "*",
            order=settings.is_fifo,
            attempt_id=request.attempt_id,
        )
        command = caller.request(RequestCode.POP_MESSAGE, header)
        response = await self._client.invoke(address, command, header.poll_time + self._timeout_ms)
        if response.code in _EMPTY:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise Refused(response.code, response.remark or "the broker refused the request")
        messages = _received(response, broker_name)
        return [each for each in messages if not await self._is_dead(caller, group, name, each, settings)]

    async def _return_popped(
        self, caller: Caller, request: ReceiveMessageRequest, pop: asyncio.Future[list[MessageExt]]
    ) -> None:
        try:
            messages = await pop
        except (RpcFailed, Refused, RemotingError):
            return  # nothing is claimed
        await self._return(caller, request, messages)

    async def _return(
        self, caller: Caller, request: ReceiveMessageRequest, messages: Iterable[MessageExt]
    ) -> None:
        """Make the messages of a call that the client has cancelled visible again."""
        group, topic = group_name(request.group), topic_name(request.message_queue.topic)
        for message in messages:
            try:
                handle = await self._renewals.take(caller, group, _handle_of(message).encode())
                await self._change(caller, group, topic, handle, RETURNED_MS)
            except (RpcFailed, Refused, RemotingError) as error:
                _log.info("message_not_returned", group=group, topic=topic, error=str(error))

    async def _is_dead(
        self, caller: Caller, group: str, topic: str, message: MessageExt, settings: GatewayGroup
    ) -> bool:
        """Move a message that was delivered too often to the dead letters; return True if it is there."""
        if message.reconsume_times <= settings.retry_max:
            return False
        try:
            await self._move_to_dead_letters(caller, group, topic, _handle_of(message), message.msg_id)
        except (RpcFailed, Refused, RemotingError) as error:
            _log.warning("dead_letter_failed", group=group, topic=topic, error=str(error))
            return False
        return True

    async def _move_to_dead_letters(
        self, caller: Caller, group: str, topic: str, handle: Handle, message_id: str
    ) -> None:
        """Copy a message to the dead letters, and ack it."""
        address = await self._address(topic, handle.receipt.broker_name)
        header = ConsumerSendMsgBackHeader(
            handle.commit_log_offset, group, _TO_DEAD_LETTERS, message_id, topic, False, 0
        )
        command = caller.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        await self._client.ask(address, command, self._timeout_ms)
        await self._send_ack(caller, group, topic, handle)

    async def _deliver(
        self, call: Call, caller: Caller, request: ReceiveMessageRequest, messages: list[MessageExt]
    ) -> None:
        call.keep(sum(len(message.body) for message in messages))
        for index, message in enumerate(messages):
            try:
                await _decompress(call, message)
                await call.send(ReceiveMessageResponse(message=self._delivered(caller, request, message)))
            except asyncio.CancelledError:
                # With the message that was being sent: the client may not have it.
                self._client.hub.spawn(self._return(caller, request, messages[index:]))
                raise
            call.keep(-len(message.body))
            message.body = b""

    def _delivered(self, caller: Caller, request: ReceiveMessageRequest, record: MessageExt) -> Message:
        """Return the message of the protocol, with its handle; begin its renewal for a push consumer."""
        resource: Resource = request.message_queue.topic
        handle = _handle_of(record)
        message = message_of(record, resource)
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
            handle = await self._claimed(caller, group, entry.receipt_handle)
            await self._send_ack(caller, group, topic, handle)
            status = ok()
        except (RpcFailed, Refused, RemotingError) as error:
            status = status_of_handle(error, Code.INVALID_RECEIPT_HANDLE)
        return AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    async def _claimed(self, caller: Caller, group: str, text: str) -> Handle:
        """Return the present handle for the one that the client has. Raises RpcFailed if it has expired.

        The broker does not report it: as in RocketMQ, a late ack has no effect there.
        """
        handle = await self._renewals.take(caller, group, text)
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
            group, real_topic(topic, group, receipt.kind), receipt.queue_id, receipt.encode(), receipt.offset
        )
        command = caller.request(RequestCode.ACK_MESSAGE, header)
        await self._client.ask(await self._address(topic, receipt.broker_name), command, self._timeout_ms)

    async def _change(
        self, caller: Caller, group: str, topic: str, handle: Handle, invisible_ms: int
    ) -> Handle:
        receipt = handle.receipt
        header = ChangeInvisibleTimeHeader(
            group, real_topic(topic, group, receipt.kind), receipt.queue_id, receipt.encode(), receipt.offset,
            invisible_ms,
        )  # fmt: skip
        command = caller.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        address = await self._address(topic, receipt.broker_name)
        response = await self._client.ask(address, command, self._timeout_ms)
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

    async def _address(self, topic: str, broker_name: str) -> str:
        return (await self._topics.get(topic)).master(broker_name, Code.INVALID_RECEIPT_HANDLE)


def _handle_of(message: MessageExt) -> Handle:
    return Handle(Receipt.decode(message.properties[MessageConst.POP_CK]), message.commit_log_offset)


async def _decompress(call: Call, message: MessageExt) -> None:
    """Replace a compressed body; one that cannot be decompressed stays as it is."""
    if is_compressed(message.sys_flag):
        body, sys_flag = message.body, message.sys_flag
        message.body, message.body_error = await call.in_thread(lambda: try_decompress(body, sys_flag))
        call.keep(len(message.body) - len(body))


def _received(response: RemotingCommand, broker_name: str) -> list[MessageExt]:
    """Return the messages in the response to a pop, each with its receipt as property POP_CK."""
    try:
        return popped_messages(response.ext, response.body, broker_name, decompresses=False)
    except (RecordDamaged, MessageInvalid, KeyError, ValueError) as error:
        raise RpcFailed(
            Code.INTERNAL_SERVER_ERROR, f"the response of broker {broker_name} is damaged: {error!r}"
        ) from error


def _invisible_ms(request: ReceiveMessageRequest) -> int:
    if request.auto_renew:
        return INVISIBLE_MS
    invisible_ms = request.invisible_duration.ToMilliseconds()
    _check_invisible_ms(invisible_ms, INVISIBLE_MS_MIN)
    return invisible_ms


def _check_invisible_ms(invisible_ms: int, least_ms: int) -> None:
    if invisible_ms < least_ms:
        raise RpcFailed(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too small. min is {least_ms}: it is {invisible_ms} ms",
        )
    if invisible_ms > INVISIBLE_MS_MAX:
        raise RpcFailed(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}: it is {invisible_ms} ms",
        )


def _polling_ms(call: Call, request: ReceiveMessageRequest, request_timeout_ms: int) -> int:
    """Return how long the broker may hold the pop, so that the response arrives before the deadline.

    Old SDKs name no time: their deadline is the time that they want, plus their request timeout.
    """
    given = request.long_polling_timeout.ToMilliseconds()
    left_ms = POLLING_MS_MAX if call.remaining_s is None else int(call.remaining_s * 1000)
    wanted = given
    if not request.HasField("long_polling_timeout"):
        wanted = max(left_ms - request_timeout_ms // 2, POLLING_MS_MIN)
    if given < 0 or left_ms <= POLLING_RESERVE_MS:
        raise RpcFailed(
            Code.ILLEGAL_POLLING_TIME,
            "The deadline time remaining is not enough for polling, please check network condition: the "
            f"polling time is {given} ms, the remaining one {left_ms} ms",
        )
    return min(wanted, POLLING_MS_MAX, left_ms - POLLING_RESERVE_MS)
