"""RocketMQ's Java clients with two RayMQ nameservers, and RayMQ's broker at RocketMQ's nameserver."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader
from tests.actors.broker.brokers import A_DAY_MS, TIMEOUT_MS, Peer, run, serving, settings_of
from tests.cluster.client.conftest import Cluster
from tests.compat.agent import Agent
from tests.compat.build import CLIENT, JavaKit
from tests.compat.rocketmq import RocketMQ

pytestmark = pytest.mark.java

SEND_OK = "SEND_OK"


def test_java_clients_keep_working_while_one_nameserver_is_down(kit: JavaKit, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster", nameservers=2)
    bodies: list[str] = []
    try:
        topic = cluster.topic()
        with Agent(kit, CLIENT, cluster.address, tmp_path / "agent") as client:

            def send(to: str) -> None:
                body = f"{to} {len(bodies)}"
                [result] = client.send([{"topic": to, "body": body}])
                assert result.get("status") == SEND_OK, result
                bodies.append(body)

            client.call("push_start", name="seen", group="G_two", topic=topic)
            send(topic)
            for address in cluster.addresses:
                cluster.stop_nameserver(address)
                send(topic)
                fresh = cluster.topic()
                client.publish_queues(fresh)  # queried from the remaining nameserver
                send(fresh)
                bodies.pop()
                cluster.start_nameserver(address)
                cluster.await_registration()
            received = client.received("seen", len(bodies))
            assert sorted(message["body"] for message in received) == sorted(bodies)
    finally:
        cluster.stop()


@pytest.mark.extended
def test_rocketmq_nameserver_keeps_the_topics_that_have_not_changed(kit: JavaKit, tmp_path: Path) -> None:
    async def create(peer: Peer, topic: str, queues: int) -> None:
        header = CreateTopicHeader(topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())).code == 0

    async def story() -> None:
        settings = settings_of(
            tmp_path, nameservers=rocketmq.nameserver_address, register_interval_ms=A_DAY_MS
        )
        async with serving(settings) as peer:
            await create(peer, "T", 1)
            await create(peer, "U", 2)
            await create(peer, "T", 3)
            for topic, queues in (("T", 3), ("U", 2), ("TBW102", 8)):
                request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                route = await peer.client.invoke(rocketmq.nameserver_address, request, TIMEOUT_MS)
                assert route.code == ResponseCode.SUCCESS, topic
                assert b'"readQueueNums":%d' % queues in bytes(route.body), topic

    rocketmq = RocketMQ(kit, tmp_path / "rocketmq")
    rocketmq.start_nameserver()
    try:
        run(story)
    finally:
        rocketmq.stop()
