"""The push consumer with a blocking API."""

from __future__ import annotations

from cluster.client.config import Nameservers, PushConfig
from cluster.client.consumer import aio_push_consumer as aio
from cluster.client.consumer.listener import Listener
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from store.common.clock import Clock
from store.message.message_queue import MessageQueue


@documented_by(aio.PushConsumer)
class PushConsumer(BlockingFace[aio.PushConsumer]):
    """Consumer that calls a listener with the messages of the queues that the group assigns to it.

        def bill(messages: list[MessageExt]) -> None:
            for message in messages:
                ...

        with PushConsumer("127.0.0.1:9876", "billing", bill) as consumer:
            consumer.subscribe("orders", "fruit || wine")
            consumer.join()

    The listener runs in `consume_threads` threads, so it must be thread-safe. Each call gets at most
    `consume_batch` messages.

    The messages are consumed if the listener returns None, True or CONSUME_SUCCESS. If it returns False or
    RECONSUME_LATER, or raises an exception, they are retried as the setting `retry` says, and after
    `max_reconsume_times` retries they are sent to the dead-letter queue of the group. Exceptions are logged
    to the logger `raymq` (Python's logging), which writes to standard error if logging is not configured.

    With `ordered=True`, the listener gets the messages of each queue in order, one call after another, and
    the queue waits while a message is retried. Messages with the same sharding key are in the same queue.
    With `PushConfig(message_model="broadcasting")`, each member of the group gets all messages.

    The listener may call `close`; the consumer then closes after the listener has returned. Offsets are
    committed every `commit_interval_ms`, when a queue is released, and at `close`.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        listener: Listener | None = None,
        *,
        config: PushConfig | None = None,
        ordered: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            aio.PushConsumer(nameservers, group, listener, config=config, ordered=ordered, clock=clock)
        )

    def close(self) -> None:
        if not self._thread.is_forked:
            self._thread.run(self._face.close())

    subscribe = blocking(aio.PushConsumer.subscribe)
    pause = blocking(aio.PushConsumer.pause)
    resume = blocking(aio.PushConsumer.resume)

    def assignment(self) -> list[MessageQueue]:
        return self._face.assignment()

    join = blocking(aio.PushConsumer.join)
