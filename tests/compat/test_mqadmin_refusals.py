"""Errors printed by mqadmin: RayMQ responds with RocketMQ's code and remark."""

from __future__ import annotations

import re

import pytest

from cluster.client import PushConsumer
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.mqadmin import Mqadmin, pairs, rows
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ

pytestmark = pytest.mark.java

QUEUE = {"broker": "broker-a", "queueId": 1}
NO_ROUTE = (
    "CODE: 17  DESC: No topic route info in name server for the topic: {}\n"
    "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
)
BLACK_LIST = "CODE: 16  DESC: Can not update config in black list."
# A command waits for 3 s, and commands of one name run one after another: at most three of each.
REFUSED = {
    "topicRoute -t nosuch": NO_ROUTE.format("nosuch"),
    "topicStatus -t nosuch": NO_ROUTE.format("nosuch"),
    "consumerProgress -g nosuch": NO_ROUTE.format("%RETRY%nosuch"),
    "consumerConnection -g nosuch -b {broker}": "CODE: 206  DESC: the consumer group[nosuch] not online",
    "updateTopic -b {broker} -t bad!name": "CODE: 29  DESC: The specified topic contains illegal characters, "
    "allowing only ^[%|a-zA-Z0-9_-]+$",
    "updateTopic -b {broker} -t SCHEDULE_TOPIC_XXXX": "CODE: 29  DESC: The topic[SCHEDULE_TOPIC_XXXX] is "
    "conflict with system topic.",
    "updateTopic -b {broker} -t {topic}_a -a +message.type=WRONG": "CODE: 1  DESC: value is not in set: "
    "[UNSPECIFIED, TRANSACTION, FIFO, MIXED, DELAY, NORMAL]",
    "deleteTopic -c DefaultCluster -t TBW102": "CODE: 29  DESC: The topic[TBW102] is conflict with system "
    "topic.",
    "updateSubGroup -b {broker} -g {group} -attributes +nosuch=1": "unsupported key: nosuch",
    "cloneGroupOffset -s {group} -d nosuch -t {topic}": "CODE: 26  DESC: Group nosuch not exist!",
    "resetOffsetByTime -g nosuch -t {topic} -s 0": "CODE: 26  DESC: Group nosuch does not exist",
    "resetOffsetByTime -g {group} -t {topic} -s -1 -b {broker} -q 1 -o 100": "CODE: 1  DESC: Target offset "
    "100 not in consume queue range [0-3]",
    "queryCq -b {broker} -t {topic} -q 9 -i 0 -c 3": "CODE: 1  DESC: 9@{topic} is not exist!",
    "queryCq -b {broker} -t {topic} -q 1 -i 0 -c 3 -g nosuch": "nosuch@{topic} is not online!",
    "setConsumeMode -b {broker} -t nosuch -g {group} -m PULL": "CODE: 17  DESC: topic[nosuch] not exist",
    "setConsumeMode -b {broker} -t %RETRY%G -g {group} -m PULL": "CODE: 16  DESC: retry topic is not allowed "
    "to set mode",
    "updateOrderConf -t nosuch -m get": "CODE: 22  DESC: No config item, Namespace: ORDER_TOPIC_CONFIG Key: "
    "nosuch",
    "updateNamesrvConfig -k rocketmqHome -v /": BLACK_LIST,
    "updateBrokerConfig -b {broker} -k rocketmqHome -v /": BLACK_LIST,
    "wipeWritePerm -b nosuch": "wipe write perm of broker[nosuch] in name server[{nameserver}] OK, 0",
    "brokerStatus -b {broker}": "putMessageDistributeTime",
}
BUCKETS = re.compile(r"null|(\[\S+\]:\d+ ?){13}")


@pytest.mark.extended
def test_mqadmin_prints_rocketmq_errors(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str, peer: Peer
) -> None:
    group = names.group()
    client.send_dispatched([{"topic": topic, "body": f"{n}", **QUEUE} for n in range(3)])
    client.call("pull", group=group, topic=topic, offset=0, **QUEUE)
    client.call("commit_offset", group=group, topic=topic, offset=1, **QUEUE)
    client.publish_queues(f"%RETRY%{group}")
    facts = {
        "broker": peer.broker_address,
        "nameserver": peer.nameserver_address,
        "topic": topic,
        "group": group,
    }
    printed = dict(zip(REFUSED, mqadmin.run(*(command.format(**facts) for command in REFUSED)), strict=True))
    for command, words in REFUSED.items():
        assert words.format(**facts) in printed[command], (command, printed[command])
    runtime = pairs(printed["brokerStatus -b {broker}"], " : ")
    assert BUCKETS.fullmatch(runtime["putMessageDistributeTime"]), runtime["putMessageDistributeTime"]
    for name in ("putLatency99", "putLatency999"):
        assert re.fullmatch(r"\d+\.\d\d", runtime[name]), runtime[name]


def test_python_consumer_responds_to_mqadmin(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str, peer: Peer
) -> None:
    if not isinstance(peer, RayMQ):
        pytest.skip("Python consumers respond to mqadmin only in groups of RayMQ")
    group, received = names.group(), []
    [sent] = client.send([{"topic": topic, "body": "hello", **QUEUE}])
    with PushConsumer(peer.nameserver_address, group, received.extend) as consumer:
        consumer.subscribe(topic)
        client.publish_queues(f"%RETRY%{group}")
        [member] = rows(*mqadmin.run(f"consumerConnection -g {group}"))
        assert (member["Language"], member["Version"]) == ("PYTHON", "V5_3_3")
        status, directly = mqadmin.run(
            f"consumerStatus -g {group} -i {member['ClientId']} -s",
            f"queryMsgById -i {sent['offsetMsgId']} -t {topic} -g {group} -d {member['ClientId']}",
        )
        assert {message.body for message in received} == {b"hello"}
    assert "consumeResult=CR_SUCCESS" in directly, directly
    headings = re.findall(r"^#(Consumer .*?|User .*?)#", status, re.MULTILINE)
    assert [heading for heading in headings if "jstack" not in heading] == [
        "Consumer Properties",
        "Consumer Subscription",
        "Consumer Offset",
        "Consumer MQ Detail",
        "Consumer Pop Detail",
        "Consumer RT&TPS",
        "User Consume Info",
    ], status
    assert re.search(
        rf"^{re.escape(topic)} +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +0$", status, re.MULTILINE
    ), status
    assert "TID: " in status
