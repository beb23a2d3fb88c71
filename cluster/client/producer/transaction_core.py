"""TransactionCore: the implementation that the blocking and the asyncio TransactionProducer share.

    begin       send the half message, which is not visible to consumers
    (caller)    execute the local transaction
    end         send END_TRANSACTION: commit or roll back

If the broker does not receive END_TRANSACTION, it sends CHECK_TRANSACTION_STATE to any producer of the group.
This producer calls its check listener and responds with END_TRANSACTION.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import cast

import msgspec

from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CheckTransactionStateHeader, EndTransactionHeader
from cluster.client.config import ProducerConfig
from cluster.client.errors import BrokerBusy, ClientError, ConfigInvalid
from cluster.client.producer.outbound import with_owned_body
from cluster.client.producer.producer_core import ProducerCore, open_producer
from cluster.client.results import SendResult, SendStatus
from cluster.client.transport.backoff import Backoff
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.fetched import decode_messages
from store.message.message import Message, MessageExt
from store.message.message_id import decode_message_id
from store.message.properties import MessageConst
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from store.store_errors import RecordDamaged

_log = get_logger(__name__)

CHECKS_MAX = 2000
"""Maximum number of unfinished checks, as in RocketMQ. The broker repeats checks that are dropped."""


class LocalTransactionState(Enum):
    """Outcome of a local transaction. After UNKNOWN, the broker requests the outcome again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


_SYS_FLAGS = {
    LocalTransactionState.COMMIT: TRANSACTION_COMMIT,
    LocalTransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
}

ExecuteLocal = Callable[[Message], LocalTransactionState | Awaitable[LocalTransactionState]]
CheckListener = Callable[[MessageExt], LocalTransactionState | Awaitable[LocalTransactionState]]


class TransactionSendResult(SendResult, frozen=True):
    """Result of `send_in_transaction`.

    Attributes:
        state: Outcome of the local transaction.

    The inherited `queue_offset` is the offset of the half message, not the offset of the committed message.
    """

    state: LocalTransactionState = LocalTransactionState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Half:
    """A half message that a broker has stored, and the result of sending it."""

    message: Message
    result: SendResult

    @property
    def is_durable(self) -> bool:
        """Return False if the broker has stored the message, but not as durably as configured."""
        return self.result.status is SendStatus.SEND_OK


@dataclass(frozen=True, slots=True)
class TransactionCore(ProducerCore):
    """The resources of an open TransactionProducer, with the requests of its transactions."""

    async def begin(self, message: Message, timeout_ms: int | None) -> Half:
        """Send `message` as a half message, and register with the brokers of its topic.

        Raises ConfigInvalid if the message has a delay level, and the errors of `send`.
        """
        message = with_owned_body(message)
        if message.properties.get(MessageConst.DELAY, "0") != "0":
            raise ConfigInvalid(
                f"a transactional message cannot be delayed, but property {MessageConst.DELAY} is "
                f"{message.properties[MessageConst.DELAY]!r}: send it without a delay level"
            )
        properties = message.properties | {
            MessageConst.TRANSACTION_PREPARED: "true",
            MessageConst.PRODUCER_GROUP: self.config.group,
        }
        properties.setdefault(MessageConst.UNIQ_KEY, self.factory.uniq_keys.next())
        half = Message(message.topic, message.body, properties=properties, flag=message.flag)
        send = self.prepare(half, None, timeout_ms)
        sys_flag = send.outbound.sys_flag | TRANSACTION_PREPARED
        send.outbound = msgspec.structs.replace(send.outbound, sys_flag=sys_flag)
        result = await self.send(send)
        await self.register([send.outbound.topic])
        return Half(half, result)

    async def end(self, half: Half, state: LocalTransactionState) -> TransactionSendResult:
        """Send the outcome to the broker in END_TRANSACTION, unless `state` is UNKNOWN.

        A failed request is logged, not raised, because the broker requests the outcome again later.
        """
        result, topic = half.result, self.names.wrap(half.message.topic)
        if state in _SYS_FLAGS:
            _, position = decode_message_id(result.offset_msg_id)
            command = self._end_command(
                state,
                topic,
                result.transaction_id or result.msg_id,
                result.queue_offset,
                position,
            )
            try:
                await self._send_end(topic, result.queue.broker_name, command)
            except ClientError as error:
                _log.warning(
                    "end_transaction_failed", msg_id=result.msg_id, state=state.value, error=str(error)
                )
        return TransactionSendResult(
            result.status,
            result.msg_id,
            result.queue,
            result.queue_offset,
            result.offset_msg_id,
            result.transaction_id,
            result.region_id,
            result.is_trace_on,
            result.recall_handle,
            state,
        )

    async def _send_end(self, topic: str, broker_name: str, command: RemotingCommand) -> None:
        """Send END_TRANSACTION; while the broker refuses it, wait for its next master.

        It is not repeated after a lost response, because a second commit could store the message twice.
        """
        instance, backoff = self.instance, Backoff()
        deadline_ms = instance.now_ms() + self.config.send_timeout_ms
        while True:
            address = instance.master_of(topic, broker_name)
            try:
                await instance.invoke(address, command)
            except BrokerBusy:
                if instance.now_ms() >= deadline_ms:
                    raise
            else:
                return
            await asyncio.sleep(backoff.next_ms() / 1000)
            await instance.routes.refresh_or_keep(topic)

    async def register_known(self, topics: Iterable[str]) -> None:
        """Fetch the routes of `topics`, and register with their brokers. Log topics without a route."""
        for topic in map(self.names.wrap, topics):
            try:
                await self.instance.routes.get(topic)
            except ClientError as error:
                _log.warning("route_fetch_failed", topic=topic, error=str(error))
            else:
                await self.register([topic])

    def check_end(
        self, state: LocalTransactionState, check: CheckTransactionStateHeader, topic: str
    ) -> RemotingCommand:
        """Return the END_TRANSACTION request that responds to `check`. `state` is COMMIT or ROLLBACK."""
        command = self._end_command(
            state, topic, check.transaction_id, check.tran_state_table_offset, check.commit_log_offset
        )
        command.ext["fromTransactionCheck"] = "true"
        return command

    def _end_command(
        self, state: LocalTransactionState, topic: str, transaction_id: str, offset: int, position: int
    ) -> RemotingCommand:
        header = EndTransactionHeader(
            self.config.group,
            offset,
            position,
            _SYS_FLAGS[state],
            msg_id=transaction_id,
            transaction_id=transaction_id,
            topic=topic,
        )
        return RemotingCommand(RequestCode.END_TRANSACTION, header.to_ext())


