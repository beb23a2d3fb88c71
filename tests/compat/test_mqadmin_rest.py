"""The remaining mqadmin commands print the same for RocketMQ and RayMQ, apart from numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.compat.agent import Agent
from tests.compat.build import ROCKETMQ, JavaKit
from tests.compat.conftest import Names
from tests.compat.mqadmin import Mqadmin, pairs, rows
from tests.compat.peers import Peer
from tests.compat.processes import Program
from tests.compat.raymq import RayMQ
from tests.eventually import LIMIT_S

pytestmark = pytest.mark.java

QUEUE = {"broker": "broker-a", "queueId": 1}
HA_STATUS = [
    "#MasterAddr BROKER",
    "#MasterCommitLogMaxOffset N",
    "#SlaveNum N",
    "#InSyncSlaveNum N",
    "#SlaveAddr #SlaveAckOffset #Diff #TransferSpeed(KB/s) #Status #TransferFromWhere",
]
SENT = (
    "rt=Nms, SendResult=SendResult [sendStatus=SEND_OK, msgId=ID, offsetMsgId=ID, messageQueue=MessageQueue "
)
BROKER_CONFIGS = frozenset(
    """
    autoCreateSubscriptionGroup autoCreateTopicEnable brokerClusterName brokerId brokerName brokerRole
    fileReservedTime flushDiskType maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn
    traceTopicEnable useTLS
    """.split()  # noqa: SIM905 -- names
)
NOT_OFFERED = {
    "updateStaticTopic -t Static -qn 2 -c DefaultCluster": "513 (UPDATE_AND_CREATE_STATIC_TOPIC)",
    "checkRocksdbCqWriteProgress -c DefaultCluster -n {nameserver}": "354 (CHECK_ROCKSDB_CQ_WRITE_PROGRESS)",
    "addBroker -c {broker} -b /nowhere/broker.conf": "902 (ADD_BROKER)",
    "removeBroker -c {broker} -b DefaultCluster:broker-a:0": "903 (REMOVE_BROKER)",
    "getColdDataFlowCtrInfo -b {broker}": "2003 (GET_COLD_DATA_FLOW_CTR_INFO)",
    "updateColdDataFlowCtrGroupConfig -b {broker} -g G -v 100": "2001 (UPDATE_COLD_DATA_FLOW_CTR_CONFIG)",
    "removeColdDataFlowCtrGroupConfig -b {broker} -g G": "2002 (REMOVE_COLD_DATA_FLOW_CTR_CONFIG)",
    "setCommitLogReadAheadMode -b {broker} -m 0": "2004 (SET_COMMITLOG_READ_MODE)",
}


def shape(printed: str, peer: Peer) -> list[str]:
    """Return the lines with single blanks, and with placeholders for addresses, ids and numbers."""
    text = printed.replace(peer.broker_address, "BROKER").replace(peer.nameserver_address, "NAMESRV")
    text = re.sub(r"\b[0-9A-F]{32,}\b", "ID", text)
    text = re.sub(r"\b\d+(\.\d+)?\b|\b\d+(?=ms)", "N", text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_mqadmin_topic_and_message_commands(client: Agent, mqadmin: Mqadmin, topic: str, peer: Peer) -> None:
    client.send_dispatched([{"topic": topic, "body": f"{n}", "keys": f"k{n}", **QUEUE} for n in range(6)])
    broker = peer.broker_address
    commands = {
        "cluster": f"topicClusterList -t {topic}",
        "allocated": f"allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2",
        "at": f"queryMsgByOffset -t {topic} -b broker-a -i 1 -o 2",
        "printed": f"printMsg -t {topic}",
        "queue": f"printMsgByQueue -t {topic} -a broker-a -i 1 -p true",
        "consumed": f"consumeMessage -t {topic} -b broker-a -i 1 -o 0 -c 2",
        "sent": f"sendMessage -t {topic} -p hello -b broker-a -i 0",
        "status": "sendMsgStatus -b broker-a -s 10 -c 3",
        "times": f"checkMsgSendRT -t {topic} -a 3 -s 10",
        "units": f"queryCq -b {broker} -t {topic} -q 1 -i 2 -c 3",
    }
    outputs = dict(zip(commands, mqadmin.run(*commands.values()), strict=True))
    assert outputs["cluster"].split() == ["DefaultCluster"]
    shares = json.loads(outputs["allocated"])["result"]
    assert {address: len(queues) for address, queues in shares.items()} == {"10.0.0.1": 2, "10.0.0.2": 2}
    at = pairs(outputs["at"], ": ")
    assert (at["Topic"], at["Keys"], at["Queue ID"], at["Queue Offset"]) == (topic, "[k2]", "1", "2")
    assert {"MIN_OFFSET=0", "MAX_OFFSET=6"} <= set(at["Properties"].strip("{}").split(", "))
    assert outputs["printed"].count("MSGID: ") >= 6
    assert (
        outputs["queue"].count("KEYS=k") == 6
    )  # checkMsgSendRT, which runs concurrently, sends without keys
    assert outputs["consumed"].splitlines()[0] == "The oldler 2 message will be provided"
    assert outputs["consumed"].count("MSGID: ") == 2
    [sent] = rows(outputs["sent"])
    assert (sent["Broker Name"], sent["QID"], sent["Send Result"]) == ("broker-a", "0", "SEND_OK")
    assert [line[: len(SENT)] for line in shape(outputs["status"], peer)] == [SENT] * 3
    assert shape(outputs["times"], peer) == [
        "#Broker Name #QID #Send Result #RT",
        *["broker-a N true N"] * 3,
        "Avg RT: N",
    ]
    assert outputs["units"].count("eval=false") == 3  # no group is named


@pytest.mark.extended
def test_mqadmin_broker_and_nameserver_commands(
    mqadmin: Mqadmin, client: Agent, topic: str, names: Names, peer: Peer
) -> None:
    broker, namespace = peer.broker_address, names.topic("_kv")
    client.publish_queues(topic)
    commands: dict[str, list[str]] = {
        f"haStatus -b {broker}": HA_STATUS,
        "haStatus -c DefaultCluster": HA_STATUS,
        f"resetMasterFlushOffset -b {broker} -o 0": ["reset master flush offset to N success"],
        "updateNamesrvConfig -k orderMessageEnable -v true": [
            "update name server config success!",
            "orderMessageEnable : true",
        ],
        f"updateBrokerConfig -b {broker} -k fileReservedTime -v 720": [
            "update broker config success, BROKER"
        ],
        f"updateKvConfig -s {namespace} -k a -v b": ["create or update kv config to namespace success."],
        f"cleanExpiredCQ -b {broker}": ["success"],
        f"cleanUnusedTopic -b {broker}": ["success"],
        f"deleteExpiredCommitLog -b {broker}": ["success"],
        f"updateOrderConf -t {topic} -m put -v broker-a:4": [
            f"update orderConf success. topic=[{topic}], orderConf=[broker-a:N]"
        ],
    }
    for command, printed in zip(commands, mqadmin.run(*commands), strict=True):
        assert shape(printed, peer) == commands[command], command
    # The commands in `last` change what these commands print.
    wipe, add = "wipe write perm", "add write perm"
    commands = {
        "getNamesrvConfig": [],
        f"updateOrderConf -t {topic} -m get": [
            f"get orderConf success. topic=[{topic}], orderConf=[broker-a:N]"
        ],
        f"deleteKvConfig -s {namespace} -k a": ["delete kv config from namespace success."],
        "wipeWritePerm -b broker-a": [f"{wipe} of broker[broker-a] in name server[NAMESRV] OK, N"],
    }
    outputs = dict(zip(commands, mqadmin.run(*commands), strict=True))
    settings = pairs(outputs.pop("getNamesrvConfig"), "=")
    assert settings["listenPort"] == peer.nameserver_address.rpartition(":")[2]
    assert (settings["orderMessageEnable"], settings["scanNotActiveBrokerInterval"]) == ("true", "5000")
    last = {
        f"updateOrderConf -t {topic} -m delete": [f"delete orderConf success. topic=[{topic}]"],
        "addWritePerm -b broker-a": [f"{add} of broker[broker-a] in name server[NAMESRV] OK, N"],
    }
    outputs |= dict(zip(last, mqadmin.run(*last), strict=True))
    for command, printed in outputs.items():
        assert shape(printed, peer) == (commands | last)[command], command


@pytest.mark.extended
def test_mqadmin_list_mode_and_export_commands(
    mqadmin: Mqadmin, client: Agent, names: Names, peer: Peer, tmp_path: Path
) -> None:
    broker, topics, group = peer.broker_address, [names.topic("_1"), names.topic("_2")], names.group("_1")
    lists = {"topics": tmp_path / "topics.json", "groups": tmp_path / "groups.json"}
    wanted = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in topics]
    lists["topics"].write_text(json.dumps(wanted))
    lists["groups"].write_text(json.dumps([{"groupName": group, "retryMaxTimes": 7}]))
    for what, command in (("topic", "updateTopicList"), ("group", "updateSubGroupList")):
        assert shape(*mqadmin.run(f"{command} -b {broker} -f {lists[what + 's']}"), peer) == [
            f"submit batch of {what} config to BROKER success, please check the result later."
        ]
    client.publish_queues(topics[1])
    outputs = mqadmin.run(
        f"setConsumeMode -b {broker} -t {topics[0]} -g {group} -m PULL",
        f"getConsumerConfig -g {group}",
        f"topicRoute -t {topics[1]}",
        f"exportMetadata -b {broker} -f {tmp_path} -t",
        f"exportMetadata -b {broker} -f {tmp_path} -g",
        f"exportConfigs -c DefaultCluster -f {tmp_path}",
        f"exportMetrics -c DefaultCluster -f {tmp_path}",
    )
    assert shape(outputs[0], peer) == [
        "set consume mode to BROKER success.",
        f"topic[{topics[0]}] group[{group}] consume mode[PULL] popShareQueueNum[N]",
    ]
    assert pairs(outputs[1], "=")["retryMaxTimes"] == "7"
    assert '"writeQueueNums":2' in outputs[2]  # fastjson does not quote all keys
    for name, printed in zip(("topic", "subscriptionGroup", "configs", "metrics"), outputs[3:], strict=True):
        assert printed.strip() == f"export {tmp_path}/{name}.json success"
    exported = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert set(topics) <= exported["topic"]["topicConfigTable"].keys()
    assert exported["subscriptionGroup"]["subscriptionGroupTable"][group]["retryMaxTimes"] == 7
    configs = exported["configs"]
    assert configs["clusterScale"] == {"namesrvSize": 1, "slaveBrokerSize": 0, "masterBrokerSize": 1}
    assert configs["brokerConfigs"]["broker-a"].keys() == BROKER_CONFIGS
    metrics = exported["metrics"]["evaluateReport"]["broker-a"]
    assert metrics.keys() == {"runtimeEnv", "runtimeQuota", "runtimeVersion"}
    assert int(metrics["runtimeEnv"]["cpuNum"]) >= 1


@pytest.mark.extended
def test_mqadmin_cluster_rt_measures_round_trips(kit: JavaKit, peer: Peer, tmp_path: Path) -> None:
    options = (f"-Drocketmq.namesrv.addr={peer.nameserver_address}", "-XX:TieredStopAtLevel=1")
    arguments = ("clusterRT", "-a", "3", "-s", "10", "-i", "60")  # it runs until it is killed
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command = kit.command(main, *arguments, home=tmp_path, profile=ROCKETMQ, jvm=options)
    with Program(command, tmp_path / "clusterRT.log", cwd=tmp_path) as running:
        line = running.wait_for("DefaultCluster ", LIMIT_S)
        assert " ".join(running.wait_for("#", LIMIT_S).split()) == (
            "#Cluster Name #Broker Name #RT #successCount #failCount"
        )
        running.kill()
    assert line.split()[:2] == ["DefaultCluster", "broker-a"]
    assert line.split()[3:] == ["3", "0"]


@pytest.mark.extended
def test_unsupported_mqadmin_requests_are_named(mqadmin: Mqadmin, peer: Peer) -> None:
    if not isinstance(peer, RayMQ):
        pytest.skip("RocketMQ has these")
    where = {"broker": peer.broker_address, "nameserver": peer.nameserver_address}
    outputs = mqadmin.run(*(command.format(**where) for command in NOT_OFFERED))
    for command, printed in zip(NOT_OFFERED, outputs, strict=True):
        assert "CODE: 3" in printed, (command, printed)
        assert f"request code {NOT_OFFERED[command]} is not supported" in printed, (command, printed)
