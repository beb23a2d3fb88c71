"""A console on real sockets, for a cluster in this process."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, MessageQueue, Producer, PushConfig, PushConsumer, reconsume_later
from cluster.client.config import ClientConfig
from cluster.client.transport.loop_thread import LoopThread
from cluster.console.console_settings import ConsoleSettings
from cluster.console.service import ConsoleService
from cluster.control.lake_rows import LakeRow
from store.common.clock import SystemClock
from store.message.group_config import SubscriptionGroupConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.browsers import CHROMIUM, Visitor
from tests.eventually import LIMIT_S, eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

API = "/api/v1"
FAILING = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)


class Console:
    """A running console and an HTTP client that sends what its pages send."""

    def __init__(
        self,
        cluster: Cluster | None = None,
        nameservers: list[str] | None = None,
        lakes: Callable[[], list[LakeRow]] | None = None,
        **settings: Any,
    ) -> None:
        given = {"sample_interval_ms": 100, "listen_port": 0, "metrics_port": -1, **settings}
        addresses = nameservers or (cluster.addresses if cluster else [])
        found = ConsoleSettings(nameservers=addresses, **given)
        self.service = ConsoleService(found, SystemClock(), lakes)
        self._thread = LoopThread("test-console")
        self._thread.run(self.service.start())
        self.url = self.service.address
        self.port = int(self.url.rstrip("/").rpartition(":")[2])
        self.cookie = ""

    def stop(self) -> None:
        self._thread.run(self.service.stop())
        self._thread.stop()

    def request(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Return status, body (decoded if it is JSON) and headers of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        sent = {"X-RayMQ-Console": "1", "Cookie": self.cookie, **(headers or {})}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, data, {name: value for name, value in sent.items() if value})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        found = dict(response.getheaders())
        is_json = found.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(content) if is_json else content, found

    def get(self, path: str) -> Any:
        """Return the data of a resource."""
        status, body, _ = self.request("GET", f"{API}{path}")
        assert status == 200, body
        return body["data"]

    def send(self, method: str, path: str, body: object = None) -> Any:
        """Return the result of a change."""
        status, found, _ = self.request(method, f"{API}{path}", body)
        assert status == 200, found
        return found["data"]

    def refused(self, path: str, method: str = "GET", body: object = None) -> tuple[int, str]:
        """Return the status and the sentence, with its remedy, of a request that fails."""
        status, found, _ = self.request(method, f"{API}{path}", body)
        assert status >= 400, found
        assert found["error"], found
        assert found["remedy"], found
        return status, f"{found['error']} {found['remedy']}"

    def await_sample(self, is_there: Callable[[Any], bool] = lambda overview: True) -> Any:
        """Wait for a sample that begins after this call, and return the overview."""
        before = self.service.sampler.last.at_ns
        eventually(lambda: self.service.sampler.last.at_ns > before)

        def look() -> Any:
            overview = self.get("/overview")
            return overview if is_there(overview) else None

        return eventually(look)


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, a and b, shared by all tests of the console."""
    made = Cluster(tmp_path_factory.mktemp("console"))
    made.await_registration()
    yield made
    made.stop()


@pytest.fixture(scope="package")
def console(cluster: Cluster) -> Iterator[Console]:
    """A console that shows and changes everything."""
    made = Console(cluster)
    yield made
    made.stop()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two brokers of one test, which may stop them."""
    made = Cluster(tmp_path)
    made.await_registration()
    yield made
    made.stop()


@pytest.fixture
def consoles() -> Iterator[Callable[..., Console]]:
    """Return a function that starts a console for one test."""
    made: list[Console] = []

    def start(cluster: Cluster, **settings: Any) -> Console:
        made.append(Console(cluster, **settings))
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.address) as opened:
        yield opened


@pytest.fixture
def dead(cluster: Cluster, console: Console) -> str:
    """Return the name of a topic, and of a group that has three dead letters of it."""
    name = cluster.topic(queues=1)
    with Producer(cluster.address, group="console-test") as producer:
        for number in range(3):
            producer.send(name, f"dead {number}", keys=f"d{number}")
    with PushConsumer(
        cluster.address, name, lambda _messages: reconsume_later(-1), config=FAILING
    ) as consumer:
        consumer.subscribe(name)
        eventually(lambda: {"group": name, "dead_letters": 3} in console.get("/dead-letters"))
    return name


@pytest.fixture
def protected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, consoles: Callable[..., Console]
) -> Iterator[Console]:
    """A console of a broker with access control, with root logged in."""
    path = tmp_path / "inner.key"
    write_credentials(path, Credentials("inner", "inner-secret"))
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(path))
    cluster = Cluster(
        tmp_path / "stores",
        brokers=1,
        authentication_enabled=True,
        authorization_enabled=True,
        inner_credentials_file=path,
    )
    cluster.await_registration()
    with Admin(
        config=ClientConfig(cluster.addresses, access_key="inner", secret_key="inner-secret")
    ) as admin:
        admin.put_user("root", "root-secret", is_super=True)
    console = consoles(cluster)
    _, _, headers = console.request("POST", f"{API}/login", {"user": "root", "secret": "root-secret"})
    console.cookie = headers["Set-Cookie"].partition(";")[0]
    yield console
    cluster.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visitor(browser: Browser, console: Console) -> Iterator[Visitor]:
    context = browser.new_context()
    made = Visitor(context.new_page(), console)
    yield made
    context.close()
    assert made.errors == []


@pytest.fixture
def filled(cluster: Cluster, admin: Admin) -> str:
    """Return the name of a topic with messages and of a group that has consumed two of them."""
    name = cluster.topic(queues=1)
    admin.put_group(SubscriptionGroupConfig(name))
    with Producer(cluster.address, group="browser") as producer:
        for number in range(6):
            producer.send(
                name, f"body {number}", tags="paid", keys=f"k{number}", queue=MessageQueue(name, "a", 0)
            )
    admin.commit_offsets(name, {MessageQueue(name, "a", 0): 2})
    return name