class CheckRequests:
    """Handles the CHECK_TRANSACTION_STATE requests that brokers send to one producer."""

    def __init__(self, core: TransactionCore, listener: CheckListener) -> None:
        self._core = core
        self._listener = listener
        self._pending = 0

    def respond(self, context: RequestContext) -> None:
        """Handle CHECK_TRANSACTION_STATE: call the check listener and send its result in END_TRANSACTION.

        The request is one-way, so no response is sent. Invalid requests are logged and dropped.
        """
        if self._pending >= CHECKS_MAX:
            _log.warning("transaction_check_dropped", pending=self._pending)
            return
        header = CheckTransactionStateHeader.from_ext(context.command.ext)
        try:
            [message], _ = decode_messages(bytes(context.command.body), 0, 1, header.broker_name)
        except (RecordDamaged, ValueError) as error:
            _log.warning("transaction_check_invalid", msg_id=header.msg_id, error=str(error))
            return
        self._core.names.unwrap_messages([message])
        self._pending += 1
        work = self._check(context.connection, header, message)
        self._core.instance.spawn(work, "transaction-check")

    async def _check(
        self, connection: Connection, header: CheckTransactionStateHeader, message: MessageExt
    ) -> None:
        try:
            state = await call_async(self._listener, message)
        except Exception:  # noqa: BLE001 -- raised by the user's listener; the broker repeats the check
            _log.exception("check_listener_failed", msg_id=message.msg_id)
            return
        finally:
            self._pending -= 1
        if state in _SYS_FLAGS:
            # The topic of the request, not that of the message: a RocketMQ broker sends its half topic there.
            end = self._core.check_end(state, header, header.topic)
            self._core.instance.remoting.oneway_over(connection, end)


async def call_async(
    function: Callable[[Message], object] | Callable[[MessageExt], object], message: MessageExt | Message
) -> LocalTransactionState:
    """Call a listener, and return the state that it returns.

    A coroutine function runs on the event loop, any other function in a thread. Raises TypeError if the
    result is not a LocalTransactionState, and the exceptions of the listener.
    """
    call = cast("Callable[[object], object]", function)
    if inspect.iscoroutinefunction(call):
        return checked_state(await call(message))
    found = await asyncio.to_thread(call, message)
    return checked_state(await found if inspect.isawaitable(found) else found)


def checked_state(state: object) -> LocalTransactionState:
    """Return `state`, the result of a listener. Raises TypeError if it is not a LocalTransactionState."""
    if not isinstance(state, LocalTransactionState):
        raise TypeError(
            f"execute_local or check_listener returned {state!r}: return LocalTransactionState.COMMIT, "
            "ROLLBACK or UNKNOWN"
        )
    return state


def check_function(name: str, function: object) -> None:
    """Raise ConfigInvalid if `function`, the value of parameter `name`, is not callable."""
    if not callable(function):
        raise ConfigInvalid(
            f"{name} is {function!r}: it must be a function that returns a LocalTransactionState"
        )


def open_transaction_producer(
    config: ProducerConfig, clock: Clock | None, listener: CheckListener, topics: Iterable[str]
) -> TransactionCore:
    """Return the core of a TransactionProducer on the running event loop.

    A background task registers the producer with the brokers of `topics`.
    """
    table = RequestTable()
    plain = open_producer(config, clock, table)
    core = TransactionCore(
        plain.config,
        plain.instance,
        plain.factory,
        plain.hooks,
        plain.sender,
        plain.tables,
        plain.requests,
        plain.names,
    )
    table.add(RequestCode.CHECK_TRANSACTION_STATE, CheckRequests(core, listener).respond)
    core.instance.spawn(core.register_known(topics), "transaction-registration")
    return core
