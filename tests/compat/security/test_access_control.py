"""RocketMQ's own signing hook and mqadmin against a RayMQ cluster with access control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, ClientConfig
from tests.compat.agent import Agent, OperationFailed
from tests.compat.build import CLIENT, CLIENT_5_5, RELEASES, JavaKit
from tests.compat.mqadmin import Mqadmin, rows
from tests.compat.raymq import RayMQ

pytestmark = pytest.mark.java

INNER = Credentials("inner", "inner-secret")
ROOT = Credentials("root", "root-secret")
ALICE = Credentials("alice", "alice-secret")
STRANGER = Credentials("alice", "guess-secret")


def keys(credentials: Credentials) -> tuple[str, str]:
    """Return the JVM options with the keys that a program signs its requests with."""
    return f"-Dcompat.accessKey={credentials.access_key}", f"-Dcompat.secretKey={credentials.secret_key}"


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMQ]:
    """Run a cluster that requires signatures and permissions, with a super user for RocketMQ's tools."""
    root = tmp_path_factory.mktemp("protected")
    path = root / "inner.key"
    write_credentials(path, INNER)
    with RayMQ(root, options=["--inner-credentials-file", str(path)]) as started:
        keys = {"access_key": INNER.access_key, "secret_key": INNER.secret_key}
        with Admin(config=ClientConfig(started.nameserver_address, **keys)) as admin:
            admin.put_user(ROOT.access_key, ROOT.secret_key, is_super=True)
        yield started


@pytest.fixture(params=["5.3.3", pytest.param("5.5.0", marks=pytest.mark.extended)])
def admin(
    request: pytest.FixtureRequest, kit: JavaKit, protected: RayMQ, tmp_path: Path
) -> Iterator[Mqadmin]:
    """Run mqadmin as a super user; the inner user does not use RocketMQ's signature."""
    profile = RELEASES[request.param].server
    home = tmp_path / "mqadmin"
    with Mqadmin(kit, protected.nameserver_address, home, profile=profile, jvm=keys(ROOT)) as running:
        yield running


@pytest.fixture
def agent(kit: JavaKit, protected: RayMQ, tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Return a function that starts a Java client which signs its requests."""
    running: list[Agent] = []

    def start(credentials: Credentials, profile: str = CLIENT, encoding: str = "JSON") -> Agent:
        home = tmp_path / f"agent-{len(running)}"
        running.append(
            Agent(
                kit,
                profile,
                protected.nameserver_address,
                home,
                encoding=encoding,
                jvm=keys(credentials),
            )
        )
        return running[-1]

    yield start
    for each in running:
        each.kill()


def test_mqadmin_manages_users_and_policies(admin: Mqadmin, protected: RayMQ) -> None:
    broker = protected.broker_address
    for command in (
        f"deleteUser -b {broker} -u carol",
        f"createUser -b {broker} -u carol -p carol-secret -t Normal",
        f"createAcl -b {broker} -s User:carol -r Topic:*,Group:g* -a Pub,Sub -i 10.0.0.0/8 -d Allow",
        f"updateAcl -b {broker} -s User:carol -r Topic:pay* -a All -d Deny",
        f"updateUser -b {broker} -u carol -s disable",
    ):
        (printed,) = admin.run(command)
        assert "success" in printed, printed
    (users,) = admin.run(f"getUser -b {broker} -u carol")
    (listed,) = admin.run(f"listUser -b {broker} -f carol")
    expected = [{"UserName": "carol", "Password": "null", "UserType": "Normal", "UserStatus": "disable"}]
    assert rows(users) == rows(listed) == expected
    (acl,) = admin.run(f"getAcl -b {broker} -s User:carol")
    (all_acls,) = admin.run(f"listAcl -b {broker} -s carol")
    for printed in (acl, all_acls):
        found = {(row["Resource"], row["Actions"], row["SourceIp"]) for row in rows(printed)}
        assert found == {
            ("Topic:*", "[Pub,", "Sub]"),
            ("Group:g*", "[Pub,", "Sub]"),
            ("Topic:pay*", "[All]", "null"),
        }, printed
        assert "10.0.0.0/8" in printed
    (deleted,) = admin.run(f"deleteAcl -b {broker} -s User:carol -r Topic:pay*")
    assert "success" in deleted
    (again,) = admin.run(f"createUser -b {broker} -u carol -p carol-secret")
    assert "CODE: 16" in again, again
    assert "The user is existed" in again


@pytest.mark.parametrize(
    ("profile", "encoding"),
    [
        (CLIENT, "JSON"),
        pytest.param(CLIENT, "ROCKETMQ", marks=pytest.mark.extended),
        pytest.param(CLIENT_5_5, "JSON", marks=pytest.mark.extended),
    ],
)
def test_java_clients_sign_their_requests(
    admin: Mqadmin, agent: Callable[..., Agent], protected: RayMQ, profile: str, encoding: str
) -> None:
    broker, topic = protected.broker_address, "AccessTopic"
    for command in (
        f"deleteUser -b {broker} -u alice",
        f"createUser -b {broker} -u alice -p {ALICE.secret_key}",
        f"createAcl -b {broker} -s User:alice -r Topic:{topic},Group:AccessGroup -a Pub,Sub,Get -d Allow",
        f"updateTopic -b {broker} -t {topic} -w 1 -r 1",
    ):
        (printed,) = admin.run(command)
        assert "success" in printed, printed
    alice = agent(ALICE, profile, encoding)
    alice.publish_queues(topic)
    start = sum(queue["max"] for queue in alice.offsets(topic))
    alice.send_dispatched([{"topic": topic, "body": f"{n}", "keys": f"k{n}"} for n in range(5)])
    assert sum(queue["max"] for queue in alice.offsets(topic)) == start + 5
    alice.call("push_start", name="p", group="AccessGroup", topic=topic)
    assert len(alice.received("p", 5)) >= 5
    admin.run(f"updateTopic -b {broker} -t OtherTopic -w 1 -r 1")
    alice.publish_queues("OtherTopic")
    (denied,) = alice.send([{"topic": "OtherTopic", "body": "x"}])
    assert denied["code"] == 16, denied
    (forged,) = agent(STRANGER).send([{"topic": topic, "body": "x"}])
    assert forged["code"] == 16, forged


def test_mqadmin_cannot_use_the_keys_of_the_inner_user(
    kit: JavaKit, protected: RayMQ, tmp_path: Path
) -> None:
    profile = RELEASES["5.3.3"].server
    with Mqadmin(kit, protected.nameserver_address, tmp_path, profile=profile, jvm=keys(INNER)) as inner:
        (printed,) = inner.run(f"listUser -b {protected.broker_address}")
        assert "is the cluster's inner user" in printed, printed


def test_python_client_can_use_the_signature_of_rocketmq(protected: RayMQ) -> None:
    keys = {"access_key": ROOT.access_key, "secret_key": ROOT.secret_key, "signature": "rocketmq"}
    with Admin(config=ClientConfig(protected.nameserver_address, **keys)) as admin:
        assert all("root" in users for users in admin.users().values())


def test_unsigned_java_client_is_refused(kit: JavaKit, protected: RayMQ, tmp_path: Path) -> None:
    home = tmp_path / "agent"
    with Agent(kit, CLIENT, protected.nameserver_address, home) as unsigned:
        with pytest.raises(OperationFailed, match="is not signed") as caught:
            unsigned.create_topic(protected.broker_address, "Unsigned")
        assert caught.value.code == 16
