"""Helpers that run a test scenario (`story`) with a broker and a client connected to it over a socket."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.build_loop import BrokerLoop
from actors.broker.core.capability import Feature
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.parts import BrokerGroups
from actors.broker.core.role import BrokerRole, PeriodicService
from actors.broker.service import BrokerService, warm_up_once
from actors.host.figures import Figure
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    PullRecordsHeader,
    QueryConsumerOffsetHeader,
    TopicQueueHeader,
    UpdateConsumerOffsetHeader,
)
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from store.common.clock import Clock, SystemClock
from store.disk.disk_use import DiskProbe, disk_use
from store.message.message import MessageExt
from store.message.record import decode_records
from store.message_store import MessageStore
from store.store_settings import StoreSettings
from tests.eventually import LIMIT_S, eventually_async
from tests.ports import free_port

SUSPEND, SUBSCRIPTION = 2, 4
TIMEOUT_MS = int(LIMIT_S * 1000)
A_DAY_MS = 86_400_000
HOLD_MS = A_DAY_MS
"""The wait of a pull that another event ends: longer than any test runs."""
SMALL_STORE = {
    "commit_log_file_bytes": 1 << 20,
    "consume_queue_file_bytes": 40_000,
    "index_slots": 100,
    "index_entries": 2_000,
}


class Peer:
    """A client of one broker, with a method for each common request."""

    def __init__(self, broker: BrokerService, pushed: RequestTable | None = None) -> None:
        self.broker = broker
        limits = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
        self.client = RemotingClient(SystemClock(), pushed, limits)

    # Parts of the broker, for what no request shows.

    @property
    def loop(self) -> BrokerLoop:
        return self.broker.graph.loop

    @property
    def store(self) -> MessageStore:
        return self.broker.graph.loop.store

    @property
    def tables(self) -> BrokerTables:
        return self.broker.graph.tables

    @property
    def role(self) -> BrokerRole:
        return self.broker.graph.role

    @property
    def groups(self) -> BrokerGroups:
        return self.broker.graph.groups

    @property
    def figures(self) -> Sequence[Figure]:
        return self.broker.graph.figures

    @property
    def metrics(self) -> MetricsEndpoint:
        return self.broker.graph.metrics

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        """Return the response, also if its code is an error."""
        command = RemotingCommand(code, ext or {}, body)
        return await self.client.invoke(self.broker.address, command, TIMEOUT_MS)

    async def send(
        self, topic: str, body: bytes = b"hello", queue_id: int = 0, properties: str = "", **header: Any
    ) -> RemotingCommand:
        ext = SendMessageHeader("PG", topic, queue_id, properties, **header).to_ext()
        return await self.ask(RequestCode.SEND_MESSAGE_V2, ext, body)

    async def pull(
        self, topic: str, offset: int = 0, queue_id: int = 0, wait_ms: int = 0, tags: str = "*", **header: Any
    ) -> RemotingCommand:
        sys_flag = SUBSCRIPTION | (SUSPEND if wait_ms else 0)
        pull = PullMessageHeader(
            "CG",
            topic,
            queue_id,
            offset,
            sys_flag=sys_flag,
            suspend_timeout_millis=wait_ms,
            subscription=tags,
            **header,
        )
        return await self.ask(RequestCode.PULL_MESSAGE, pull.to_ext())

    async def pull_records(
        self, topic: str, offset: int = 0, queue_id: int = 0, **header: Any
    ) -> RemotingCommand:
        ext = PullRecordsHeader(topic, queue_id, offset, "CG", **header).to_ext()
        return await self.ask(RayMQRequestCode.PULL_RECORDS, ext)

    async def messages(self, topic: str, offset: int = 0, queue_id: int = 0) -> list[MessageExt]:
        return decode_records((await self.pull(topic, offset, queue_id)).body)

    async def committed(self, group: str, topic: str, queue_id: int = 0) -> RemotingCommand:
        ext = QueryConsumerOffsetHeader(group, topic, queue_id, set_zero_if_not_found=False).to_ext()
        return await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)

    async def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> RemotingCommand:
        """Create the group, because a commit does not, and commit an offset."""
        config = orjson.dumps({"groupName": group})
        await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        ext = UpdateConsumerOffsetHeader(group, topic, queue_id, offset).to_ext()
        return await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def offset(self, code: int, topic: str, queue_id: int = 0) -> int:
        return int((await self.ask(code, TopicQueueHeader(topic, queue_id).to_ext())).ext["offset"])

    async def until_held(self, count: int) -> None:
        """Wait until the broker holds `count` pulls; it may read them after later requests."""
        await eventually_async(lambda: self.broker.describe()["held_pulls"] == count)

    async def heartbeat(self, client_id: str, group: str, **tags: str) -> RemotingCommand:
        subscriptions = [SubscriptionData(topic, expression) for topic, expression in tags.items()]
        beat = HeartbeatData(client_id, [ConsumerData(group, subscriptions=subscriptions)], ["PG"])
        return await self.ask(RequestCode.HEART_BEAT, body=beat.encode())


Story = Callable[[Peer], Awaitable[None]]


def settings_of(root: Path, store: dict[str, Any] | None = None, **settings: Any) -> BrokerSettings:
    # No time-out may expire in a test: an advanced clock looks to the broker like a stall, for which it
    # refuses sends, and a busy machine is slow.
    for name in (
        "os_page_cache_busy_ms",
        "sync_flush_timeout_ms",
        "slave_timeout_ms",
        "wait_in_pull_queue_ms",
        "max_hold_ms",
        "idle_timeout_ms",
        "unread_timeout_ms",
    ):
        settings.setdefault(name, A_DAY_MS)
    if "replication" in settings:  # the port beside an ephemeral one may be in use
        settings.setdefault("ha_listen_port", free_port())
    return BrokerSettings(
        listen_port=0,
        store_root=root / "store",
        store=StoreSettings.model_validate({**SMALL_STORE, **(store or {})}),
        **settings,
    )


def run(story: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario on a new event loop; fail after LIMIT_S."""
    warm_up_once()  # before the time limit starts: it may compile

    async def within() -> None:
        await asyncio.wait_for(story(), LIMIT_S)

    uvloop.run(within())


