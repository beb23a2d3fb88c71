"""RAFT_MESSAGE is taken only from the inner user, and only for this member of this group."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.replication.raft.raft_requests import RaftPeer, RaftRequests, raft_message
from actors.raft.members import Member
from actors.raft.messages import LeaderNotice, Message
from actors.transport.client import RemotingClient
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, run
from tests.actors.broker.core.auth.access_peers import DENIED, inner_file
from tests.actors.broker.replication.ha.test_copied_users import signing
from tests.actors.broker.replication.ha.test_ha_client import broker
from tests.eventually import eventually_async

RAFT = RayMQRequestCode.RAFT_MESSAGE
A, B = Member(0, "a"), Member(1, "b")
GROUP = "DefaultCluster/broker-a"
NOTICE = LeaderNotice(A, 3)


def garbage(body: bytes) -> RemotingCommand:
    command = raft_message(GROUP, B, NOTICE)
    command.body = body
    return command


def test_message_arrives_one_way_at_the_member_that_it_names() -> None:
    async def story() -> None:
        received: list[Message] = []
        table = RequestTable(
            RaftRequests(RaftPeer(GROUP, B, lambda message, *_: received.append(message))).rows()
        )
        server, client = RemotingServer(table, SystemClock()), RemotingClient(SystemClock())
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        client.oneway(address, raft_message(GROUP, B, NOTICE))
        await eventually_async(lambda: received == [NOTICE])
        for command, code, reason in (
            (raft_message("DefaultCluster/broker-b", B, NOTICE), ResponseCode.SYSTEM_ERROR, "broker-b"),
            (raft_message(GROUP, Member(1, "old"), NOTICE), ResponseCode.SYSTEM_ERROR, "store old"),
            (raft_message(GROUP, Member(2, "b"), NOTICE), ResponseCode.SYSTEM_ERROR, "replica 2"),
            (raft_message(GROUP, B, LeaderNotice(B, 3)), ResponseCode.INVALID_PARAMETER, "from itself"),
            (garbage(b"garbage"), ResponseCode.INVALID_PARAMETER, "not a message of a Raft group"),
            (garbage(b""), ResponseCode.INVALID_PARAMETER, "not a message of a Raft group"),
        ):
            response = await client.invoke(address, command, TIMEOUT_MS)
            assert (response.code, reason in (response.remark or "")) == (code, True), response.remark
        assert received == [NOTICE]
        await client.close()
        await server.stop()

    run(story)


def test_broker_without_a_group_takes_no_message(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path) as peer:
            response = await peer.client.invoke(
                peer.broker.address, raft_message(GROUP, B, NOTICE), TIMEOUT_MS
            )
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "is in no Raft group" in (response.remark or "")

    run(story)


@pytest.mark.parametrize("name", ["root", "alice", ""])
def test_only_the_inner_user_may_send_a_message(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        access = {"authentication_enabled": True, "inner_credentials_file": inner_file(tmp_path)}
        async with broker(tmp_path, **access) as peer, signing(peer) as inner:
            await inner.create_user("root", "Super")
            await inner.create_user("alice")
            command = raft_message(GROUP, B, NOTICE)
            if name:
                async with signing(peer, name) as user:
                    refused = await user.ask(RAFT, command.ext, bytes(command.body))
            else:
                refused = await peer.ask(RAFT, command.ext, bytes(command.body))
            assert refused.code == DENIED
            accepted = await inner.ask(RAFT, command.ext, bytes(command.body))
            assert "is in no Raft group" in (accepted.remark or "")

    run(story)
