"""mqadmin of RocketMQ changes a Raft group at its leader and at followers; the next leader has all of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvloop

from actors.transport.client import SigningClient
from actors.transport.limits import RemotingLimits
from actors.wire.signing import Credentials, Signer
from cluster.client import ClientConfig, ConsumerConfig, ProducerConfig, PullConsumer, aio
from store.common.clock import SystemClock
from tests.actors.broker.core.auth.access_peers import INNER, inner_file
from tests.compat.build import RELEASES, JavaKit
from tests.compat.mqadmin import Mqadmin, pairs, rows
from tests.eventually import eventually_async
from tests.faults.raft.processes import Processes

pytestmark = [pytest.mark.java, pytest.mark.extended]

ROOT = Credentials("root", "root-secret")
KEYS = {"access_key": INNER.access_key, "secret_key": INNER.secret_key}
ALL = [0, 1, 2]
MESSAGES = 8

REFUSED_BY_FOLLOWERS = (
    "updateTopic -b {follower} -t at-follower -r 3 -w 3",
    "updateSubGroup -b {follower} -g at-follower",
    "deleteSubGroup -b {follower} -g CG",
    "setConsumeMode -b {follower} -t T -g CG -m POP -q 0",
)
PREPARED = (
    "updateTopic -b {leader} -t kept -r 3 -w 3",
    "updateTopic -c DefaultCluster -t doomed -r 3 -w 3",
    "updateSubGroup -b {leader} -g kept -r 3",
    "updateSubGroup -c DefaultCluster -g doomed",
    "createUser -b {leader} -u at-leader -p some-secret",
    "createUser -b {follower} -u at-follower -p some-secret",
)
CHANGED = (
    "createAcl -c DefaultCluster -s User:at-leader -r Topic:T,Topic:U -a Pub -d Allow",
    "updateUser -c DefaultCluster -u at-leader -s disable",
    "deleteUser -c DefaultCluster -u at-follower",
    "deleteTopic -c DefaultCluster -t doomed",
    "deleteSubGroup -c DefaultCluster -g doomed -r true",
    "setConsumeMode -c DefaultCluster -t T -g CG -m PULL -q 0",
    "cleanUnusedTopic -c DefaultCluster",
)
CHANGED_AGAIN = (
    "updateAcl -b {follower} -s User:at-leader -r Topic:T -a Sub -d Deny",
    "deleteAcl -c DefaultCluster -s User:at-leader -r Topic:U",
    "updateBrokerConfig -b {follower} -k slaveReadEnable -v true",
    "updateBrokerConfig -b {leader} -k slaveReadEnable -v true",
    "brokerStatus -b {follower}",
    "brokerStatus -b {leader}",
)


class Protected(Processes):
    """A group with access control."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        root.mkdir()
        self._inner = inner_file(root)
        limits = RemotingLimits(connect_timeout_ms=1_000)
        self._client = SigningClient(SystemClock(), Signer(INNER), None, limits)

    def settings_of_each(self) -> dict[str, Any]:
        return {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "inner_credentials_file": self._inner,
        }


async def prepare(group: Protected) -> None:
    """Create the super user of mqadmin, and a group that has consumed a topic."""
    async with aio.Admin(config=ClientConfig(group.nameserver, **KEYS)) as admin:
        await admin.put_user(ROOT.access_key, ROOT.secret_key, is_super=True)
    async with aio.Producer(group.nameserver, config=ProducerConfig(group="PG", **KEYS)) as producer:
        for number in range(MESSAGES):
            await producer.send("T", b"%d" % number)

    def consume() -> None:
        with PullConsumer(group.nameserver, config=ConsumerConfig(group="CG", **KEYS)) as consumer:
            consumer.subscribe("T")
            received = 0
            while received < MESSAGES:
                received += len(consumer.poll(100, 100))

    await asyncio.to_thread(consume)


