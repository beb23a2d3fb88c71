"""RocketMQ's mqadmin prints the same for RayMQ brokers as for RocketMQ brokers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.mqadmin import Mqadmin, pairs, rows
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = pytest.mark.java

QUEUE = {"broker": "broker-a", "queueId": 1}
# The names in RocketMQ 5.3.3's runtime info, except one that contains a path.
RUNTIME_NAMES = frozenset(
    """
    EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
    ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerActive brokerVersion
    brokerVersionDesc commitLogDirCapacity commitLogDiskRatio commitLogMaxOffset commitLogMinOffset
    consumeQueueDiskRatio dispatchBehindBytes dispatchMaxBuffer earliestMessageTimeStamp getFoundTps
    getMessageEntireTimeMax getMissTps getTotalTps getTransferredTps litePullThreadPoolQueueCapacity
    litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize msgGetTotalTodayMorning
    msgGetTotalTodayNow msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
    msgPutTotalYesterdayMorning pageCacheLockTimeMills pullThreadPoolQueueCapacity
    pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putLatency99 putLatency999
    putMessageAverageSize putMessageDistributeTime putMessageEntireTimeMax putMessageFailedTimes
    putMessageSizeTotal putMessageTimesTotal putTps queryThreadPoolQueueCapacity
    queryThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize remainHowManyDataToFlush
    remainTransientStoreBufferNumbs runtime sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills
    sendThreadPoolQueueSize startAcceptSendRequestTimeStamp timerCongestNum timerDequeueTps timerEnqueueTps
    timerOffsetBehind timerReadBehind
    """.split()  # noqa: SIM905 -- names
)


def filled(client: Agent, topic: str, group: str, count: int, committed: int) -> list[dict[str, object]]:
    """Send `count` messages to queue 1, pull all of them as `group` and commit offset `committed`."""
    sent = client.send_dispatched(
        [{"topic": topic, "body": f"{n}", "keys": f"k{n}", **QUEUE} for n in range(count)]
    )
    client.call("pull", group=group, topic=topic, offset=0, **QUEUE)
    client.call("commit_offset", group=group, topic=topic, offset=committed, **QUEUE)
    client.publish_queues(f"%RETRY%{group}")  # the tool finds the brokers of a group by this topic
    return sent


def test_mqadmin_query_commands(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str, peer: Peer
) -> None:
    group, online, broker = names.group(), names.group("_online"), peer.broker_address
    sent = filled(client, topic, group, count=6, committed=4)
    client.call("push_start", name=topic, group=online, topic=topic)
    client.received(topic, 6)
    commands = {
        "clusters": "clusterList",
        "totals": "clusterList -m",
        "runtime": f"brokerStatus -b {broker}",
        "topic": f"topicStatus -t {topic}",
        "progress": f"consumerProgress -g {group}",
        "online": f"consumerConnection -g {online}",
        "all": "consumerProgress",
        "member": f"consumerStatus -g {online}",
        "stats": f"statsAll -t {topic}",
        "key": f"queryMsgByKey -t {topic} -k k2",
        "units": f"queryCq -b {broker} -t {topic} -q 1 -i 2 -c 3",
        "config": f"getConsumerConfig -g {group}",
        "producers": f"producer -b {broker}",
        "missing": f"producerConnection -g missing -t {topic}",
    }
    printed = dict(zip(commands, mqadmin.run(*commands.values()), strict=True))
    eventually(
        lambda: (
            "(CompatProducers)" in printed["producers"]
            or printed.update(producers=mqadmin.run(commands["producers"])[0])
        ),
        "the producer's heartbeat",
    )
    member = rows(printed["online"])[0]["ClientId"]
    [directly] = mqadmin.run(f"queryMsgById -i {sent[3]['offsetMsgId']} -t {topic} -g {online} -d {member}")
    client.call("push_stop", name=topic)
    assert "CR_SUCCESS" in directly, directly
    assert_brokers(printed, broker)
    assert_progress(printed, topic, group)
    assert_members(printed, online)
    [found] = rows(printed["key"])
    assert (found["Message ID"], found["QID"], found["Offset"]) == (sent[2]["msgId"], "1", "2")
    assert "max: 6, min: 0" in printed["units"]
    assert printed["units"].count("ConsumeQueueData{physicOffset=") == 3
    assert pairs(printed["config"], "=")["retryMaxTimes"] == "16"


def assert_brokers(printed: Mapping[str, str], broker: str) -> None:
    [cluster] = rows(printed["clusters"])
    columns = ("Cluster Name", "Broker Name", "BID", "Addr", "Version")
    assert [cluster[name] for name in columns] == ["DefaultCluster", "broker-a", "0", broker, "V5_3_3"]
    assert "true" in printed["clusters"].splitlines()[1].split()
    [totals] = rows(printed["totals"])
    assert int(totals["InTotalToday"]) >= 6
    runtime = pairs(printed["runtime"], ":")
    assert runtime.keys() >= RUNTIME_NAMES  # RayMQ also reports its event loop
    assert int(runtime["msgPutTotalTodayNow"]) >= 6


def assert_progress(printed: Mapping[str, str], topic: str, group: str) -> None:
    ends = {row["QID"]: (row["Min Offset"], row["Max Offset"]) for row in rows(printed["topic"])}
    assert ends == {"0": ("0", "0"), "1": ("0", "6"), "2": ("0", "0"), "3": ("0", "0")}
    progress = {row["QID"]: row for row in rows(printed["progress"]) if row["Topic"] == topic}
    columns = ("Broker Offset", "Consumer Offset", "Diff", "Inflight")
    assert [progress["1"][name] for name in columns] == ["6", "4", "2", "2"]
    assert "Consume Diff Total: 2" in printed["progress"]
    assert [row for row in rows(printed["stats"]) if group in row.values()], printed["stats"]


def assert_members(printed: Mapping[str, str], online: str) -> None:
    assert any(row["Group"] == online and row["Model"] == "CLUSTERING" for row in rows(printed["all"]))
    [connection] = rows(printed["online"])
    assert (connection["Language"], connection["Version"]) == ("JAVA", "V5_3_3")
    assert f"%RETRY%{online}" in printed["online"]
    assert "MessageModel: CLUSTERING" in printed["online"]
    [member] = rows(printed["member"])
    assert member["ClientId"] == connection["ClientId"]
    assert {"Same", "subscription"} <= set(printed["member"].split())
    assert "producer group (CompatProducers)" in printed["producers"]
    assert "the producer group[missing] not exist" in printed["missing"]


def test_mqadmin_update_commands(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str, peer: Peer
) -> None:
    broker, source, target = peer.broker_address, names.group("_source"), names.group("_target")
    reset, gone, doomed = names.group("_reset"), names.group("_gone"), names.topic("_doomed")
    for group in (source, target, reset, gone):
        filled(client, topic, group, count=2, committed=2 if group != target else 1)
    client.create_topic(broker, doomed)
    printed = mqadmin.run(
        f"cloneGroupOffset -s {source} -d {target} -t {topic}",
        f"resetOffsetByTime -g {reset} -t {topic} -s 0",
        f"deleteSubGroup -b {broker} -g {gone} -r true",
        f"updateSubGroup -b {broker} -g {target} -r 3",
        f"deleteTopic -c DefaultCluster -t {doomed}",
    )
    assert "clone group offset success" in printed[0], printed[0]
    assert {(row["queueId"], row["offset"]) for row in rows(printed[1])} == {(str(n), "0") for n in range(4)}
    assert f"delete subscription group [{gone}]" in printed[2]
    assert "create subscription group" in printed[3]
    assert "delete topic" in printed[4]

    where = {"topic": topic, **QUEUE}
    assert client.call("consumer_offset", group=target, **where) == 2
    assert client.call("consumer_offset", group=reset, **where) == 0
    printed = mqadmin.run(
        f"skipAccumulatedMessage -g {reset} -t {topic}",
        f"updateTopicPerm -b {broker} -t {topic} -p 4",
        "topicList",
        f"getConsumerConfig -g {target}",
    )
    assert ("1", "8") in {(row["queueId"], row["offset"]) for row in rows(printed[0])}
    assert "perm=R--" in printed[1]
    assert topic in printed[2].split()
    assert doomed not in printed[2].split()
    assert pairs(printed[3], "=")["retryMaxTimes"] == "3"


def test_mqadmin_decodes_queue_maps(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str, peer: Peer
) -> None:
    source, target = names.group("_source"), names.group("_target")
    for group, committed in ((source, 2), (target, 1)):
        filled(client, topic, group, count=2, committed=committed)
    status, progress, lags, cloned = mqadmin.run(
        f"topicStatus -t {topic}",
        f"consumerProgress -g {source}",
        f"brokerConsumeStats -b {peer.broker_address}",
        f"cloneGroupOffset -s {source} -d {target} -t {topic}",
    )
    [reset] = mqadmin.run(f"resetOffsetByTime -g {source} -t {topic} -s 0")
    [skipped] = mqadmin.run(f"skipAccumulatedMessage -g {target} -t {topic}")
    of_one_queue = f"resetOffsetByTime -g {source} -t {topic} -s -1 -b {peer.broker_address} -q 1 -o 3"
    [one] = mqadmin.run(of_one_queue)
    assert "reset consumer offset to 3" in one, one
    offsets = [client.call("consumer_offset", group=source, topic=topic, broker="broker-a", queueId=number)
               for number in range(4)]  # fmt: skip
    assert offsets == [0, 3, 0, 0]

    columns = ("Broker Offset", "Consumer Offset", "Diff")
    assert {row["QID"]: row["Max Offset"] for row in rows(status)} == {"0": "0", "1": "4", "2": "0", "3": "0"}
    of_queue = {row["QID"]: row for row in rows(progress) if row["Topic"] == topic}
    assert [of_queue["1"][name] for name in columns] == ["4", "2", "2"]
    of_group = {(row["Group"], row["QID"]): row for row in rows(lags) if row["Topic"] == topic}
    assert [of_group[target, "1"][name] for name in columns] == ["4", "1", "3"]
    assert "clone group offset success" in cloned, cloned
    assert {row["queueId"]: row["offset"] for row in rows(reset)} == dict.fromkeys("0123", "0")
    assert {row["queueId"]: row["offset"] for row in rows(skipped)} == dict.fromkeys("023", "0") | {"1": "4"}


def test_running_member_resumes_at_the_reset_offset(
    client: Agent, mqadmin: Mqadmin, names: Names, topic: str
) -> None:
    client.send([{"topic": topic, "body": f"{n}", **QUEUE} for n in range(4)])
    client.call("push_start", name=topic, group=names.group(), topic=topic)
    client.received(topic, 4)
    client.publish_queues(f"%RETRY%{names.group()}")
    [printed] = mqadmin.run(f"resetOffsetByTime -g {names.group()} -t {topic} -s 0")
    assert {(row["queueId"], row["offset"]) for row in rows(printed)} == {(str(n), "0") for n in range(4)}

    # RocketMQ's broker applies the reset to a held pull when a message arrives, RayMQ immediately.
    client.send([{"topic": topic, "body": "4", **QUEUE}])
    again = client.received(topic, 9)
    client.call("push_stop", name=topic)
    assert sorted(message["body"] for message in again) == sorted([*"0123", *"01234"])
