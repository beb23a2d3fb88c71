"""A slave serves reads, and refuses what only a master handles with RocketMQ's codes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson

from actors.broker.core.role import Role
from actors.broker.replication.ha.slave_requests import SlaveRequests
from actors.broker.replication.raft.forwarding import FORWARDED
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from actors.wire.remoting_errors import Refused
from tests.actors.broker.brokers import Peer, registered_broker, run, settings_of, slave_of, with_broker
from tests.eventually import eventually_async

MASTER = "10.0.0.1:10911"
BUSY = {
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RayMQRequestCode.SEND_RUNS,
    RayMQRequestCode.APPEND_BATCH,
}
UNAVAILABLE = {RequestCode.END_TRANSACTION, RequestCode.RECALL_MESSAGE}
READS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RayMQRequestCode.PULL_RECORDS}
USERS = {
    RequestCode.AUTH_CREATE_USER,
    RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_CREATE_ACL,
    RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL,
}
FOR_ALL = {*USERS, RequestCode.DELETE_TOPIC_IN_BROKER}
"""What mqadmin 5.3.3 sends to masters and slaves of a cluster (`-c`)."""
ACKS = {
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.LITE_SUBSCRIPTION_CTL,  # may reset offsets
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RayMQRequestCode.COMMIT_OFFSETS,
}
OF_SERVICES = {
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.POP_LITE_MESSAGE,
    RequestCode.LITE_SUBSCRIPTION_CTL,
    RequestCode.GET_BROKER_LITE_INFO,
    RequestCode.GET_PARENT_TOPIC_INFO,
    RequestCode.GET_LITE_TOPIC_INFO,
    RequestCode.GET_LITE_CLIENT_INFO,
    RequestCode.GET_LITE_GROUP_INFO,
    RequestCode.TRIGGER_LITE_DISPATCH,
}
CHANGES: dict[int, set[str]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: {"mode"},
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"mode"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"mode"},
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"mode"},
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"mode", "offset"},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {"mode"},
    RequestCode.LOCK_BATCH_MQ: {"lock"},
    RequestCode.UNLOCK_BATCH_MQ: {"lock"},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"offset", "reset"},
    RequestCode.CLONE_GROUP_OFFSET: {"offset", "reset"},
    RayMQRequestCode.DRAIN_BROKER: {"drain"},
    **{code: {"user", "policy"} for code in USERS},
}
"""The requests of which a Raft group confirms the changes, and the tables."""
REFUSED = {
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    *FOR_ALL,
}
OFFSETS = {
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RayMQRequestCode.COMMIT_OFFSETS,
}


def outcome(
    row: RequestRow, role: Role = Role.SLAVE, *, may_read: bool = False, is_former_master: bool = False
) -> tuple[int, str]:
    """Return the code and remark with which the step refuses a request; (0, "") if it does not."""
    settings = cast("Any", SimpleNamespace(slave_read_enable=may_read, broker_name="broker-a"))
    step = SlaveRequests(settings, lambda: role, lambda: MASTER, lambda: "fenced", lambda: is_former_master)
    try:
        step(cast("RequestContext", SimpleNamespace(row=row)))
    except Refused as error:
        return error.code, error.remark
    return 0, ""


def test_every_row_of_the_request_table_has_its_outcome_on_a_slave(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        rows = peer.loop.requests.rows
        assert rows.keys() >= {*map(int, BUSY | UNAVAILABLE | READS | REFUSED)}
        for code, row in rows.items():
            status, remark = outcome(row)
            if code in BUSY or code in READS:
                assert status == ResponseCode.SYSTEM_BUSY, code
                assert remark.startswith("[REJECTREQUEST]system busy, start flow control for a while"), code
            elif code in UNAVAILABLE:
                assert status == ResponseCode.SLAVE_NOT_AVAILABLE, code
            elif code in REFUSED or row.on_slave is OnSlave.REFUSED:
                assert status == ResponseCode.SERVICE_NOT_AVAILABLE, code
            else:
                expected = OnSlave.OFFSETS if code in OFFSETS else OnSlave.SERVED
                assert (status, row.on_slave) == (0, expected), code
                assert row.cost is not Cost.SEND, code
            assert (MASTER in remark) == bool(status)
            assert outcome(row, Role.MASTER) == (0, "")
            if code in READS:
                assert outcome(row, may_read=True) == (0, "")

    with_broker(story, settings_of(tmp_path))


def test_every_row_says_what_replicas_do_with_the_request(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        rows = peer.loop.requests.rows
        for code, row in rows.items():
            assert row.is_for_all is (code in FOR_ALL), code
            assert row.is_ack is (code in ACKS), code
            assert row.needs_services is (code in OF_SERVICES), code
            assert set(row.changes) == CHANGES.get(code, set()), code
        assert rows.keys() >= {*map(int, FOR_ALL | ACKS | OF_SERVICES | CHANGES.keys())}

    with_broker(story, settings_of(tmp_path))


def test_every_row_of_the_request_table_has_its_outcome_on_a_fenced_broker(tmp_path: Path) -> None:
    """If another process has the same store, reads are right; the log of another replica may differ."""

    async def story(peer: Peer) -> None:
        for code, row in peer.loop.requests.rows.items():
            is_served, is_read = row.on_slave is OnSlave.SERVED, code in READS | OFFSETS
            refusal = ResponseCode.SERVICE_NOT_AVAILABLE
            assert outcome(row, Role.FENCED)[0] == (0 if is_served or is_read else refusal), code
            status, remark = outcome(row, Role.FENCED, may_read=True, is_former_master=True)
            assert status == (0 if is_served else refusal), code
            assert is_served or remark.endswith("is refused by a fenced broker: fenced")

    with_broker(story, settings_of(tmp_path))


def test_slave_refuses_writes_with_the_address_of_its_master(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        before = peer.store.positions.written
        sent = await peer.send("T")
        assert sent.code == ResponseCode.SYSTEM_BUSY
        assert (sent.remark or "").startswith("[REJECTREQUEST]system busy")
        header = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=1, perm=6)
        created = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        assert created.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "master of broker-a, which is not registered" in (created.remark or "")
        assert peer.store.positions.written == before
        assert (await peer.ask(RayMQRequestCode.DESCRIBE_BROKER)).code == 0

    with_broker(story, settings_of(tmp_path, role="slave"))


def test_slave_serves_pulls_only_while_slave_read_enable_is_true(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.pull("BenchmarkTest")).code == ResponseCode.SYSTEM_BUSY
        body = b"slaveReadEnable=true\n"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0
        assert (await peer.pull("BenchmarkTest")).code == ResponseCode.PULL_NOT_FOUND

    with_broker(story, settings_of(tmp_path, role="slave"))


def test_former_master_takes_no_send_by_the_compiled_path(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        graph = peer.broker.graph
        await graph.role.become(Role.MASTER, 1)
        for _ in range(3):  # the first one makes the queue known to the compiled path
            assert (await peer.send("T")).code == 0
        await graph.role.become(Role.SLAVE, 1)
        before = graph.loop.store.positions.written
        assert (await peer.send("T")).code == ResponseCode.SYSTEM_BUSY
        assert graph.loop.store.positions.written == before

    with_broker(story, settings_of(tmp_path, role="slave"))


def test_broker_config_reports_role_and_id_in_rocketmqs_terms(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        lines = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
        assert {"brokerRole=SLAVE", "brokerId=2", "slaveReadEnable=false"} <= set(lines)
        described = orjson.loads((await peer.ask(RayMQRequestCode.DESCRIBE_BROKER)).body)
        assert (described["role"], described["broker_id"]) == ("slave", 2)

    with_broker(story, settings_of(tmp_path, role="slave", replica=1))


def test_remark_names_the_registered_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (_, master), slave_of(master, tmp_path) as slave:
            refused = await slave.ask(RequestCode.LOCK_BATCH_MQ, body=b"{}")
            assert f"send it to the master of broker-a, {master.broker.address}" in (refused.remark or "")

    run(story)


def test_slave_cleans_no_queue_of_a_topic_that_it_does_not_know(tmp_path: Path) -> None:
    """mqadmin sends CLEAN_UNUSED_TOPIC to all brokers of a cluster; a slave may not know a new topic yet."""

    async def story(peer: Peer) -> None:
        graph = peer.broker.graph
        await graph.role.become(Role.MASTER, 1)
        assert (await peer.send("T")).code == 0
        await eventually_async(lambda: ("T", 0) in graph.loop.store.queues())
        graph.tables.topics.delete("T")
        await graph.role.become(Role.SLAVE, 1)
        assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
        assert ("T", 0) in graph.loop.store.queues()
        await graph.role.become(Role.FENCED, 1)
        refused = await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE

    with_broker(story, settings_of(tmp_path, role="slave"))


def test_slave_forwards_what_mqadmin_sends_to_all_replicas(tmp_path: Path) -> None:
    """`deleteTopic -c` ends at the first error, and sends to slaves first or last."""

    async def story() -> None:
        async with (
            registered_broker(tmp_path, replication="async") as (_, master),
            slave_of(master, tmp_path) as slave,
        ):
            topics = master.tables.topics

            async def delete(peer: Peer, **ext: str) -> RemotingCommand:
                return await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T", **ext})

            for first, second in ((master, slave), (slave, master)):
                assert (await master.send("T")).code == 0
                for peer in (first, second):
                    deleted = await delete(peer)
                    assert deleted.code == ResponseCode.SUCCESS, deleted.remark
                    assert topics.find("T") is None
            assert (await delete(slave, **{FORWARDED: "true"})).code == ResponseCode.SERVICE_NOT_AVAILABLE

    run(story)
