"""RayMQ's own requests with invalid header fields and bodies are refused by the name of what is wrong."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from msgspec import inspect

from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.request import RequestRow
from actors.wire.bodies.body import Body
from actors.wire.bodies.groups import HeartbeatData, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.raymq_requests import CommitOffsetsBody
from actors.wire.remoting_errors import Refused
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of, with_broker
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.header_names import least_fields

Ask = Callable[[RemotingCommand], Awaitable[RemotingCommand]]

CODE = RayMQRequestCode
VALID: dict[int, tuple[type[Body], dict[str, Any]]] = {
    CODE.COMMIT_OFFSETS: (
        CommitOffsetsBody,
        {"group": "g", "clientId": "c", "offsets": [["T", 0, 0, 0]]},
    ),
    CODE.SYNC_GROUP: (SyncGroupRequest, {"group": "g", "clientId": "c"}),
    CODE.FORWARD_SYNC: (SyncGroupRequest, {"group": "g", "clientId": "c"}),
    CODE.FORWARD_HEARTBEAT: (HeartbeatData, {"clientID": "c"}),
}
"""Requests with a JSON body of declared fields, and a valid body."""
NEGATIVE: dict[tuple[int, str], tuple[str, ...]] = {
    (CODE.APPEND_BATCH, "queueId"): ("-2",),  # -1: the broker chooses
    (CODE.CHANGE_RAFT_MEMBERS, "addReplica"): ("-2",),  # -1: none
    (CODE.CHANGE_RAFT_MEMBERS, "removeReplica"): ("-2",),
    (CODE.PULL_RECORDS, "queueOffset"): (),  # out of range: a pull status, as in RocketMQ
    (CODE.FORWARD_HEARTBEAT, "version"): (),  # as the client has sent it
}
"""Negative numbers that are invalid, for the fields that accept others; all others accept none."""
NOT_OBJECTS = (b"", b"[]", b"[1]", b'"x"', b"7", b"null", b"{", b'{"group"', b"\xff\xfe")


def wrong_headers(row: RequestRow) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the fields of a header with one that is absent, negative or too large, and its name."""
    if not hasattr(row.header_type, "__struct_fields__"):
        return
    least = least_fields(row.header_type)
    for field in msgspec.structs.fields(row.header_type):
        key = field.encode_name
        if field.required and key in least:
            yield key, {name: value for name, value in least.items() if name != key}
        kind = inspect.type_info(field.type)
        kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
        if any(isinstance(each, inspect.IntType) for each in kinds):
            negative = NEGATIVE.get((row.code, key), ("-1", "-2"))
            for value in (*negative, "9" * 30, "-" + "9" * 30, "seven", "1.5", ""):
                yield key, {**least, key: value}


def wrong_bodies(valid: dict[str, Any], body_type: type[Body]) -> Iterator[tuple[str, bytes]]:
    """Yield bodies with one field of the wrong shape, and its name."""
    title, encoded = body_type.title, json.dumps(valid).encode()
    yield from ((title, body) for body in NOT_OBJECTS)
    for length in (1, len(encoded) // 2):
        yield title, encoded[:length]
    for key in valid:
        yield key, json.dumps({name: value for name, value in valid.items() if name != key}).encode()
        yield key, json.dumps({**valid, key: {"a": 1}}).encode()
    for row, name in (
        ([], "offsets"),
        (["T", 0], "offsets"),
        (7, "offsets"),
        ([["T"], 0, 0, 0], "topic"),
        (["T", "x", 0, 0], "queueId"),
        (["T", 0, "x", 0], "offset"),
        (["T", 0, 0, {}], "generation"),
        (["T", 0, -1, 0], "offset"),
        (["T", -1, 0, 0], "queue"),
        (["T", 10**20, 0, 0], "queueId"),
        (["T", 0, 10**20, 0], "offset"),
    ):
        if "offsets" in valid:
            yield name, json.dumps({**valid, "offsets": [row]}).encode()


async def refused(ask: Ask, name: str, code: int, ext: dict[str, str], body: bytes) -> None:
    response = await ask(RemotingCommand(code, ext, body))
    shown = (CODE(code).name, ext, body, response.code, response.remark)
    assert response.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}, shown
    assert name in (response.remark or ""), shown


async def refuses_all(table: Iterable[RequestRow], ask: Ask) -> set[int]:
    """Send all invalid requests that `table` handles, and return their codes."""
    rows = [row for row in table if row.code in set(CODE)]
    for row in rows:
        for name, ext in wrong_headers(row):
            await refused(ask, f"`{name}`", row.code, ext, b"")
        least = {} if row.header_type is None else least_fields(row.header_type)
        if row.code in VALID:
            body_type, valid = VALID[row.code]
            for name, body in wrong_bodies(valid, body_type):
                await refused(ask, name, row.code, least, body)
        for body in NOT_OBJECTS:
            response = await ask(RemotingCommand(row.code, least, body))
            assert "Error" not in (response.remark or ""), (row.code, body, response.remark)
    return {row.code for row in rows}


def test_invalid_requests_to_broker_and_rebalancer_are_refused_by_name(tmp_path: Path) -> None:
    codes: set[int] = set()

    async def of_broker(peer: Peer) -> None:
        await peer.send("T")
        codes.update(
            await refuses_all(
                peer.loop.requests,
                lambda command: peer.client.invoke(peer.broker.address, command, TIMEOUT_MS),
            )
        )

    async def of_rebalancer() -> None:
        settings = RebalancerSettings.model_validate({"data_dir": tmp_path / "rebalancer"})
        rebalancer, client = build_rebalancer(settings, SystemClock()), RemotingClient(SystemClock())
        await rebalancer.start()
        codes.update(
            await refuses_all(
                rebalancer.server.chain.table,
                lambda command: client.invoke(rebalancer.address, command, TIMEOUT_MS),
            )
        )
        await client.close()
        await rebalancer.stop()

    with structlog.testing.capture_logs():
        with_broker(of_broker, settings_of(tmp_path))
        run(of_rebalancer)
    assert codes == set(CODE)


def test_invalid_requests_to_a_replica_of_a_raft_group_are_refused_by_name(tmp_path: Path) -> None:
    raft = {CODE.RAFT_MESSAGE, CODE.CHANGE_RAFT_MEMBERS, CODE.GET_RAFT_MEMBERS, CODE.TRANSFER_LEADERSHIP}

    async def story() -> None:
        async with Group(tmp_path) as group:
            peer = group.peers[1]  # a transfer to replica 1 changes nothing here
            await refuses_all(
                [row for row in peer.loop.requests if row.code in raft],
                lambda command: peer.client.invoke(peer.broker.address, command, TIMEOUT_MS),
            )

    with structlog.testing.capture_logs():
        run(story)


def test_number_in_a_text_of_a_commit_is_accepted() -> None:
    body = CommitOffsetsBody.decode(b'{"group":"g","clientId":7,"offsets":[["T","3",4,5]]}')
    assert (body.client_id, body.offsets[0].queue_id) == ("7", 3)


@pytest.mark.parametrize("row", ["[]", '["T",0]'])
def test_short_row_of_a_commit_is_refused_with_its_fields(row: str) -> None:
    with pytest.raises(Refused, match="a list of topic, queueId, offset, generation"):
        CommitOffsetsBody.decode(f'{{"group":"g","clientId":"c","offsets":[{row}]}}'.encode())
