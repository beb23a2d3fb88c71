"""The lite consumer with a blocking API."""

from __future__ import annotations

from collections.abc import Callable

from cluster.client.config import Nameservers
from cluster.client.pop import aio_lite_consumer as aio
from cluster.client.pop.pop_config import LiteConfig
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from store.common.clock import Clock


@documented_by(aio.LiteConsumer)
class LiteConsumer(BlockingFace[aio.LiteConsumer]):
    """Receives the messages of the lite topics that it subscribes, each lite topic in order.

        with LiteConsumer("127.0.0.1:9876", group="agents", topic="chats") as consumer:
            consumer.subscribe("session-7")
            for message in consumer.receive(max_messages=8):
                reply_to(message.lite_topic, message.body)
                consumer.ack(message)

    The topic is of type LITE, and the group is bound to it (attribute lite.bind.topic). The messages of a
    lite topic that one call returns are a batch: until all of them are acknowledged, or one is visible again,
    no consumer of the group gets others of that lite topic. Threads may share a consumer.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        topic: str | None = None,
        *,
        on_lost: Callable[[str], object] | None = None,
        config: LiteConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the consumer. `on_lost` is called in another thread, and must not block (see `aio`)."""
        super().__init__(
            aio.LiteConsumer(nameservers, group, topic, on_lost=on_lost, config=config, clock=clock)
        )

    def close(self) -> None:
        if not self._thread.is_forked:
            self._thread.run(self._face.close())

    subscribe = blocking(aio.LiteConsumer.subscribe)
    unsubscribe = blocking(aio.LiteConsumer.unsubscribe)
    subscription = blocking(aio.LiteConsumer.subscription)
    receive = blocking(aio.LiteConsumer.receive)
    ack = blocking(aio.LiteConsumer.ack)
    nack = blocking(aio.LiteConsumer.nack)
    extend = blocking(aio.LiteConsumer.extend)
    suspend = blocking(aio.LiteConsumer.suspend)