@asynccontextmanager
async def serving(
    settings: BrokerSettings, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Peer]:
    """Yield a client of a broker; `options` are further arguments of `BrokerService`."""
    broker = BrokerService(settings, clock or SystemClock(), **options)
    await broker.start()
    peer = Peer(broker)
    try:
        yield peer
    finally:
        await peer.client.close()
        await broker.stop()


def with_broker(
    story: Story,
    settings: BrokerSettings,
    clock: Clock | None = None,
    probe: DiskProbe = disk_use,
    features: Sequence[Feature] = (),
) -> None:
    """Run a scenario with a broker and a client of it."""

    async def scenario() -> None:
        async with serving(settings, clock, probe=probe, features=features) as peer:
            await story(peer)

    run(scenario)


async def run_now(broker: BrokerService, name: str) -> None:
    """Run the periodic action of one of the broker's services once, in addition to its own runs."""
    [service] = [each for each in broker.graph.role.services if each.name == name]
    assert isinstance(service, PeriodicService)
    pending = service.act()
    if pending is not None:
        await pending


@asynccontextmanager
async def registered_broker(
    root: Path, features: Sequence[Feature] = (), **settings: Any
) -> AsyncIterator[tuple[NameserverService, Peer]]:
    """Yield a nameserver, and a client of a broker that is registered with it."""
    nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
    await nameserver.start()
    try:
        own = settings_of(root, nameservers=nameserver.address, **settings)
        async with serving(own, features=features) as peer:
            yield nameserver, peer
    finally:
        await nameserver.stop()


@asynccontextmanager
async def slave_of(
    master: Peer, root: Path, replica: int = 1, features: Sequence[Feature] = (), **settings: Any
) -> AsyncIterator[Peer]:
    """Yield a client of a slave that is registered with the nameservers of `master`."""
    nameservers = master.broker.settings.nameservers
    root = root / f"replica-{replica}"
    own = settings_of(root, role="slave", replica=replica, nameservers=nameservers, **settings)
    async with serving(own, features=features) as peer:
        yield peer


def hang_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make each fdatasync wait until the returned event is set."""
    may_continue = threading.Event()
    fdatasync = os.fdatasync

    def hang(descriptor: int) -> None:
        assert may_continue.wait(LIMIT_S)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", hang)
    return may_continue
