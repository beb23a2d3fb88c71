"""`raymq user` and `raymq acl` against brokers with access control; no secret is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.wire.signing import Credentials, read_credentials, write_credentials
from cluster.client import Admin, Producer, ProducerConfig
from cluster.client.errors import ClientError
from tests.cluster.cli.conftest import Raymq
from tests.cluster.client.conftest import Cluster

PLAIN_ACL = """\
globalWhiteRemoteAddresses: [10.0.0.*]
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress: 192.168.0.*
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [topicA=DENY, topicB=PUB|SUB, topicC=SUB]
  groupPerms: [groupA=DENY, groupB=PUB|SUB]
- accessKey: rocketmq2
  secretKey: admin-secret
  admin: true
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "inner.key"
    write_credentials(path, Credentials("inner", "inner-secret"))
    return path


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Cluster]:
    """Two brokers that require signatures and permissions."""
    made = Cluster(
        tmp_path_factory.mktemp("protected"),
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=keys,
    )
    made.await_registration()
    yield made
    made.stop()


@pytest.fixture
def raymq(protected: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch) -> Raymq:
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    return Raymq(protected)


def secret_file(folder: Path, secret: str) -> str:
    path = folder / "secret"
    path.write_text(f"\ufeff{secret}\n")  # some editors write a byte order mark
    return str(path)


def can_send(cluster: Cluster, topic: str, **credentials: str) -> bool:
    with Producer(config=ProducerConfig(cluster.addresses, **credentials)) as producer:
        try:
            producer.send(topic, b"x")
        except ClientError:
            return False
        return True


def test_user_is_created_changed_and_deleted_on_all_brokers(raymq: Raymq, tmp_path: Path) -> None:
    topic, keys = raymq.filled(), {"access_key": "alice", "secret_key": "alice-secret"}
    created = raymq.ok("user", "create", "alice", "--secret-file", secret_file(tmp_path, "alice-secret"))
    assert created == {"user": "alice", "brokers": ["a", "b"]}
    assert not can_send(raymq.cluster, topic, **keys)
    raymq.ok("acl", "set", "alice", "-r", f"Topic:{topic}", "-a", "Pub")
    assert can_send(raymq.cluster, topic, **keys)
    raymq.ok("user", "create", "alice", "--no-enabled")
    assert not can_send(raymq.cluster, topic, **keys)
    raymq.ok("user", "create", "alice", "--enabled", "--super", "--secret-file", "-", given="\ufeffother\n")
    row = {"user": "alice", "type": "Super", "status": "enable", "brokers": ["a", "b"]}
    assert raymq.ok("user", "list") == [row]
    assert not can_send(raymq.cluster, topic, **keys)
    assert can_send(raymq.cluster, topic, access_key="alice", secret_key="other")
    raymq.ok("user", "delete", "alice", "--yes")
    assert raymq.ok("user", "list") == []
    assert raymq.ok("acl", "list") == []
    assert "user 'alice' does not exist" in raymq.refused("user", "delete", "alice", "--yes")


def test_secret_key_is_prompted_and_never_an_argument(raymq: Raymq) -> None:
    code, out, errors = raymq.run("user", "create", "carol", given="carol-secret\ncarol-secret\n")
    assert code == 0
    assert "carol-secret" not in out + errors
    raymq.ok("user", "delete", "carol", "--yes")
    code, _, errors = raymq.run("user", "create", "carol", "--secret", "carol-secret")
    assert code == 2
    code, _, errors = raymq.run("user", "create", "carol", "--help")
    assert code == 0


def test_rules_are_set_listed_and_deleted(raymq: Raymq, tmp_path: Path) -> None:
    raymq.ok("user", "create", "bob", "--secret-file", secret_file(tmp_path, "bob-secret"))
    raymq.ok("acl", "set", "bob", "-r", "Topic:a", "-r", "Group:g*", "-a", "Pub", "-a", "Sub")
    raymq.ok("acl", "set", "bob", "-r", "Topic:a", "-a", "All", "--deny", "--source", "10.0.0.0/8")
    rules = {row["resource"]: row for row in raymq.ok("acl", "list", "bob")}
    assert rules["Topic:a"] == {
        "user": "bob", "policy": "Custom", "resource": "Topic:a", "actions": ["All"],
        "sources": ["10.0.0.0/8"], "decision": "Deny", "brokers": ["a", "b"],
    }  # fmt: skip
    assert rules["Group:g*"]["actions"] == ["Pub", "Sub"]
    assert "Topic:a" in raymq.shown("acl", "list")
    raymq.ok("acl", "delete", "bob", "-r", "Topic:a", "--yes")
    assert [row["resource"] for row in raymq.ok("acl", "list", "bob")] == ["Group:g*"]
    raymq.ok("acl", "delete", "bob", "--yes")
    assert raymq.ok("acl", "list", "bob") == []
    assert "The acl is not exist" in raymq.refused("acl", "delete", "bob", "--yes")
    assert "action 'Fly' is not valid" in raymq.refused("acl", "set", "bob", "-r", "*", "-a", "Fly")
    assert "User:nosuch is not exist" in raymq.refused("acl", "set", "nosuch", "-r", "*", "-a", "All")
    raymq.ok("user", "delete", "bob", "--yes")


