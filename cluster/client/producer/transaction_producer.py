"""TransactionProducer of the blocking API: sends messages as part of a transaction."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from cluster.client.config import Nameservers, ProducerConfig
from cluster.client.errors import ConfigInvalid
from cluster.client.producer import aio_transaction_producer as aio
from cluster.client.producer.producer import Producer
from cluster.client.producer.transaction_core import (
    CheckListener,
    ExecuteLocal,
    LocalTransactionState,
    TransactionCore,
    TransactionSendResult,
    check_function,
    checked_state,
)
from cluster.client.transport.faces import documented_by
from store.common.clock import Clock
from store.message.message import Message


@documented_by(aio.TransactionProducer)
class TransactionProducer(Producer):
    """Sends messages that consumers see only if a local transaction is committed.

        def store_order(message: Message) -> LocalTransactionState:
            database.insert(message.uniq_key, message.body)
            return LocalTransactionState.COMMIT

        def was_stored(message: MessageExt) -> LocalTransactionState:
            found = database.contains(message.uniq_key)
            return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK

        with TransactionProducer("127.0.0.1:9876", "orders", was_stored) as producer:
            producer.send_in_transaction(Message("orders", b"4 apples"), store_order)

    The local transaction runs in the caller's thread. If the broker does not receive its outcome, the broker
    later requests the outcome from any producer of the group. That producer calls its `check_listener` with
    the message, in another thread, and sends the returned state. All methods of `Producer` are available.

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
        self._check_listener = check_listener
        self._topics = tuple(topics)
        super().__init__(nameservers, group, config=config, clock=clock)

    def _make_face(self) -> aio.TransactionProducer:
        return aio.TransactionProducer(
            check_listener=self._check_listener, topics=self._topics, config=self._config, clock=self._clock
        )

    def send_in_transaction(
        self,
        message: Message,
        execute_local: ExecuteLocal,
        *,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        check_function("execute_local", execute_local)
        if inspect.iscoroutinefunction(execute_local):
            raise ConfigInvalid(
                "execute_local is a coroutine function: use cluster.client.aio.TransactionProducer or give a "
                "plain function"
            )
        core = self._open().core
        assert isinstance(core, TransactionCore)
        half = self._thread.run(core.begin(message, timeout_ms))
        state = LocalTransactionState.ROLLBACK
        if half.is_durable:
            state = checked_state(execute_local(half.message))
        return self._thread.run(core.end(half, state))
