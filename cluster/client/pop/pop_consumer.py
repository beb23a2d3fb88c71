"""The pop consumer with a blocking API."""

from __future__ import annotations

from cluster.client.config import Nameservers
from cluster.client.pop import aio_pop_consumer as aio
from cluster.client.pop.pop_config import PopConfig
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from store.common.clock import Clock


@documented_by(aio.PopConsumer)
class PopConsumer(BlockingFace[aio.PopConsumer]):
    """Worker that receives single messages of a topic, and acknowledges each one (a work queue).

        with PopConsumer("127.0.0.1:9876", group="thumbnails") as worker:
            while True:
                for job in worker.receive("images", max_messages=8):
                    work_on(job)
                    worker.ack(job)

    A received message is invisible to all other workers for `invisible_ms`. If it is not acknowledged by
    then, it is delivered again, with `reconsume_times` + 1. Any number of workers may share a topic, more
    than it has queues, without rebalancing. Messages are ordered with `ordered` only.
    Threads may share a consumer.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: PopConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aio.PopConsumer(nameservers, group, config=config, clock=clock))

    def close(self) -> None:
        if not self._thread.is_forked:
            self._thread.run(self._face.close())

    receive = blocking(aio.PopConsumer.receive)
    ack = blocking(aio.PopConsumer.ack)
    nack = blocking(aio.PopConsumer.nack)
    extend = blocking(aio.PopConsumer.extend)
