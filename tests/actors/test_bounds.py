"""No request keeps a text or a list that is longer than declared: the rows of all three processes."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog

from actors.broker.core.group.assignments import QueryAssignment
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.request import BODY_BYTES_MAX, RequestRow
from actors.transport.table import RequestTable
from actors.wire.bodies.access import AclInfo, UserInfo
from actors.wire.bodies.body import Body
from actors.wire.bodies.groups import (
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupRequest,
)
from actors.wire.bodies.locks import LockRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.header import EXPRESSION_CHARS_MAX, Header
from actors.wire.hot_headers import PullMessageHeader
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of, with_broker
from tests.actors.header_names import least_fields
from tests.actors.walk import ENTRIES, LONG_TEXT, long_bodies, long_headers

Ask = Callable[[RemotingCommand], Awaitable[RemotingCommand]]

SYNC = (SyncGroupRequest, {"group": "g", "clientId": "c"})
BODIES: dict[int, tuple[type[Body], dict[str, Any]]] = {
    RequestCode.HEART_BEAT: (HeartbeatData, {"clientID": "c"}),
    RequestCode.LOCK_BATCH_MQ: (LockRequest, {}),
    RequestCode.UNLOCK_BATCH_MQ: (LockRequest, {}),
    RequestCode.QUERY_ASSIGNMENT: (QueryAssignment, {}),
    RequestCode.AUTH_CREATE_USER: (UserInfo, {}),
    RequestCode.AUTH_UPDATE_USER: (UserInfo, {}),
    RequestCode.AUTH_CREATE_ACL: (AclInfo, {}),
    RequestCode.AUTH_UPDATE_ACL: (AclInfo, {}),
    RayMQRequestCode.SYNC_GROUP: SYNC,
    RayMQRequestCode.FORWARD_SYNC: SYNC,
    RayMQRequestCode.FORWARD_HEARTBEAT: (HeartbeatData, {"clientID": "c"}),
    RayMQRequestCode.GROUP_CHANGED: (GroupMembers, {}),
}
OTHER_BODIES: dict[int, list[Any]] = {
    RequestCode.CHECK_CLIENT_CONFIG: [
        {"subscriptionData": value} for _, value in long_bodies(SubscriptionData, {})
    ],
    RayMQRequestCode.COMMIT_OFFSETS: [
        {"group": "g", "offsets": [["T", 0, 0, 0]] * ENTRIES},
        {"group": "g", "offsets": [[LONG_TEXT, 0, 0, 0]]},
        {"group": "g", "offsets": [["T", 0, 0, 0, LONG_TEXT]]},
        {"group": LONG_TEXT, "offsets": []},
        {"group": "g", "clientId": LONG_TEXT, "offsets": []},
    ],
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: [
        {"topicConfigList": [{"topicName": LONG_TEXT}]},
        {"topicConfigList": [{"topicName": "T", "extra": LONG_TEXT}]},
        {"topicConfigList": [{}] * ENTRIES},
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: [
        {"groupName": LONG_TEXT},
        {"groupName": "g", "extra": LONG_TEXT},
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: [
        {"groupConfigList": [{"groupName": LONG_TEXT}]},
        {"groupConfigList": [{"groupName": "g", "extra": LONG_TEXT}]},
        {"groupConfigList": [{}] * ENTRIES},
    ],
    RequestCode.SET_MESSAGE_REQUEST_MODE: [
        {"topic": LONG_TEXT, "consumerGroup": "g", "mode": "PULL"},
        {"topic": "T", "consumerGroup": "g", "mode": "PULL", "extra": LONG_TEXT},
    ],
    RequestCode.REGISTER_BROKER: [
        {"topicConfigSerializeWrapper": {"topicConfigTable": {LONG_TEXT: {"perm": 6}}}},
        {"filterServerList": [LONG_TEXT]},
    ],
}


def too_long(rows: Iterable[RequestRow]) -> Iterator[tuple[str, RemotingCommand]]:
    """Yield commands with one text or list that is too long, and the name of the field."""
    for row in rows:
        least = least_fields(row.header_type) if row.header_type is not None else {}
        if row.body_bytes_max <= BODY_BYTES_MAX:
            yield "the body", RemotingCommand(row.code, least, b" " * (row.body_bytes_max + 1))
        for name, ext in long_headers(row.header_type):
            yield name and f"`{name}`", RemotingCommand(row.code, ext, b"m")
        if row.code in BODIES:
            body_type, more = BODIES[row.code]
            for path, body in long_bodies(body_type, more):
                if path.endswith("subString"):
                    continue  # cut: see the test of long expressions
                yield "limit", RemotingCommand(row.code, least, orjson.dumps(body))
        for body in OTHER_BODIES.get(row.code, ()):
            yield "limit", RemotingCommand(row.code, least, orjson.dumps(body))


async def refuses_all(table: RequestTable, ask: Ask) -> None:
    for name, command in too_long(list(table)):
        response = await ask(command)
        remark = response.remark or ""
        assert response.code != ResponseCode.SUCCESS, (command.code, name, command.ext.keys())
        assert len(remark) <= 4096, (command.code, name, remark)
        assert name in remark, (command.code, name, remark)
        assert not name or "limit" in remark, (command.code, name, remark)


def test_broker_refuses_long_texts_and_lists_in_every_request(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")

        async def ask(command: RemotingCommand) -> RemotingCommand:
            return await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)

        await refuses_all(peer.loop.server.chain.table, ask)
        tables = peer.tables
        kept = {*tables.topics.table.topics, *tables.groups.table.groups, *tables.offsets.generations}
        assert max(map(len, kept)) < 255

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


def test_nameserver_refuses_long_texts_and_lists_in_every_request() -> None:
    nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
    run(lambda: served(nameserver))
    assert not nameserver.routes.topics()


def test_rebalancer_refuses_long_texts_and_lists_in_every_request(tmp_path: Path) -> None:
    settings = RebalancerSettings.model_validate({"data_dir": tmp_path})
    rebalancer = build_rebalancer(settings, SystemClock())
    run(lambda: served(rebalancer))
    assert not rebalancer.coordinator.groups


def test_long_expression_of_a_heartbeat_is_not_kept_and_its_pulls_are_refused(tmp_path: Path) -> None:
    tags = " || ".join(f"tag-{index}" for index in range(10_000))

    async def story(peer: Peer) -> None:
        await peer.send("T")
        assert (await peer.heartbeat("c", "CG", T=tags)).code == ResponseCode.SUCCESS
        group = peer.groups.clients.group("CG")
        assert group is not None
        assert len(group.subscriptions["T"].expression) == EXPRESSION_CHARS_MAX + 1
        subscribed = PullMessageHeader("CG", "T", 0, 0).to_ext()
        for pull in (await peer.ask(RequestCode.PULL_MESSAGE, subscribed), await peer.pull("T", tags=tags)):
            assert pull.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert f"over the limit of {EXPRESSION_CHARS_MAX:,}" in (pull.remark or "")

    with_broker(story, settings_of(tmp_path))


async def served(service: Any) -> None:
    client = RemotingClient(SystemClock())
    await service.start()
    try:
        table = service.server.chain.table
        await refuses_all(table, lambda command: client.invoke(service.address, command, TIMEOUT_MS))
    finally:
        await client.close()
        await service.stop()


def test_a_field_without_largest_length_is_an_error() -> None:
    with pytest.raises(TypeError, match="without a largest length"):
        type("Careless", (Header,), {"__annotations__": {"topic": str}})
    with pytest.raises(TypeError, match="without a largest length"):
        type("Careless", (Body,), {"__annotations__": {"topics": list[int]}})


@pytest.mark.extended
def test_refused_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        rows = list(peer.loop.server.chain.table)
        await peer.send("T")
        commands = itertools.chain.from_iterable(map(too_long, itertools.repeat(rows)))

        async def send(count: int) -> None:
            for _, command in itertools.islice(commands, count):
                await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)
            gc.collect()

        await send(50)  # buffers of client and broker
        before = resident_bytes()
        await send(1000)
        grown = resident_bytes() - before
        assert grown <= 64 << 20

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096
