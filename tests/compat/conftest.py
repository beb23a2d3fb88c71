"""Fixtures of the compatibility tests: RocketMQ jars, a running RocketMQ or RayMQ, and Java clients."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.compat.agent import Agent
from tests.compat.build import CLIENT, CLIENT_5_5, OLD_CLIENT, RELEASES, JavaKit, JavaNotFound, java_kit
from tests.compat.mqadmin import Mqadmin
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ

MAX_MESSAGE_BYTES = 65_536
CLIENTS = {
    "5.3.3-json": (CLIENT, "JSON"),
    "5.3.3-binary": (CLIENT, "ROCKETMQ"),
    "4.9.8-json": (OLD_CLIENT, "JSON"),
    "5.5.0-json": (CLIENT_5_5, "JSON"),
}
DEFAULT_CLIENT = "5.3.3-json"
OTHER_CLIENTS = [pytest.param(name, marks=pytest.mark.extended) for name in CLIENTS if name != DEFAULT_CLIENT]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use `each_client`.

    By default a test runs with one client, chosen by the name of the test; the others are extended tests.
    """
    if "each_client" not in metafunc.fixturenames:
        return
    names = list(CLIENTS)
    chosen = names[zlib.crc32(metafunc.function.__name__.encode()) % len(names)]
    others = [pytest.param(name, marks=pytest.mark.extended) for name in names if name != chosen]
    metafunc.parametrize("each_client", [chosen, *others], indirect=True)


@pytest.fixture(scope="session")
def kit() -> JavaKit:
    """Return the JDK and the jars; skip the test if they are not available."""
    try:
        return java_kit()
    except JavaNotFound as missing:
        pytest.skip(str(missing))


# Runs against RocketMQ show that the assertions are correct; they are extended tests.
@pytest.fixture(scope="session", params=[pytest.param("rocketmq", marks=pytest.mark.extended), "raymq"])
def peer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kit: JavaKit
) -> Iterator[Peer]:
    """Run RocketMQ or RayMQ with the same settings; every assertion holds for both."""
    root = tmp_path_factory.mktemp(request.param)
    settings = {
        "autoCreateTopicEnable": "false",
        "maxMessageSize": str(MAX_MESSAGE_BYTES),
        "mappedFileSizeCommitLog": str(64 << 20),
        "fileReservedTime": "720",
    }
    # On a busy machine RocketMQ would refuse sends that have waited for 200 ms.
    tolerant = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "3600000"}
    theirs = settings | tolerant | {"enablePropertyFilter": "true", "recallMessageEnable": "true"}
    sides: dict[str, Callable[[], Peer]] = {
        "rocketmq": lambda: RocketMQ(kit, root, theirs, heap="512m"),
        "raymq": lambda: RayMQ(root, settings),
    }
    with sides[request.param]() as started:
        yield started


class Agents:
    """The Java client programs of one peer, each started on first use."""

    def __init__(self, kit: JavaKit, peer: Peer, root: Path) -> None:
        self._kit = kit
        self._peer = peer
        self._root = root
        self._running: dict[str, Agent] = {}
        self._numbers = itertools.count()

    def get(self, client: str) -> Agent:
        """Return the program that all tests share."""
        if client not in self._running:
            self._running[client] = self.start(client)
        return self._running[client]

    def start(self, client: str) -> Agent:
        """Start another program, which the test closes or kills."""
        profile, encoding = CLIENTS[client]
        home = self._root / f"{client}-{next(self._numbers)}"
        return Agent(self._kit, profile, self._peer.nameserver_address, home, encoding=encoding)

    def close(self) -> None:
        for agent in self._running.values():
            agent.close()


@pytest.fixture(scope="session")
def agents(kit: JavaKit, peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Return the Java clients that are connected to the peer."""
    running = Agents(kit, peer, tmp_path_factory.mktemp("agents"))
    yield running
    running.close()


# The newer tools refuse JSON that the older ones accept.
@pytest.fixture(scope="session", params=["5.5.0", pytest.param("5.3.3", marks=pytest.mark.extended)])
def mqadmin(
    request: pytest.FixtureRequest, kit: JavaKit, peer: Peer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mqadmin]:
    """Run RocketMQ's mqadmin of each release against the peer."""
    home = tmp_path_factory.mktemp("mqadmin")
    with Mqadmin(kit, peer.nameserver_address, home, profile=RELEASES[request.param].server) as running:
        yield running


@pytest.fixture
def each_client(request: pytest.FixtureRequest, agents: Agents) -> Agent:
    """Return the Java client of each version and header encoding."""
    return agents.get(request.param)


@pytest.fixture
def client(agents: Agents) -> Agent:
    """Return the Java client of RocketMQ 5.3.3, the reference release."""
    return agents.get(DEFAULT_CLIENT)


@dataclass(frozen=True)
class Names:
    """Topic and group names that no other test uses, because all tests of a session share the brokers."""

    test: str

    def topic(self, suffix: str = "") -> str:
        return f"T_{self.test}{suffix}"

    def group(self, suffix: str = "") -> str:
        return f"G_{self.test}{suffix}"


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    """Return unique topic and group names for the test; different ones if the test is repeated."""
    name = f"{request.node.name}_{getattr(request.node, 'execution_count', 1)}"
    allowed = "".join(letter if letter.isalnum() else "_" for letter in name)
    return Names(allowed[-90:])


@pytest.fixture
def topic(names: Names, peer: Peer, agents: Agents) -> str:
    """Create a topic with four queues for the test and return its name."""
    agents.get(DEFAULT_CLIENT).create_topic(peer.broker_address, names.topic())
    return names.topic()
