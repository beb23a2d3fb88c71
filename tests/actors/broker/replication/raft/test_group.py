"""Three brokers with real sockets and stores elect a leader, and keep what it has acknowledged."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from actors.broker.replication.raft.raft_requests import raft_message
from actors.broker.replication.raft_log import RaftLog
from actors.raft.group_record import GROUP_TOPIC
from actors.raft.members import Member
from actors.raft.messages import LeaderNotice, VoteRequest
from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RequestCode, ResponseCode
from cluster.views.brokers import load_of
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run
from tests.actors.broker.features.metrics.test_board import METRICS_OF_GROUPS
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async


async def bodies(group: Group, replica: int, queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while page := await group.peers[replica].messages("T", len(found), queue_id):
        found += [each.body for each in page]
    return found


def log_of(group: Group, replica: int) -> bytes:
    store = group.peers[replica].store
    data, end = b"", store.positions.written
    while len(data) < end:
        data += bytes(store.log_bytes(len(data), end - len(data)))
    return data


async def refuses_sends_to_its_own_topic(group: Group) -> None:
    _, forbidden = await group.of_leader(partial(Peer.send, topic=GROUP_TOPIC))
    assert forbidden.code == ResponseCode.NO_PERMISSION


REASONS = {
    ResponseCode.NO_PERMISSION: "(store another-store) is not a member",
    ResponseCode.INVALID_PARAMETER: "term 1,099,511,627,776 of replica 1",
}


async def refuses_foreign_messages(group: Group) -> None:
    """A message with a lower term, one far ahead, or of a store that is no member, changes nothing."""
    peer, me, other = group.peers[0], group.members[0], group.members[1]
    identity = peer.store.identity.identity
    name = f"{identity.cluster}/{identity.broker}"
    log, term = log_of(group, 0)[: group.figure(0, "confirmed")], group.figure(0, "raft_term") + 1_000
    stranger = Member(1, "another-store")
    for message, code in (
        (LeaderNotice(stranger, term), ResponseCode.NO_PERMISSION),
        (VoteRequest(stranger, term, False, term, 1 << 40), ResponseCode.NO_PERMISSION),
        (LeaderNotice(other, 1 << 40), ResponseCode.INVALID_PARAMETER),
        (VoteRequest(other, 1 << 40, False, term, 1 << 40), ResponseCode.INVALID_PARAMETER),
        (LeaderNotice(other, 0), ResponseCode.SUCCESS),
        (VoteRequest(other, 0, False, 0, 1 << 40), ResponseCode.SUCCESS),
    ):
        response = await peer.client.invoke(peer.broker.address, raft_message(name, me, message), TIMEOUT_MS)
        assert response.code == code
        assert code == ResponseCode.SUCCESS or REASONS[code] in str(response.remark)
    assert group.figure(0, "raft_term") < term
    assert log_of(group, 0).startswith(log)


async def reports_its_group(group: Group, leader: int) -> None:
    """The leader reports what it knows of the others, as figures and as runtime information."""
    others = [each for each in range(3) if each != leader]

    def match() -> str:
        return ", ".join(f"{each}: {group.figure(leader, 'written')}" for each in others)

    await eventually_async(lambda: group.figure(leader, "raft_match") == match())
    await eventually_async(lambda: group.figure(leader, "raft_active_voters") == 3)
    assert [group.figure(each, "raft_is_leader") for each in (leader, *others)] == [1, 0, 0]
    assert [group.figure(each, "raft_voters") for each in range(3)] == [3, 3, 3]
    assert [group.figure(each, "raft_voter_numbers") for each in range(3)] == ["0, 1, 2"] * 3
    assert [group.figure(each, "raft_match") for each in others] == ["", ""]
    runtime = decode_kv_table((await group.peers[leader].ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    load = load_of(runtime, 0)
    assert (load.raft_active_voters, load.raft_voters, load.is_bare_majority) == (3, 3, False)
    figures = {each.metric: each for each in group.peers[leader].figures}
    assert figures.keys() > METRICS_OF_GROUPS
    lags = figures["raymq_raft_member_lag_bytes"].samples()
    assert {each.labels: each.value for each in lags} == {(str(each),): 0 for each in others}


def test_acknowledged_messages_survive_the_loss_of_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            numbers = [b"%d" % number for number in range(20)]
            for body in numbers:
                first = await group.send(body)
            others = [each for each in range(3) if each != first]
            refused = await group.peers[others[0]].send("T")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "SEND_MESSAGE_V2 is refused: replica" in (refused.remark or "")

            group.isolate(first)
            waiting = [asyncio.ensure_future(group.peers[first].send("T", b"lost")) for _ in range(5)]
            for each in await asyncio.gather(*waiting):
                assert each.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
                assert "does not lead its group" in (each.remark or "")
            late = await group.peers[first].send("T")
            assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE

            second = await group.send(b"after", others)
            known = await bodies(group, second)
            assert list(dict.fromkeys(known)) == [*numbers, b"after"]  # a repeated send may be there twice
            await eventually_async(group.is_leader_registered)
            group.heal()
            await eventually_async(lambda: log_of(group, first) == log_of(group, second))
            await eventually_async(lambda: group.figure(first, "confirmed") == group.figure(first, "written"))
            assert await bodies(group, first) == known
            await eventually_async(group.is_leader_registered)

    run(story)


def test_minority_refuses_sends_and_restarted_replicas_continue(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"kept")
            await refuses_sends_to_its_own_topic(group)
            await refuses_foreign_messages(group)
            await reports_its_group(group, leader)
            others = [each for each in range(3) if each != leader]
            await group.stop(others[0])
            await eventually_async(lambda: group.figure(leader, "raft_active_voters") == 2)
            await group.stop(others[1])
            await eventually_async(lambda: group.figure(leader, "raft_state") != "leader")
            refused = await group.peers[leader].send("T", b"refused")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            await group.stop(leader)
            for each in others:
                await group.start(each)
            second = await group.send(b"again", others)
            assert list(dict.fromkeys(await bodies(group, second))) == [b"kept", b"again"]

    run(story)


def test_leader_reads_new_records_once_for_all_followers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[RaftLog, int, int]] = []
    read = RaftLog.read

    def noted_read(log: RaftLog, offset: int, max_bytes: int) -> bytes:
        reads.append((log, offset, log.end))
        return read(log, offset, max_bytes)

    monkeypatch.setattr(RaftLog, "read", noted_read)

    async def story() -> None:
        async with Group(tmp_path) as group:
            await group.send(b"first")
            await eventually_async(lambda: log_of(group, 0) == log_of(group, 1) == log_of(group, 2))
            reads.clear()
            for number in range(10):
                await group.send(b"%d" % number)
                await eventually_async(lambda: log_of(group, 0) == log_of(group, 1) == log_of(group, 2))
            assert len(reads) == len(set(reads))
            assert len(reads) >= 10

    run(story)
