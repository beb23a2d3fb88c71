"""The parts of a gateway that use brokers, with two brokers that may hang, refuse or be unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from actors.gateway.access import Access
from actors.gateway.callers import Caller
from actors.gateway.clients import GatewayClients
from actors.gateway.consumers import Consumers
from actors.gateway.groups import GatewayGroups
from actors.gateway.lite import LiteSubscriptions
from actors.gateway.members import GatewayMembers
from actors.gateway.receipts import Handle, ReceiptRenewals, Renewal
from actors.gateway.sends import Sends
from actors.gateway.topics import GatewayTopics
from actors.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ConnectFailed, Refused
from store.message.pop_records import NORMAL, Receipt
from tests.conftest import ClockAtRest

TIMEOUT_MS = 1000
REFRESH_MS = 10_000


class TwoBrokers:
    """The brokers at the addresses a and b, their nameserver and the connections to them."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        """Addresses that cannot be reached."""
        self.hanging: set[str] = set()
        """Addresses that do not respond."""
        self.stopped: set[str] = set()
        """Names of brokers that have left the routes."""
        self.refused: set[str] = set()
        """Topics whose routes the nameserver refuses to give."""
        self.body = b""
        self.code = 0
        """The code of responses to sends and receives."""
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.has_responded = asyncio.Event()
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.hub = SimpleNamespace(spawn=self.spawned.append)
        self.addresses = "ab"
        """The address of broker-a, and that of broker-b."""

    async def route(self, topic: str) -> TopicRouteData:
        if topic in self.refused:
            raise Refused(ResponseCode.SYSTEM_BUSY, "too many requests")
        brokers = {name: each for name, each in self._brokers().items() if name not in self.stopped}
        queues = [QueueData(name, 1, 1, 6) for name in brokers]
        return TopicRouteData(queue_datas=queues, broker_datas=list(brokers.values()))

    def _brokers(self) -> dict[str, BrokerData]:
        pairs = zip(("broker-a", "broker-b"), self.addresses, strict=True)
        return {name: BrokerData("c", name, {0: address}) for name, address in pairs}

    async def request_all(self, command: Callable[[], RemotingCommand]) -> list[RemotingCommand]:
        return [RemotingCommand(0, {}, ClusterInfo(self._brokers(), {}).encode())]

    def asked(self, code: int) -> int:
        """Return the number of requests with this code."""
        return sum(command.code == code for _, command in self.requests)

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        if address in self.down:
            raise ConnectFailed(address, "the connection was refused")
        if address in self.hanging:
            await asyncio.Event().wait()
        self.requests.append((address, command))
        self.has_responded.set()
        return RemotingCommand(0, {}, self.body)

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        response = await self.ask(address, command, timeout_ms)
        response.code = self.code
        return response


class Gateway:
    """The parts of a gateway that use the brokers."""

    def __init__(self, clock: ClockAtRest, *, has_users: bool = False) -> None:
        self.brokers = TwoBrokers()
        self._clock = clock
        client: Any = self.brokers
        self.topics = GatewayTopics(client, client, clock, REFRESH_MS, TIMEOUT_MS)
        self.groups = GatewayGroups(self.topics, client, clock, REFRESH_MS, TIMEOUT_MS)
        self.renewals = ReceiptRenewals(clock)
        self.sends = Sends(self.topics, client, clock, TIMEOUT_MS)
        self.access = Access(client if has_users else None, client, clock, REFRESH_MS, TIMEOUT_MS)
        members = GatewayMembers(self.topics, client, clock)
        lite = self.lite = LiteSubscriptions(self.topics, self.groups, members, client, TIMEOUT_MS)
        self.consumers = Consumers(
            self.access, self.topics, self.groups, members, self.renewals, lite, client, clock, TIMEOUT_MS
        )
        self.clients = GatewayClients(
            self.access, self.topics, client, "gw", self.groups, members, self.renewals
        )

    def renew(self, group: str, broker_name: str = "broker-a") -> Renewal:
        """Renew a message of a group that is due now."""
        now_ms = self._clock.wall_ms()
        receipt = Receipt(0, now_ms - 50_000, 60_000, 0, NORMAL, broker_name, 0, 0)
        renewal = Renewal(Caller("c"), group, "T", Handle(receipt, 0), now_ms + 3_600_000)
        self.renewals.add(renewal)
        return renewal
