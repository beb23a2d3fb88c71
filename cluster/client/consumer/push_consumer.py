"""The push consumer, blocking face."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cluster.client.config import Nameservers, PushConfig
from cluster.client.consumer import aio_push_consumer as aio
from cluster.client.consumer.listener import Listener
from cluster.client.transport.faces import BlockingFace, blocking, documented_by
from store.clock import Clock
from store.message.message_queue import MessageQueue


@documented_by(aio.PushConsumer)
class PushConsumer(BlockingFace[aio.PushConsumer]):
    """Calls a listener for the messages of the queues that the group gives it.

        def bill(messages: list[MessageExt]) -> None:
            for message in messages:
                ...

        with PushConsumer("127.0.0.1:9876", "billing", bill) as consumer:
            consumer.subscribe("orders", "fruit || wine")
            consumer.join()

    The listener runs in `consume_threads` threads, each call with at most `consume_batch` messages, so it
    must be thread-safe. Returning None, True or CONSUME_SUCCESS means done; raising, False or
    RECONSUME_LATER means again after a back-off, and after `max_reconsume_times` the group's dead letters.
    What it raises is logged under `raymq` (Python's logging), on standard error where nothing is configured.
    It may call `close`, which then goes on when it has returned. Offsets are committed every
    `commit_interval_ms`, when a queue is given back, and at `close`.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        listener: Listener | None = None,
        *,
        config: PushConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aio.PushConsumer(nameservers, group, listener, config=config, clock=clock))

    def start(self) -> Self:
        """Open the consumer. `with` and `subscribe` do it too."""
        self._thread.run(self._face.start())
        return self

    def close(self) -> None:
        if not self._thread.is_forked:
            self._thread.run(self._face.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    subscribe = blocking(aio.PushConsumer.subscribe)
    pause = blocking(aio.PushConsumer.pause)
    resume = blocking(aio.PushConsumer.resume)

    def assignment(self) -> list[MessageQueue]:
        return self._face.assignment()

    join = blocking(aio.PushConsumer.join)
