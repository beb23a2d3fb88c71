"""A rebalancer over its socket, as brokers use it, with a real nameserver that has the routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
import uvloop

from actors import supervisor
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.rebalancer import coordinator
from actors.rebalancer.coordinator import GroupCoordinator
from actors.rebalancer.group import Group
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import (
    AssignedQueue,
    ConsumerData,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupReply,
    SyncGroupRequest,
)
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ForwardHeartbeatHeader, ForwardUnregisterHeader, RegisterBrokerHeader
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock, SystemClock
from store.message.data_version import DataVersion
from store.message.message_queue import MessageQueue
from tests.eventually import LIMIT_S, eventually_async

TIMEOUT_MS = int(LIMIT_S * 1000)


class Broker:
    """A broker as the rebalancer sees it: it sends requests and receives GROUP_CHANGED."""

    def __init__(self, rebalancer: RebalancerService, nameserver: NameserverService) -> None:
        table = RequestTable()
        table.add(RayMQRequestCode.GROUP_CHANGED, self._changed)
        self.client = RemotingClient(SystemClock(), table)
        self.rebalancer = rebalancer
        self.nameserver = nameserver
        self.changes: list[tuple[str, GroupMembers]] = []

    def _changed(self, context: RequestContext) -> None:
        command = context.command
        self.changes.append((command.ext["consumerGroup"], GroupMembers.decode(command.body)))

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        return await self.client.ask(
            self.rebalancer.address, RemotingCommand(code, ext or {}, body), TIMEOUT_MS
        )

    async def register(self, queues: int) -> None:
        config = {"topicName": "T", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        body = RegisterBrokerBody(DataVersion(queues), {"T": config}).encode()
        header = RegisterBrokerHeader("b", "127.0.0.1:1", "C", 0)
        command = RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)
        await self.client.ask(self.nameserver.address, command, TIMEOUT_MS)

    async def sync(self, request: SyncGroupRequest) -> SyncGroupReply:
        response = await self.ask(RayMQRequestCode.FORWARD_SYNC, body=request.encode())
        return SyncGroupReply.decode(response.body)

    async def members(self, group: str) -> GroupMembers:
        response = await self.ask(RayMQRequestCode.GROUP_MEMBERS, {"consumerGroup": group})
        return GroupMembers.decode(response.body)

    async def heartbeat(self, client_id: str, language: str, model: str = "CLUSTERING") -> None:
        consumer = ConsumerData("g", message_model=model, subscriptions=[SubscriptionData("T")])
        header = ForwardHeartbeatHeader("b", language)
        body = HeartbeatData(client_id, [consumer]).encode()
        await self.ask(RayMQRequestCode.FORWARD_HEARTBEAT, header.to_ext(), body)

    async def changes_received(self, count: int) -> None:
        await eventually_async(lambda: len(self.changes) >= count)


@asynccontextmanager
async def rebalancing(data_dir: Path, clock: Clock, **settings: object) -> AsyncIterator[Broker]:
    nameserver = build_nameserver(NameserverSettings(listen_port=0), SystemClock())
    await nameserver.start()
    given = {"data_dir": data_dir, "nameservers": nameserver.address, **settings}
    rebalancer = build_rebalancer(RebalancerSettings.model_validate(given), clock)
    await rebalancer.start()
    broker = Broker(rebalancer, nameserver)
    try:
        yield broker
    finally:
        await broker.client.close()
        await rebalancer.stop()
        await nameserver.stop()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(story(), LIMIT_S)

    uvloop.run(within())


def request(client_id: str, reply: SyncGroupReply | None = None, **fields: object) -> SyncGroupRequest:
    made = SyncGroupRequest("g", client_id, subscriptions={"T": "*"})
    if reply is not None:
        made.generation, made.owned = reply.generation, reply.assigned
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def ids(reply: SyncGroupReply) -> list[int]:
    return [item.queue.queue_id for item in reply.assigned]


def test_first_member_gets_all_queues_with_the_first_response(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(4)
            reply = await broker.sync(request("a"))
            assert ids(reply) == [0, 1, 2, 3]
            assert reply.lease_ms == 15_000
            assert (await broker.members("g")).members == ("a",)
            assert await broker.members("other") == GroupMembers()

    run(story)


def test_brokers_are_notified_when_members_or_queues_change(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            first = await broker.sync(request("a"))
            await broker.changes_received(1)
            await broker.sync(request("b"))
            await broker.changes_received(2)
            assert broker.changes[-1] == ("g", GroupMembers(("a", "b")))
            await broker.sync(request("a", first))
            await broker.register(6)
            await broker.rebalancer.coordinator.refresh_routes()
            await broker.changes_received(3)
            reply = await broker.sync(request("a", first))
            assert ids(reply) == [0, 1, 2]

    run(story)


def test_queues_missing_from_the_routes_are_kept_for_the_grace_period(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(4)
            first = await broker.sync(request("a"))
            await broker.register(2)
            clock.advance(10_000)
            await broker.rebalancer.coordinator.refresh_routes()
            second = await broker.sync(request("a", first))
            assert ids(second) == [0, 1, 2, 3]
            clock.advance(14_000)
            await broker.sync(request("a", second))
            for _ in range(4):
                clock.advance(14_000)
                second = await broker.sync(request("a", second))
            await broker.rebalancer.coordinator.refresh_routes()
            assert ids(await broker.sync(request("a", second))) == [0, 1]

    run(story)


def test_restarted_rebalancer_grants_unreported_queues_after_one_lease(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(4)
            held = await broker.sync(request("a", lease_ms=20_000))
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(4)
            assert ids(await broker.sync(request("new"))) == []
            held = await broker.sync(request("a", held, lease_ms=20_000, lease_left_ms=5_000))
            assert ids(held) == [0, 1, 2, 3]
            clock.advance(19_999)
            assert ids(await broker.sync(request("late"))) == []
            held = await broker.sync(request("a", held, lease_ms=20_000))
            clock.advance(1)
            broker.rebalancer.coordinator.expire()
            held = await broker.sync(request("a", held, lease_ms=20_000))
            assert ids(held) == [0, 1], "recovery is over: the queues are shared"
            await broker.sync(request("a", held, lease_ms=20_000))
            assert ids(await broker.sync(request("late"))) == [2, 3], "`new` has sent no further request"

    run(story)


def test_new_group_of_a_restarted_rebalancer_does_not_wait(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            await broker.sync(request("a"))
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            assert ids(await broker.sync(request("a", group="other"))) == [0, 1]

    run(story)


def test_self_assigning_client_switches_its_group_unless_broadcasting(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            await broker.heartbeat("python", "PYTHON")
            await broker.heartbeat("radio", "JAVA", "BROADCASTING")
            assert ids(await broker.sync(request("python"))) == [0, 1]
            await broker.heartbeat("java", "JAVA")
            reply = await broker.sync(request("python"))
            assert reply.is_self_assigning
            assert await broker.members("g") == GroupMembers(("java", "python"), True)
            gone = ForwardUnregisterHeader("b", "java", "g", True)
            await broker.ask(RayMQRequestCode.FORWARD_UNREGISTER, gone.to_ext())
            assert await broker.members("g") == GroupMembers(("python",), False)
            clock.advance(200_000)
            broker.rebalancer.coordinator.expire()
            assert broker.rebalancer.coordinator.groups == {}

    run(story)


def test_leases_expire_after_a_failed_expiry_run(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_group: Group, _now_ns: int) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    async def story() -> None:
        async with rebalancing(tmp_path, clock, lease_check_interval_ms=1) as broker:
            await broker.register(2)
            await broker.sync(request("a"))
            monkeypatch.setattr(Group, "expire", fail)
            clock.advance(200_000)
            await eventually_async(lambda: not broker.rebalancer.coordinator.groups)
            assert broker.rebalancer.describe()["background_task_failures"] == 1

    run(story)


def test_invalid_sync_requests_are_refused_with_the_reason(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock, strategies={"fixed": "averagely_by_circle"}) as broker:
            await broker.register(4)
            with pytest.raises(Refused, match="a lease of 999999 ms exceeds max_lease_ms 120000"):
                await broker.sync(request("a", lease_ms=999_999))
            with pytest.raises(Refused, match="unknown strategy 'best'"):
                await broker.sync(request("a", strategy="best"))
            with pytest.raises(Refused, match="not a valid SYNC_GROUP request"):
                await broker.ask(RayMQRequestCode.SYNC_GROUP, body=b"\xff")
            await broker.sync(request("a"))
            with pytest.raises(
                Refused, match="all members of a group must have the same subscriptions"
            ) as error:
                await broker.sync(request("b", subscriptions={"T": "tag"}))
            assert error.value.code == 7002
            await broker.sync(request("a", group="fixed"))
            assert broker.rebalancer.coordinator.groups["fixed"].strategy.name == "AVG_BY_CIRCLE"

    with structlog.testing.capture_logs():
        run(story)


@pytest.mark.parametrize(("name", "limit"), [("GROUPS", 1), ("MEMBERS", 2), ("OWNED", 12)])
def test_new_members_are_refused_over_a_limit(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    bound = getattr(coordinator, name)
    monkeypatch.setattr(coordinator, name, replace(bound, limit=limit))

    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            rebalancer = broker.rebalancer.coordinator
            await broker.register(2)
            first = await broker.sync(request("a"))
            await broker.heartbeat("s", "JAVA", "BROADCASTING")  # no member
            rebalancer.expire()
            for number in range(4):  # names that no broker has
                reported = [AssignedQueue(MessageQueue(f"x{number}", "b", each), 1) for each in range(3)]
                other = request(f"m{number}", owned=reported, group=f"g{number}")
                with suppress(Refused):
                    await broker.sync(other)
            with pytest.raises(Refused, match=f"would exceed the limit of {limit}: stop members"):
                await broker.sync(request("last", owned=reported, group="last"))
            renewed = await broker.sync(request("a", first))
            assert ids(renewed) == [0, 1]
            [used] = [use.read() for use in rebalancer.bounds() if use.bound.name == bound.name]
            assert used == limit
            clock.advance(120_000)
            rebalancer.expire()
            assert [use.read() for use in rebalancer.bounds()] == [0, 0, 0]
            await broker.sync(request("last", owned=reported, group="last"))

    with structlog.testing.capture_logs():
        run(story)


def test_changed_leases_apply_to_the_next_request(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            live = broker.rebalancer.live
            await broker.register(2)
            live.update({"lease_ms": 7_000, "min_lease_ms": 3_000, "max_lease_ms": 9_000})
            assert (await broker.sync(request("a"))).lease_ms == 7_000
            assert (await broker.sync(request("a", lease_ms=1))).lease_ms == 3_000
            with pytest.raises(Refused, match="a lease of 10000 ms exceeds max_lease_ms 9000"):
                await broker.sync(request("a", lease_ms=10_000))
            with pytest.raises(Refused, match="must have the same subscriptions"):
                await broker.sync(request("b", subscriptions={"T": "tag"}))
            live.update({"allow_subscription_change": True})
            await broker.sync(request("b", subscriptions={"T": "tag"}))

    with structlog.testing.capture_logs():
        run(story)


def test_changed_heartbeat_expiry_applies_to_known_members(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            await broker.heartbeat("java", "JAVA")
            clock.advance(50_000)
            broker.rebalancer.coordinator.expire()
            assert (await broker.members("g")).members == ("java",)
            broker.rebalancer.live.update({"heartbeat_expiry_ms": 40_000})
            broker.rebalancer.coordinator.expire()
            assert (await broker.members("g")).members == ()

    run(story)


def test_sync_is_refused_if_the_generation_cannot_be_saved(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            (tmp_path / "config").write_text("a file where the directory should be")
            with pytest.raises(Refused, match="could not save the generation"):
                await broker.sync(request("a"))
            (tmp_path / "config").unlink()
            assert ids(await broker.sync(request("a"))) == [0, 1]

    run(story)


def test_assignments_are_unchanged_without_a_nameserver(tmp_path: Path, clock) -> None:
    async def story() -> None:
        async with rebalancing(tmp_path, clock) as broker:
            await broker.register(2)
            first = await broker.sync(request("a"))
            await broker.nameserver.stop()
            await broker.rebalancer.coordinator.refresh_routes()
            assert ids(await broker.sync(request("a", first))) == [0, 1]
            assert ids(await broker.sync(request("x", group="h", subscriptions={"U": "*"}))) == []

    with structlog.testing.capture_logs():
        run(story)


def test_invalid_strategy_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown strategy 'best'"):
        RebalancerSettings(data_dir=tmp_path, strategy="best")
    with pytest.raises(ValueError, match="unknown strategy 'best'"):
        RebalancerSettings(data_dir=tmp_path, strategies={"g": "best"})
    settings = RebalancerSettings.model_validate({"data_dir": tmp_path, "nameservers": "a:1; b:2"})
    assert settings.nameservers == ["a:1", "b:2"]


@pytest.mark.parametrize("task", ["route-refresh", "lease-expiry"])
def test_rebalancer_stops_with_the_reason_when_a_task_keeps_failing(
    task: str, tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = {"route-refresh": "refresh_routes", "lease-expiry": "expire"}[task]

    def fail(_coordinator: GroupCoordinator) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(GroupCoordinator, method, fail)
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_MS", 0)
    given = {"data_dir": tmp_path, "route_refresh_interval_ms": 1, "lease_check_interval_ms": 1}
    reasons: list[str] = []

    async def story() -> None:
        rebalancer = build_rebalancer(RebalancerSettings.model_validate(given), clock, reasons.append)
        await rebalancer.start()
        await eventually_async(lambda: bool(reasons))
        await rebalancer.stop()

    run(story)
    assert reasons == [f"task {task} failed 10 times in a row, last with ZeroDivisionError: division by zero"]
