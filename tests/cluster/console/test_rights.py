"""No answer is no permission: each resource, for callers without rights, while brokers respond and do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.transport.clients.blocking import BlockingConnection
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, MessageQueue
from cluster.client.config import ClientConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console
from tests.eventually import eventually

SECRETS = ("payroll", "wages", "root")
"""Names of topics, groups, users and changes that a caller without rights must not learn."""
VALUES: dict[str, Any] = {
    "topic": "orders", "group": "billing", "target": "none", "to": "latest", "broker": "a", "client": "none",
    "message": "none", "key": "none", "user": "none", "resource": "Topic:none", "resources": ["Topic:none"],
    "actions": ["Pub"], "settings": {"flushDiskType": "ASYNC_FLUSH"}, "writable": True, "secret": "none",
    "queue": "a:0", "offset": 0, "replica": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "inner.key"
    write_credentials(path, Credentials("inner", "inner-secret"))
    return path


@pytest.fixture
def protected(tmp_path: Path, keys: Path) -> Iterator[Cluster]:
    """A broker with access control: its super user root, bob without any right, and lister, who may look."""
    made = Cluster(
        tmp_path,
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=keys,
    )
    made.await_registration()
    with Admin(config=ClientConfig(made.addresses, access_key="inner", secret_key="inner-secret")) as admin:
        admin.put_user("root", "root-secret", is_super=True)
        admin.put_user("bob", "bob-secret")
        admin.put_user("lister", "lister-secret")
        admin.permit("lister", ["Topic:*"], ["Get"])
        admin.permit("lister", ["Cluster:*"], ["Get"])
        for topic, group in (("orders", "billing"), ("payroll", "wages")):
            for name in (topic, f"%DLQ%{group}"):
                admin.create_topic(name, queues=1)
            admin.commit_offsets(group, {MessageQueue(topic, "a", 0): 0})
    yield made
    for name in list(made.brokers):
        made.stop_broker(name)
    made.stop()


@pytest.fixture
def console(
    consoles: Callable[..., Console], protected: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> Console:
    """A console that has sampled orders and billing, and through which root has made a change."""
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    console = consoles(protected)
    login(console, "root")
    console.send("POST", "/topics", {"topic": "by-root", "dry_run": False})
    console.await_sample(lambda overview: overview["groups"] and overview["topics"])
    console.service.sampler.look()
    return console


def login(console: Console, user: str) -> None:
    given = {"user": user, "secret": f"{user}-secret"}
    status, body, headers = console.request("POST", f"{API}/login", given)
    assert status == 200, body
    console.cookie = headers["Set-Cookie"].partition(";")[0]


def requests_of(console: Console) -> list[tuple[str, str, Any]]:
    """Return method, path and body of a request to each route of the console."""
    found = []
    for path, methods in console.request("GET", f"{API}/openapi.json")[1]["paths"].items():
        short = path.removeprefix(API)
        for method, operation in methods.items():
            query = [
                f"{each['name']}={VALUES[each['name']]}"
                for each in operation["parameters"]
                if each["in"] == "query" and each["required"]
            ]
            if method == "delete":
                query.append("dry_run=false")
            body = None
            if method == "post":
                fields = operation["requestBody"]["content"]["application/json"]["schema"]["required"]
                body = {name: VALUES[name] for name in fields} | {"dry_run": False}
                if short.endswith("/offsets"):
                    body["to"] = "latest"
            filled = short.format(**VALUES) + ("?" + "&".join(query) if query else "")
            found.append((method.upper(), filled, body))
    assert len(found) > 35
    return found


@contextmanager
def brokers(cluster: Cluster, state: str) -> Iterator[None]:
    """Let the broker respond ("up"), or stop it; "dead": the nameserver lists it still."""
    if state == "up":
        yield
        return
    address = cluster.brokers["a"].address
    cluster.stop_broker("a")
    with Admin(cluster.address) as admin, BlockingConnection(cluster.address, 10_000) as nameserver:
        eventually(lambda: not admin.brokers())
        if state == "dead":
            header = RegisterBrokerHeader("a", address, "DefaultCluster", 0).to_ext()
            body = RegisterBrokerBody().encode()
            nameserver.exchange(RemotingCommand(RequestCode.REGISTER_BROKER, header, body))
            assert admin.brokers() == {"a": address}
        yield


@pytest.mark.parametrize("state", ["up", "gone", "dead"])
@pytest.mark.parametrize("user", [None, "bob"])
def test_each_route_shows_nothing_without_a_right(
    console: Console, protected: Cluster, user: str | None, state: str
) -> None:
    console.cookie = ""
    if user is not None:
        login(console, user)
    with brokers(protected, state):
        for method, path, body in requests_of(console):
            status, found, _ = console.request(method, f"{API}{path}", body)
            expected = {401} if user is None else {403} if state == "up" else {404, 502, 503}
            if state == "dead" and user is not None and path.startswith("/dead-letters"):
                expected = {200}  # the nameserver lists no topic of dead letters, and shows none
            assert status in expected, (method, path, found)
            assert not any(secret in str(found) for secret in SECRETS), (method, path, found)


def test_samples_name_no_group_to_a_user_that_may_not_list_groups(console: Console) -> None:
    login(console, "lister")
    rows = {each["topic"]: each for each in console.get("/topics")["rows"]}
    assert (rows["payroll"]["messages"], rows["payroll"]["groups"], rows["payroll"]["lag"]) == (0, None, None)
    assert "wages" not in str(console.get("/topics/payroll"))
    for path in ("/overview", "/history", "/changes", "/lakes", "/groups", "/groups/wages"):
        assert console.refused(path)[0] == 403, path


@pytest.mark.parametrize("state", ["gone", "dead"])
def test_console_that_no_broker_has_answered_shows_nothing(
    consoles: Callable[..., Console], protected: Cluster, state: str
) -> None:
    with brokers(protected, state):
        console = consoles(protected)
        assert console.request("GET", f"{API}/session")[1]["login_required"] is None
        for method, path, body in requests_of(console):
            status, found, _ = console.request(method, f"{API}{path}", body)
            assert status == 503, (method, path, found)
        status, _ = console.refused("/login", "POST", {"user": "root", "secret": "root-secret"})
        assert status == 503


def test_name_that_reads_like_a_refusal_is_no_login(console: Console) -> None:
    """The remark for an unknown user contains its name."""
    console.cookie = ""
    for name in ("no permission", "User:x has no permission", "has no permission"):
        status, text = console.refused("/login", "POST", {"user": name, "secret": "x"})
        assert (status, "is unknown" in text) == (401, True)


def test_open_cluster_shows_no_samples_while_no_broker_responds(
    consoles: Callable[..., Console], own_cluster: Cluster
) -> None:
    console = consoles(own_cluster)
    console.await_sample()
    for name in list(own_cluster.brokers):
        own_cluster.stop_broker(name)
    for path in ("/overview", "/history", "/changes", "/lakes"):
        assert console.refused(path)[0] == 503, path