def test_plain_acl_of_rocketmq_4_is_imported(raymq: Raymq, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    code, out, errors = raymq.run("acl", "import", str(path), "--dry-run")
    assert code == 0
    assert "globalWhiteRemoteAddresses is ignored" in errors
    assert "accounts[0]: whiteRemoteAddress is ignored" in errors
    assert "12345678" not in out + errors
    assert raymq.ok("user", "list") == []
    code, out, errors = raymq.run("acl", "import", str(path))
    assert code == 0
    types = {row["user"]: row["type"] for row in raymq.ok("user", "list")}
    assert types == {"RocketMQ": "Normal", "rocketmq2": "Super"}
    rules = {
        (row["policy"], row["resource"]): (row["decision"], *row["actions"])
        for row in raymq.ok("acl", "list")
    }
    assert rules == {
        ("Custom", "Topic:topicA"): ("Deny", "All"),
        ("Custom", "Topic:topicB"): ("Allow", "Pub", "Sub"),
        ("Custom", "Topic:topicC"): ("Allow", "Sub"),
        ("Custom", "Group:groupA"): ("Deny", "All"),
        ("Custom", "Group:groupB"): ("Allow", "Pub", "Sub"),
        ("Default", "Topic:*"): ("Deny", "All"),
        ("Default", "Group:*"): ("Allow", "Sub"),
    }
    raymq.ok("topic", "create", "topicB")
    raymq.ok("topic", "create", "topicC")
    imported = {"access_key": "RocketMQ", "secret_key": "12345678"}
    assert can_send(raymq.cluster, "topicB", **imported)
    assert not can_send(raymq.cluster, "topicC", **imported)
    _, out, _ = raymq.run("acl", "import", str(path))
    assert '"kept": ["RocketMQ", "rocketmq2"]' in out
    for name in types:
        raymq.ok("user", "delete", name, "--yes")


def test_import_of_a_plain_acl_is_repeated_for_an_added_broker(raymq: Raymq, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts: [{accessKey: carol, secretKey: 12345678, topicPerms: [topicB=PUB]}]")
    raymq.cluster.stop_broker("b")
    assert raymq.ok("acl", "import", str(path))["imported"] == ["carol"]
    raymq.cluster.start_broker("b")
    raymq.cluster.await_registration()
    assert raymq.ok("acl", "import", str(path))["imported"] == ["carol"]
    with Admin(raymq.cluster.address) as admin:
        assert {name: sorted(users) for name, users in admin.users().items()} == {
            "a": ["carol"],
            "b": ["carol"],
        }
    assert raymq.ok("acl", "import", str(path))["kept"] == ["carol"]
    raymq.ok("user", "delete", "carol", "--yes")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("accounts: [{accessKey: a, secretKey: top-secret, topicPerms: [t=READ]}]", "'READ' of Topic:t"),
        ("accounts: [{accessKey: a, secretKey: top-secret, topicPerms: [t]}]", "does not have the form"),
        ("accounts: [{accessKey: a, secretKey: top-secret, topicPerms: t}]", "is not a list"),
        ("accounts: [{accessKey: a}]", "accessKey and secretKey are required"),
        ("accounts: {a: 1}", "`accounts` is not a list"),
        ("accounts: [7]", "accounts[0] is not a map"),
        ("accounts: [{accessKey: a, secretKey: 'top-secret\n}]", "is not valid YAML at line"),
        ("top-secret", "give a plain_acl.yml of RocketMQ 4.x"),
    ],
)
def test_invalid_plain_acl_is_refused_without_secrets(
    raymq: Raymq, tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    error = raymq.refused("acl", "import", str(path), code=2)
    assert reason in error
    assert "top-secret" not in error


def test_credentials_file_is_created_once_and_private(raymq: Raymq, tmp_path: Path) -> None:
    path = tmp_path / "new.key"
    command = ("user", "credentials", str(path))
    from typer.testing import CliRunner

    from cluster.cli.main import build

    result = CliRunner().invoke(build(command), command)
    assert result.exit_code == 0
    made = read_credentials(path)
    assert (made.access_key, len(made.secret_key) >= 32, made.is_inner) == ("inner", True, True)
    assert made.secret_key not in result.output
    again = CliRunner().invoke(build(command), command)
    assert (again.exit_code, "File exists" in again.output) == (1, True)
    assert read_credentials(path) == made


def test_commands_without_credentials_are_refused_with_the_remedy(
    raymq: Raymq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYMQ_CREDENTIALS")
    assert "the request is not signed" in raymq.refused("user", "list")
