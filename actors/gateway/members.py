"""Members: the consumers of one gateway, as members of their groups at the brokers.

A consumer's settings arrive on its Telemetry stream. The gateway sends them to the brokers of its topics as
heartbeats with the client's own id, as long as the stream is open; then it unregisters the client.
"""

from __future__ import annotations

import asyncio
from typing import Final

from actors.gateway.callers import Caller
from actors.gateway.groups import group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.proto.definition_pb2 import FilterType, Settings
from actors.gateway.statuses import RpcFailed
from actors.gateway.topics import Topics, topic_name
from actors.remoting.bodies.groups import CONSUME_POP, ConsumerData, HeartbeatData, SubscriptionData
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import UnregisterClientHeader
from actors.remoting.remoting_errors import Refused, RemotingError
from store.clock import Clock
from store.logs import get_logger

_log = get_logger(__name__)

HEARTBEAT_TIMEOUT_MS: Final = 3000


class Members:
    """The consumers with an open Telemetry stream."""

    def __init__(self, topics: Topics, client: RemotingClient, clock: Clock) -> None:
        """Create the object; `clock` gives the versions of subscriptions."""
        self._topics = topics
        self._client = client
        self._clock = clock
        self._consumers: dict[Call, tuple[Caller, ConsumerData]] = {}

    def join(self, call: Call, caller: Caller, settings: Settings) -> None:
        """Register a consumer from now on. Raises RpcFailed if its group or a topic is not valid."""
        now_ms, subscription = self._clock.wall_ms(), settings.subscription
        subscriptions = []
        for each in subscription.subscriptions:
            expression = each.expression
            kind = "SQL92" if expression.type == FilterType.SQL else "TAG"
            text, name = expression.expression or "*", topic_name(each.topic)
            subscriptions.append(SubscriptionData(name, text, sub_version=now_ms, expression_type=kind))
        consumer = ConsumerData(
            group_name(subscription.group), consume_type=CONSUME_POP, subscriptions=subscriptions
        )
        self._consumers[call] = caller, consumer
        self._client.hub.spawn(self._announce(caller, consumer))

    def leave(self, call: Call) -> None:
        """Unregister the consumer of a stream that has ended, unless it has opened another one."""
        left = self._consumers.pop(call, None)
        if left is None:
            return
        caller, consumer = left
        is_back = any(
            (other.client_id, data.group_name) == (caller.client_id, consumer.group_name)
            for other, data in self._consumers.values()
        )
        if not is_back:
            header = UnregisterClientHeader(caller.client_id, consumer_group=consumer.group_name)
            command = caller.request(RequestCode.UNREGISTER_CLIENT, header)
            self._client.hub.spawn(self._send(caller, consumer, command))

    async def announce(self) -> None:
        """Send a heartbeat of each consumer to the brokers of its topics."""
        await asyncio.gather(*(self._announce(*each) for each in list(self._consumers.values())))

    async def _announce(self, caller: Caller, consumer: ConsumerData) -> None:
        command = caller.request(RequestCode.HEART_BEAT)
        command.body = HeartbeatData(caller.client_id, [consumer]).encode()
        await self._send(caller, consumer, command)

    async def _send(self, caller: Caller, consumer: ConsumerData, command: RemotingCommand) -> None:
        addresses: set[str] = set()
        for each in consumer.subscriptions:
            try:
                addresses.update((await self._topics.get(each.topic)).masters.values())
            except (RpcFailed, Refused, RemotingError):
                continue  # the client's own calls report it
        for address in addresses:
            copy = RemotingCommand(command.code, dict(command.ext), command.body)
            try:
                await self._client.ask(address, copy, HEARTBEAT_TIMEOUT_MS)
            except (Refused, RemotingError) as error:
                _log.info(
                    "consumer_not_announced", broker=address, client_id=caller.client_id,
                    group=consumer.group_name, error=str(error),
                )  # fmt: skip
