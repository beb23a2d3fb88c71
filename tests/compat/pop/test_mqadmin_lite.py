"""mqadmin 5.5.0's commands about lite topics print the same for RocketMQ and RayMQ, apart from times."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.actors.broker.features.lite.lite_probe import Probe, probe
from tests.actors.broker.features.lite.test_lite_probe import RECORDED
from tests.compat.build import ROCKETMQ_5_5, JavaKit
from tests.compat.mqadmin import Mqadmin
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

pytestmark = [pytest.mark.java, pytest.mark.extended]

SETTINGS = {"autoCreateTopicEnable": "false", "mappedFileSizeCommitLog": str(1 << 20)}
LITE = {"enableLmq": "true", "enableMultiDispatch": "true", "brokerFastFailureEnable": "false"}
CREATE = (
    "updateTopic -b {broker} -t chats -a +message.type=LITE,+lite.topic.expiration=60",
    "updateTopic -b {broker} -t plain -a +message.type=NORMAL",
    "updateSubGroup -b {broker} -g agents --attributes +lite.bind.topic=chats,+lite.sub.model=Exclusive",
    "updateSubGroup -b {broker} -g all -o true --attributes +lite.bind.topic=chats,+lite.sub.wildcard=true",
    "updateSubGroup -b {broker} -g other --attributes +lite.sub.model=Other",
    "updateTopic -b {broker} -t chats -a +lite.topic.expiration=43201",
)
COMMANDS = (
    "getBrokerLiteInfo -b {broker}",
    "getBrokerLiteInfo -b {broker} -d",
    "getBrokerLiteInfo -c DefaultCluster",
    "getParentTopicInfo -p chats",
    "getParentTopicInfo -p plain",
    "getParentTopicInfo -p none",
    "getLiteTopicInfo -p chats -l s1",
    "getLiteTopicInfo -p chats -l s1 -s",
    "getLiteTopicInfo -p chats -l none",
    "getLiteTopicInfo -p plain -l s1",
    "getLiteClientInfo -p chats -g agents -c client-1",
    "getLiteClientInfo -p chats -g agents -c client-1 -s",
    "getLiteClientInfo -p chats -g agents -c none",
    "getLiteClientInfo -p chats -g all -c client-2 -s",
    "getLiteGroupInfo -p chats -g agents",
    "getLiteGroupInfo -p chats -g agents -k 1",
    "getLiteGroupInfo -p chats -g agents -l s1",
    "getLiteGroupInfo -p chats -g agents -l none",
    "getLiteGroupInfo -p plain -g agents",
    "triggerLiteDispatch -p chats -g agents",
    "triggerLiteDispatch -p chats -g agents -c client-1",
    "triggerLiteDispatch -p chats -g agents -b broker-a",
    "topicRoute -t chats",
    "topicStatus -t %LMQ%$chats$s1",
    "consumerProgress -g agents",
    "deleteTopic -c DefaultCluster -t chats",
    "getParentTopicInfo -p chats",
)


def shape(printed: str, peer: Peer) -> list[str]:
    """Return the lines with single blanks, without times, causes and the sizes of tables."""
    text = printed.replace(peer.broker_address, "BROKER").replace(peer.nameserver_address, "NAMESRV")
    text = re.sub(r"\b\d{13}\b|\b\d{4}-\d\d-\d\d[ #][\d:,.]+", "TIME", text)
    text = re.sub(r"(BROKER +default(?: +\d+){4}).*", r"\1", text)
    text = re.sub(r"java.lang.RuntimeException: |, org\.apache.*", "", text)
    text = text.partition("------TopK by lag time")[0]  # RocketMQ has it for some lite topics only
    lines = [" ".join(line.split()) for line in text.splitlines()]
    skipped = ("at ", "...", "For more", "Min Unconsumed")
    return [line for line in lines if line and not line.startswith(skipped)]


async def fill(address: str) -> None:
    """Send messages to lite topics, and let clients subscribe them, and one pop them."""
    client = Probe(address)
    for name, count in (("s1", 3), ("s2", 2), ("s3", 1)):
        for number in range(count):
            await client.send("chats", 0, {"__LITE_TOPIC": name}, f"{number}")
    await client.sync("PARTIAL_ADD", "client-1", "agents", ["s1", "s2", "s3"], topic="chats")
    await client.sync("COMPLETE_ADD", "client-2", "all", [], topic="chats")
    await client.pop("client-1", "agents", topic="chats")
    await client.close()


def outputs(peer: Peer, kit: JavaKit, root: Path) -> dict[str, list[str]]:
    with Mqadmin(kit, peer.nameserver_address, root / "mqadmin", profile=ROCKETMQ_5_5) as mqadmin:
        found = {}
        for command in CREATE:
            [text] = mqadmin.run(command.format(broker=peer.broker_address))
            found[command] = shape(text, peer)
        asyncio.run(fill(peer.broker_address))
        for number, command in enumerate(COMMANDS):
            [text] = mqadmin.run(command.format(broker=peer.broker_address))
            found[f"{number} {command}"] = shape(text, peer)
    return found


def rocketmq(kit: JavaKit, root: Path) -> RocketMQ:
    return RocketMQ(kit, root, SETTINGS | LITE, heap="512m", profile=ROCKETMQ_5_5)


def test_mqadmin_lite_commands_print_the_same(kit: JavaKit, tmp_path: Path) -> None:
    with rocketmq(kit, tmp_path / "theirs") as peer:
        theirs = outputs(peer, kit, tmp_path / "theirs")
    with RayMQ(tmp_path / "ours", SETTINGS) as peer:
        ours = outputs(peer, kit, tmp_path / "ours")
    assert ours == theirs


def test_recorded_exchange_is_that_of_rocketmq(kit: JavaKit, tmp_path: Path) -> None:
    with rocketmq(kit, tmp_path) as peer:
        assert asyncio.run(probe(peer.broker_address)) == RECORDED.read_text().splitlines()
