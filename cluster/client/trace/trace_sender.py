"""TraceSender: sends the messages of the trace topic, on connections of its own.

It is not a Producer, because consumers use it too, and it needs no hooks, keys or batches.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable

from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from cluster.client.config import ClientConfig
from cluster.client.errors import ClientError, PermissionDenied, refused
from cluster.client.results import STATUS_OF_CODE
from cluster.client.transport.instance import ClientInstance, local_address
from cluster.client.transport.topic_route import TopicRoute
from store.common.clock import Clock
from store.message.message_id import UniqKeyGenerator
from store.message.properties import KEY_SEPARATOR, MessageConst, properties_text

TRACE_GROUP = "_INNER_TRACE_PRODUCER"
ATTEMPTS = 3
QUEUES_OF_NEW_TOPIC = 4


class TraceSender:
    """Sends messages to one trace topic. Create it on the event loop that uses it."""

    def __init__(self, config: ClientConfig, clock: Clock, topic: str) -> None:
        self._topic = topic
        self._clock = clock
        self._instance = ClientInstance(config, clock=clock, auto_create_queues=QUEUES_OF_NEW_TOPIC)
        self._uniq_keys = UniqKeyGenerator(local_address(), os.getpid(), clock, random.SystemRandom())
        self._turns = itertools.count(random.randrange(1 << 16))

    async def send(self, body: bytes, keys: Iterable[str]) -> None:
        """Send one message with `keys`, with up to ATTEMPTS attempts. Raises the ClientError of the last."""
        properties = properties_text(
            {MessageConst.KEYS: KEY_SEPARATOR.join(keys), MessageConst.UNIQ_KEY: self._uniq_keys.next()}
        )
        for left in reversed(range(ATTEMPTS)):
            try:
                await self._attempt(await self._instance.routes.get(self._topic), body, properties)
            except ClientError as error:
                if not left or not error.retriable:
                    raise
                await self._instance.routes.refresh_or_keep(self._topic)
            else:
                return

    async def _attempt(self, route: TopicRoute, body: bytes, properties: str) -> None:
        if not route.writable:
            raise PermissionDenied(0, f"topic {self._topic!r} has no writable queue", "", True)
        queue = route.writable[next(self._turns) % len(route.writable)]
        header = SendMessageHeader(
            TRACE_GROUP,
            self._topic,
            queue.queue_id,
            properties,
            born_timestamp=self._clock.wall_ms(),
            default_topic_queue_nums=QUEUES_OF_NEW_TOPIC,
        )
        address = self._instance.master_of(self._topic, queue.broker_name)
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
        response = await self._instance.request(address, command)
        if response.code not in STATUS_OF_CODE:
            raise refused(response.code, response.remark, address)

    async def close(self) -> None:
        """Close the connections."""
        await self._instance.close()
