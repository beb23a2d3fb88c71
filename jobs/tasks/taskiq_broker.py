"""The taskiq broker of RayMQ: `broker = RayMQBroker("host:9876", "thumbnails")` (docs/celery.md).

A queue is a topic and a consumer group. A task is claimed, and the claim renewed, until taskiq
acknowledges it. The label `delay` is the number of seconds for which its message waits in the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from cluster.client.aio import Admin, PopConsumer, Producer
from cluster.client.config import ClientConfig, ProducerConfig
from cluster.client.errors import ClientError
from cluster.client.namespaces import Namespace
from cluster.client.pop.pop_config import PopConfig
from jobs.tasks.claim import Claim
from jobs.tasks.topics import ensure_topics
from store.common.logs import get_logger

_log = get_logger(__name__)

RETRY_S: Final = 1.0


class RayMQBroker(AsyncBroker):
    """Sends tasks to a topic, and receives them as a pop consumer.

    Args:
        nameservers: `host:port;host:port`. None: the environment variable RAYMQ_NAMESERVERS.
        queue: The topic of the tasks, which is created if it does not exist, and their consumer group.
        queues: The number of queues of a new topic on each broker.
        namespace: Namespace of the topic and the group.
        invisible_ms: Time after which the tasks of a lost worker run elsewhere.
        settings: More settings of all clients, such as `access_key`, `secret_key` and `tls`.
    """

    def __init__(
        self,
        nameservers: str | None = None,
        queue: str = "taskiq",
        *,
        queues: int = 4,
        namespace: str = "",
        invisible_ms: int = 60_000,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._queue, self._queues, self._invisible_ms = queue, queues, invisible_ms
        self._topic = Namespace(namespace).wrap(queue)
        self._admin_config = ClientConfig(nameservers, **settings)
        self._producer = Producer(config=ProducerConfig(nameservers, namespace=namespace, **settings))
        self._consumer = PopConsumer(
            config=PopConfig(nameservers, group=queue, namespace=namespace, **settings)
        )
        self._claims: set[Claim] = set()

    async def startup(self) -> None:
        """Connect, and create the topic if it does not exist. Raises ClientError."""
        await super().startup()
        async with Admin(config=self._admin_config) as admin:
            await ensure_topics(admin, [self._topic], self._queues)

    async def shutdown(self) -> None:
        """Make unacknowledged tasks visible to other workers, and close the connections."""
        for claim in self._claims:
            with suppress(ClientError):  # it becomes visible when its claim ends
                await claim.nack()
        await self._consumer.close()
        await self._producer.close()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task. Raises ClientError."""
        delay = float(message.labels.get("delay") or 0)
        after = timedelta(seconds=delay) if delay > 0 else None
        await self._producer.send(self._queue, message.message, keys=message.task_id, deliver_after=after)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks, each when taskiq asks for it."""
        while True:
            try:
                received = await self._consumer.receive(self._queue, invisible_ms=self._invisible_ms)
            except ClientError as error:
                if not error.retriable:
                    raise
                _log.warning("receive_failed", queue=self._queue, error=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            for message in received:
                self._claims.add(claim := Claim(self._consumer, message, self._invisible_ms))
                yield AckableMessage(data=bytes(message.body), ack=partial(self._ack, claim))

    async def _ack(self, claim: Claim) -> None:
        self._claims.discard(claim)
        await claim.ack()
