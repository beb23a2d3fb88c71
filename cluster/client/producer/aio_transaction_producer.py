"""TransactionProducer of the asyncio API: sends messages as part of a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.client.config import Nameservers, ProducerConfig
from cluster.client.producer.aio_producer import Producer
from cluster.client.producer.arguments import capturing
from cluster.client.producer.producer_core import producer_config
from cluster.client.producer.transaction_core import (
    CheckListener,
    ExecuteLocal,
    LocalTransactionState,
    TransactionCore,
    TransactionSendResult,
    call_async,
    check_function,
    open_transaction_producer,
)
from cluster.client.transport.faces import AsyncFace
from store.common.clock import Clock
from store.message.message import Message


class TransactionProducer(Producer):
    """Sends messages that consumers see only if a local transaction is committed.

        async def store_order(message: Message) -> LocalTransactionState:
            await database.insert(message.uniq_key, message.body)
            return LocalTransactionState.COMMIT

        async def was_stored(message: MessageExt) -> LocalTransactionState:
            found = await database.contains(message.uniq_key)
            return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK

        async with TransactionProducer("127.0.0.1:9876", "orders", was_stored) as producer:
            await producer.send_in_transaction(Message("orders", b"4 apples"), store_order)

    If the broker does not receive the outcome of a transaction, it later requests it from any producer of the
    group. That producer calls its `check_listener` with the message and sends the returned state.
    `check_listener` and `execute_local` may be coroutine functions, which run on the event loop, or plain
    functions, which run in a thread. All methods of `Producer` are available.

    Args:
        nameservers: As for `Producer`.
        group: Name of the producer group. All producers of the group must have the same check listener.
        check_listener: Function that returns the outcome of an earlier transaction. If it raises an
            exception, the broker repeats the request later.
        topics: Topics whose outcome requests this producer receives from its start. It receives
            those of any other topic after its first send to the topic.
        config: Other settings; `nameservers` and `group` override its fields.
        clock: Source of time, for tests.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        check_listener: CheckListener | None = None,
        *,
        topics: Iterable[str] = (),
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_function("check_listener", check_listener)
        assert check_listener is not None
        config, listener, topics = producer_config(nameservers, group, config), check_listener, tuple(topics)
        AsyncFace.__init__(
            self, "producer", lambda: open_transaction_producer(config, clock, listener, topics)
        )

    @capturing
    async def send_in_transaction(
        self, message: Message, execute_local: ExecuteLocal, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        """Send `message`, call `execute_local(message)`, and commit or roll back according to its result.

        `execute_local` receives a copy of the message. The copy has a UNIQ_KEY (`message.uniq_key`), which
        identifies the transaction. An exception of `execute_local` is raised to the caller; the broker later
        requests the outcome from a check listener. If the broker could not store the message durably
        (`status` is not SEND_OK), `execute_local` is not called and the message is rolled back.

        If the result has the state COMMIT, consumers can see the message when this method returns. If the
        commit request failed, they see it only after the broker has requested the outcome again.

        Raises ConfigInvalid if the message has a delay level, and the errors of `send` if the broker did not
        store the message.
        """
        check_function("execute_local", execute_local)
        core = self._opened()
        assert isinstance(core, TransactionCore)
        half = await core.begin(message, timeout_ms)
        state = LocalTransactionState.ROLLBACK
        if half.is_durable:
            state = await call_async(execute_local, half.message)
        return await core.end(half, state)
