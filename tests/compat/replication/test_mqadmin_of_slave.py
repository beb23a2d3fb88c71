"""What RocketMQ's tools send to all replicas of a cluster (`-c`), with a RayMQ master and its slave."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.signing import Credentials
from cluster.client import Admin, ClientConfig
from tests.actors.broker.core.auth.access_peers import INNER, inner_file
from tests.compat.build import RELEASES, JavaKit
from tests.compat.mqadmin import Mqadmin, rows
from tests.compat.raymq import BROKER_NAME, RayMQ
from tests.compat.replication.slave import Slave
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]

ROOT = Credentials("root", "root-secret")
BEFORE = (
    "updateTopic -c DefaultCluster -t kept -r 3 -w 3",
    "updateTopic -c DefaultCluster -t doomed -r 3 -w 3",
    "updateTopic -c DefaultCluster -t doomed-by-command -r 3 -w 3",
    "createUser -c DefaultCluster -u kept -p some-secret",
    "createUser -c DefaultCluster -u doomed -p some-secret",
)
CHANGES = (
    "deleteTopicOfAll doomed DefaultCluster",
    "deleteTopic -c DefaultCluster -t doomed-by-command",
    "createAcl -c DefaultCluster -s User:kept -r Topic:kept,Topic:other -a Pub -d Allow",
    "updateAcl -c DefaultCluster -s User:kept -r Topic:kept -a Sub -d Deny",
    "deleteAcl -c DefaultCluster -s User:kept -r Topic:other",
    "updateUser -c DefaultCluster -u kept -s disable",
    "deleteUser -c DefaultCluster -u doomed",
    "brokerStatus -c DefaultCluster",
    "getBrokerConfig -c DefaultCluster",
    "updateBrokerConfig -c DefaultCluster -k slaveReadEnable -v true",
    "cleanUnusedTopic -c DefaultCluster",
    "cleanExpiredCQ -c DefaultCluster",
    "deleteExpiredCommitLog -c DefaultCluster",
    "haStatus -c DefaultCluster",
)


def succeed(mqadmin: Mqadmin, *commands: str) -> list[str]:
    """Run commands one after another."""
    printed = []
    for command in commands:
        [text] = mqadmin.run(command)
        assert "CODE: " not in text, (command, text)
        assert "Exception" not in text, (command, text)
        printed.append(text)
    return printed


@pytest.mark.parametrize("release", RELEASES)
def test_what_mqadmin_sends_to_all_replicas_succeeds(kit: JavaKit, tmp_path: Path, release: str) -> None:
    ha = ("--broker", "replication=async", "--broker", "ha_allow_unauthenticated=true")
    options = ("--inner-credentials-file", str(inner_file(tmp_path)), *ha)
    jvm = (f"-Dcompat.accessKey={ROOT.access_key}", f"-Dcompat.secretKey={ROOT.secret_key}")
    with RayMQ(tmp_path / "master", options=options) as master:
        nameserver, profile = master.nameserver_address, RELEASES[release].server
        inner = ClientConfig(nameserver, access_key=INNER.access_key, secret_key=INNER.secret_key)
        with (
            Admin(config=inner) as admin,
            Slave(tmp_path / "slave", nameserver, options) as slave,
            Mqadmin(kit, nameserver, tmp_path / "mqadmin", profile=profile, jvm=jvm) as mqadmin,
        ):
            admin.put_user(ROOT.access_key, ROOT.secret_key, is_super=True)
            replicas = {master.broker_address, slave.address}
            eventually(
                lambda: set(admin.cluster_info().brokers[BROKER_NAME].broker_addrs.values()) == replicas
            )
            eventually(lambda: "root" in mqadmin.run(f"listUser -b {slave.address}")[0], "the user")
            succeed(mqadmin, *BEFORE, *CHANGES)

            def listed(address: str) -> list[dict[str, str]]:
                users, acls = succeed(mqadmin, f"listUser -b {address}", f"listAcl -b {address} -s kept")
                return [*rows(users), *rows(acls)]

            expected = listed(master.broker_address)
            assert {row.get("UserName") for row in expected} == {"root", "kept", None}
            eventually(lambda: listed(slave.address) == expected, "the users of the slave")
            [topics] = succeed(mqadmin, "topicList")
            assert "kept" in topics.split()
            assert not {"doomed", "doomed-by-command"} & set(topics.split())