class Tool:
    """Runs mqadmin commands with the addresses of the leader and of a follower.

    On a slow machine the group may elect another leader at any time.
    """

    def __init__(self, mqadmin: Mqadmin, group: Protected) -> None:
        self._mqadmin = mqadmin
        self._group = group
        self.running = list(ALL)

    async def leader(self) -> int:
        return await self._group.leader(self.running)

    async def lists_all_replicas(self) -> bool:
        [clusters] = await self.succeed("clusterList")
        return {row["Addr"] for row in rows(clusters)} == {self._group.address(each) for each in ALL}

    async def run(self, *commands: str) -> list[str]:
        leader = await self.leader()
        follower = next(each for each in self.running if each != leader)
        found = {"leader": self._group.address(leader), "follower": self._group.address(follower)}
        return await asyncio.to_thread(self._mqadmin.run, *(each.format(**found) for each in commands))

    async def succeed(self, *commands: str) -> list[str]:
        printed = await self.run(*commands)
        for command, text in zip(commands, printed, strict=True):
            assert "CODE: " not in text, (command, text)
            assert "Exception" not in text, (command, text)
        return printed


async def change_everything(tool: Tool) -> None:
    for text in await tool.run(*REFUSED_BY_FOLLOWERS):
        assert "CODE: 14" in text, text
        assert "does not lead its group; the leader is" in text
    [unknown] = await tool.run("haStatus -b {follower}")
    assert "is not supported by this process" in unknown, unknown
    await tool.succeed(*PREPARED)
    await tool.succeed(*CHANGED)
    status = (await tool.succeed(*CHANGED_AGAIN))[-2:]
    assert all("commitLogMaxOffset" in text for text in status)
    [reset] = await tool.succeed("resetOffsetByTime -g CG -t T -s 0")
    assert {row["offset"] for row in rows(reset)} == {"0"}
    await tool.succeed("createUser -c DefaultCluster -u everywhere -p some-secret")
    [other] = await tool.run("createUser -c DefaultCluster -u everywhere -p other-secret")
    assert "The user is existed" in other, other


async def assert_kept(tool: Tool, address: str) -> None:
    """The replica has all changes."""
    topics, group, users, acls, progress = await tool.succeed(
        "topicList",
        "getConsumerConfig -g kept",
        f"listUser -b {address}",
        f"listAcl -b {address} -s at-leader",
        "consumerProgress -g CG",
    )
    assert {"kept", "T"} <= set(topics.split())
    assert not {"doomed", "at-follower", "%RETRY%doomed"} & set(topics.split())
    assert pairs(group, "=")["retryMaxTimes"] == "3"
    found = {row["UserName"]: row["UserStatus"] for row in rows(users)}
    assert found == {"root": "enable", "at-leader": "disable", "everywhere": "enable"}
    [rule] = rows(acls)
    assert (rule["Resource"], rule["Actions"]) == ("Topic:T", "[Sub]")
    offsets = [row for row in rows(progress) if row["Topic"] == "T"]
    assert {row["Consumer Offset"] for row in offsets} == {"0"}
    assert sum(int(row["Diff"]) for row in offsets) == MESSAGES


def test_mqadmin_changes_a_group_and_the_next_leader_has_it(kit: JavaKit, tmp_path: Path) -> None:
    async def story() -> None:
        async with Protected(tmp_path / "group") as group:
            await group.leader(ALL)
            await prepare(group)
            jvm = (f"-Dcompat.accessKey={ROOT.access_key}", f"-Dcompat.secretKey={ROOT.secret_key}")
            profile, home = RELEASES["5.3.3"].server, tmp_path / "mqadmin"
            with Mqadmin(kit, group.nameserver, home, profile=profile, jvm=jvm) as mqadmin:
                tool = Tool(mqadmin, group)
                await eventually_async(tool.lists_all_replicas, "three registered replicas")
                await change_everything(tool)
                await group.await_level()
                leader = await tool.leader()
                for each in ALL:
                    if each != leader:
                        await assert_kept(tool, group.address(each))

                await group.kill(leader)
                tool.running.remove(leader)
                await assert_kept(tool, group.address(await tool.leader()))

    uvloop.run(story())
