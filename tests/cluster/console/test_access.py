"""Login with the users of the cluster: rights, sessions, and requests that other pages cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from actors.access.login_failures import OF_ADDRESS_MAX
from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin
from cluster.client.config import ClientConfig
from cluster.console import access
from cluster.console.access import SESSIONS, SESSIONS_OF_USER
from cluster.console.console_settings import ConsoleSettings
from tests.actors.host.foreign_peers import listed_forger
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "inner.key"
    write_credentials(path, Credentials("inner", "inner-secret"))
    return path


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Cluster]:
    """A broker with access control, its super user root, and alice, who may only read the topic orders."""
    made = Cluster(
        tmp_path_factory.mktemp("protected"),
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=keys,
    )
    made.await_registration()
    config = ClientConfig(made.addresses, access_key="inner", secret_key="inner-secret")
    with Admin(config=config) as admin:
        admin.put_user("root", "root-secret", is_super=True)
        admin.put_user("alice", "alice-secret")
        admin.create_topic("orders", queues=1)
        admin.permit("alice", ["Topic:orders"], ["Get", "List", "Sub"])
    yield made
    made.stop()


@pytest.fixture
def console(
    consoles: Callable[..., Console], protected: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> Console:
    """A console whose own user may see everything."""
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    return consoles(protected)


def login(console: Console, user: str, secret: str) -> dict[str, str]:
    """Log in and return the headers of the response; the console sends the cookie from now on."""
    status, body, headers = console.request("POST", f"{API}/login", {"user": user, "secret": secret})
    assert (status, body) == (200, {"user": user})
    console.cookie = headers["Set-Cookie"].partition(";")[0]
    return headers


def test_resources_need_a_login_when_brokers_require_it(console: Console) -> None:
    session = console.request("GET", f"{API}/session")[1]
    assert session == {
        "user": None, "login_required": True, "nameservers": None, "read_only": False, "bodies": "shown",
    }  # fmt: skip
    for path in ("/overview", "/history", "/topics", "/groups", "/brokers", "/changes", "/topics/orders"):
        assert console.refused(path)[0] == 401, path
    assert console.refused("/topics", "POST", {"topic": "new", "dry_run": False})[0] == 401


def test_foreign_broker_in_the_routes_decides_no_login(console: Console, protected: Cluster) -> None:
    """`AAA` is the first broker that the nameserver lists, and answers every request with success."""

    with listed_forger(protected.addresses[0], protected.run) as forger:
        with Admin(protected.addresses) as admin:
            assert next(iter(admin.brokers())) == "AAA"
        for user in ("root", "mallory"):
            assert console.refused("/login", "POST", {"user": user, "secret": "guess"})[0] == 401
        assert console.refused("/overview")[0] == 401
        assert forger.codes
        login(console, "root", "root-secret")


def test_session_acts_with_the_rights_of_its_user(console: Console) -> None:
    console.service.sampler.look()
    login(console, "root", "root-secret")
    assert console.get("/overview")["brokers_up"] == 1
    assert [each["topic"] for each in console.get("/topics")["rows"]] == ["orders"]
    console.send("POST", "/topics", {"topic": "by-root", "dry_run": False})
    assert (console.get("/changes")[0]["user"], console.get("/changes")[0]["failed"]) == ("root", None)
    login(console, "alice", "alice-secret")
    for path in ("/overview", "/history", "/changes", "/topics", "/groups", "/brokers"):
        status, text = console.refused(path)
        assert (status, "no permission" in text) == (403, True), path
    assert console.get("/topics/orders/messages")["messages"] == []
    status, text = console.refused("/topics", "POST", {"topic": "by-alice", "dry_run": False})
    assert (status, "no permission" in text) == (403, True)


def test_logout_ends_the_session(console: Console) -> None:
    headers = login(console, "root", "root-secret")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(headers["Set-Cookie"].split("; "))
    assert console.request("GET", f"{API}/session")[1]["user"] == "root"
    assert console.request("POST", f"{API}/logout", {})[0] == 200
    assert console.refused("/topics")[0] == 401


def test_wrong_secrets_are_refused_and_then_slowed_down(console: Console) -> None:
    for number in range(OF_ADDRESS_MAX):
        if number:  # a success of another user does not clear the failures
            login(console, "alice", "alice-secret")
        status, text = console.refused("/login", "POST", {"user": "root", "secret": "wrong-secret"})
        assert (status, "wrong-secret" in text) == (401, False)
    status, text = console.refused("/login", "POST", {"user": "root", "secret": "root-secret"})
    assert (status, "have failed within a minute" in text) == (429, True)


def test_many_sessions_of_a_user_end_none_of_others(console: Console) -> None:
    login(console, "root", "root-secret")
    cookie = console.cookie
    for _ in range(SESSIONS_OF_USER.limit + 1):
        login(console, "alice", "alice-secret")
    assert console.request("GET", f"{API}/session")[1]["user"] == "alice"
    console.cookie = cookie
    assert console.request("GET", f"{API}/session")[1]["user"] == "root"


def test_oldest_session_ends_over_the_limit(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "SESSIONS", replace(SESSIONS, limit=1))
    login(console, "root", "root-secret")
    cookie = console.cookie
    login(console, "alice", "alice-secret")
    assert console.request("GET", f"{API}/session")[1]["user"] == "alice"
    console.cookie = cookie
    assert console.refused("/topics")[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"user": "x" * 1_025, "secret": "x"},
        {"user": "root"},
        {"user": 1, "secret": "x"},
        {"user": "", "secret": ""},
    ],
)
def test_incomplete_logins_are_refused(console: Console, body: dict[str, object]) -> None:
    assert console.refused("/login", "POST", body)[0] == 400


def test_login_is_refused_if_brokers_accept_every_client(
    consoles: Callable[..., Console], cluster: Cluster
) -> None:
    console = consoles(cluster, login=True)
    status, text = console.refused("/login", "POST", {"user": "root", "secret": "x"})
    assert (status, "accept requests of every client" in text) == (409, True)
    assert console.refused("/topics")[0] == 401


def test_unsigned_requests_act_without_the_console_user(
    consoles: Callable[..., Console], cluster: Cluster, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials of the console are for its samples only: an open cluster needs no login."""
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    console = consoles(cluster)
    assert console.request("GET", f"{API}/session")[1]["login_required"] is False
    assert console.get("/topics")["total"] >= 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"X-RayMQ-Console": ""}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:8085"}, 421),
    ],
    ids=str,
)
def test_changes_caused_by_other_pages_are_refused(
    consoles: Callable[..., Console], cluster: Cluster, headers: dict[str, str], status: int
) -> None:
    console = consoles(cluster)
    body = {"topic": "by-another-page", "dry_run": False}
    found, text, _ = console.request("POST", f"{API}/topics", body, headers)
    assert found == status, text
    own = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{console.port}"}
    assert console.request("POST", f"{API}/topics", {"topic": "by-own-page"}, own)[0] == 200


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/v1/topics", "/api/v1/nosuch", "/nosuch"])
def test_every_response_has_the_security_headers(
    consoles: Callable[..., Console], cluster: Cluster, path: str
) -> None:
    _, _, headers = consoles(cluster).request("GET", path)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")


@pytest.mark.parametrize(
    ("given", "permitted"),
    [
        ({"listen_host": "0.0.0.0"}, False),
        ({"listen_host": "192.0.2.7"}, False),
        ({"listen_host": "0.0.0.0", "login": True}, True),
        ({"listen_host": "0.0.0.0", "insecure": True}, True),
        ({"listen_host": "0.0.0.0", "tls_certificate": "a.pem", "tls_key": "a.key"}, True),
        ({"listen_host": "::1"}, True),
        ({"tls_certificate": "a.pem"}, False),
        ({"listen_port": 70_000}, False),
        ({"nosuch": 1}, False),
    ],
    ids=str,
)
def test_public_address_needs_login_or_tls(given: dict[str, object], permitted: bool) -> None:
    try:
        ConsoleSettings(nameservers=["127.0.0.1:9876"], **given)  # type: ignore[arg-type]
    except ValidationError:
        assert not permitted
    else:
        assert permitted
