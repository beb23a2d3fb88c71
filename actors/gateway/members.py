"""Members: the consumers of one gateway, as members of their groups at the brokers.

A consumer's settings arrive on its Telemetry stream. The gateway sends them to the brokers of its topics as
heartbeats with the client's own id, as long as the stream is open; then it unregisters the client.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from actors.gateway.callers import Caller
from actors.gateway.groups import group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.proto.definition_pb2 import FilterType, Language, Settings
from actors.gateway.statuses import RpcFailed
from actors.gateway.topics import GatewayTopics, topic_name
from actors.transport.client import RemotingClient
from actors.wire.bodies.groups import CONSUME_POP, ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import UnregisterClientHeader
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

HEARTBEAT_TIMEOUT_MS: Final = 3000
REQUEST_TIMEOUT_MS: Final = 3000
"""That of SDKs, unless a client sets another one."""
_LANGUAGES = {
    Language.JAVA: "JAVA", Language.CPP: "CPP", Language.DOT_NET: "DOTNET", Language.GOLANG: "GO",
    Language.RUST: "RUST", Language.PYTHON: "PYTHON", Language.PHP: "PHP", Language.NODE_JS: "NODE_JS",
    Language.RUBY: "RUBY",
}  # fmt: skip
"""Maps the languages of SDKs to their names in remoting, the others to OTHER."""


class _Member(NamedTuple):
    caller: Caller
    consumer: ConsumerData
    language: str
    """Name of the SDK's language in remoting."""


class GatewayMembers:
    """The consumers with an open Telemetry stream."""

    def __init__(self, topics: GatewayTopics, client: RemotingClient, clock: Clock) -> None:
        """Create the object; `clock` gives the versions of subscriptions."""
        self._topics = topics
        self._client = client
        self._clock = clock
        self._members: dict[Call, _Member] = {}
        self._streams: dict[tuple[str, str], Call] = {}  # the newest by group and client id
        self._request_timeouts_ms: dict[str, int] = {}

    def join(self, call: Call, caller: Caller, settings: Settings) -> None:
        """Register a consumer from now on. Raises RpcFailed if its group or a topic is not valid."""
        now_ms, subscription = self._clock.wall_ms(), settings.subscription
        subscriptions = []
        for each in subscription.subscriptions:
            expression = each.expression
            kind = "SQL92" if expression.type == FilterType.SQL else "TAG"
            text, name = expression.expression or "*", topic_name(each.topic)
            subscriptions.append(SubscriptionData(name, text, sub_version=now_ms, expression_type=kind))
        group = group_name(subscription.group)
        consumer = ConsumerData(group, consume_type=CONSUME_POP, subscriptions=subscriptions)
        language = _LANGUAGES.get(settings.user_agent.language, "OTHER")
        member = _Member(caller, consumer, language)
        if call in self._members and self._members[call].consumer.group_name != group:
            self.leave(call)
        self._members[call] = member
        self._streams[group, caller.client_id] = call
        if settings.HasField("request_timeout"):
            self._request_timeouts_ms[caller.client_id] = max(settings.request_timeout.ToMilliseconds(), 0)
        self._client.hub.spawn(self._announce(member))

    def leave(self, call: Call) -> Caller | None:
        """Unregister the consumer of a stream that has ended, unless it has opened another one.

        Returns the client if it has no stream any more.
        """
        left = self._members.pop(call, None)
        if left is None:
            return None
        client_id, group = left.caller.client_id, left.consumer.group_name
        others = [(each, of) for each, of in self._members.items() if of.caller.client_id == client_id]
        if not others:
            self._request_timeouts_ms.pop(client_id, None)
        open_calls = [each for each, of in others if of.consumer.group_name == group]
        if open_calls:
            self._streams[group, client_id] = open_calls[-1]
        else:
            del self._streams[group, client_id]
            header = UnregisterClientHeader(client_id, consumer_group=group)
            command = left.caller.request(RequestCode.UNREGISTER_CLIENT, header)
            self._client.hub.spawn(self._send(left, command))
        return None if others else left.caller

    def stream(self, group: str, client_id: str) -> Call | None:
        """Return the Telemetry stream of a consumer."""
        return self._streams.get((group, client_id))

    def request_timeout_ms(self, client_id: str) -> int:
        """Return the time-out of a client's requests, without the time that a receive waits."""
        return self._request_timeouts_ms.get(client_id, REQUEST_TIMEOUT_MS)

    async def announce(self) -> None:
        """Send a heartbeat of each consumer to the brokers of its topics."""
        await asyncio.gather(*(self._announce(each) for each in list(self._members.values())))

    async def _announce(self, member: _Member) -> None:
        command = member.caller.request(RequestCode.HEART_BEAT)
        command.body = HeartbeatData(member.caller.client_id, [member.consumer]).encode()
        await self._send(member, command)

    async def _send(self, member: _Member, command: RemotingCommand) -> None:
        addresses: set[str] = set()
        for each in member.consumer.subscriptions:
            try:
                addresses.update((await self._topics.get(each.topic)).masters.values())
            except (RpcFailed, Refused, RemotingError):
                continue  # the client's own calls report it
        for address in addresses:
            copy = RemotingCommand(command.code, dict(command.ext), command.body, language=member.language)
            try:
                await self._client.ask(address, copy, HEARTBEAT_TIMEOUT_MS)
            except (Refused, RemotingError) as error:
                _log.info(
                    "consumer_not_announced", broker=address, client_id=member.caller.client_id,
                    group=member.consumer.group_name, error=str(error),
                )  # fmt: skip
