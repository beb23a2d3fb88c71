"""Fixtures of the tests marked `ray`: one Ray cluster with a separate home, token and ports."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.ports import free_port

REPO = Path(__file__).parent.parent.parent
CLI_TIMEOUT_S = 240.0
COMMIT_LOG_FILE_BYTES = 16 * 1024 * 1024
DEFAULT_AGENT_PORT = 52365


@dataclass
class RayMQ:
    """Runs the `raymq` command with a topology of two nameservers and two brokers on free ports."""

    home: Path
    ports: Sequence[int]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def nameservers(self) -> list[str]:
        return [f"127.0.0.1:{self.ports[0]}", f"127.0.0.1:{self.ports[3]}"]

    @property
    def overrides(self) -> list[str]:
        values = {
            "ray.address": "new",
            "route_refresh_ms": 0,
            "ray.port": 0,
            "ray.dashboard_port": 0,
            "nameservers": f"[{{listen_port: {self.ports[0]}}}, {{listen_port: {self.ports[3]}}}]",
            "brokers.broker-a.listen_port": self.ports[1],
            "brokers.broker-b.listen_port": self.ports[2],
            "broker_settings.store.commit_log_file_bytes": COMMIT_LOG_FILE_BYTES,
            "broker_settings.register_interval_ms": 1000,
            "rebalancers.0.settings": "{min_lease_ms: 200}",
        }
        return [f"{key}={value}" for key, value in values.items()]

    def store(self, broker: str) -> Path:
        return self.home / "store" / f"{broker}-0"

    def run(self, command: str, *extra: str) -> subprocess.CompletedProcess[str]:
        sets = [part for override in self.overrides for part in ("--set", override)]
        return subprocess.run(
            [sys.executable, "-m", "cluster.cli.main", command, *sets, *extra],
            env=self.environment, cwd=REPO, capture_output=True, text=True,
            check=False, timeout=CLI_TIMEOUT_S,
        )  # fmt: skip


@pytest.fixture(scope="session")
def raymq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMQ]:
    """Yield the command runner; nothing is running yet. All started processes are stopped at the end."""
    from cluster.control.session.environment import make_token
    from cluster.control.session.ray_head import stop_head

    home = tmp_path_factory.mktemp("raymq-home")
    make_token(home / "token")
    variables = {
        "RAYMQ_HOME": str(home),
        "RAY_AUTH_TOKEN_PATH": str(home / "token"),
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "PYTHONPATH": str(REPO),
    }
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with pytest.MonkeyPatch.context() as patch:
        # Ray also reads these variables in this process when a test connects to it.
        for key, value in variables.items():
            patch.setenv(key, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        with _agent_port_occupied():
            try:
                yield RayMQ(home, [free_port(-2) for _ in range(4)], inherited | variables)
            finally:
                _disconnect_ray()
                stop_head(home)


@contextmanager
def _agent_port_occupied() -> Iterator[None]:
    """Occupy the default port of Ray's agent, as another Ray on this machine would.

    The port may already be in use by a real Ray.
    """
    with socket.socket() as agent:
        try:
            agent.bind(("127.0.0.1", DEFAULT_AGENT_PORT))
            agent.listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        yield


def _disconnect_ray() -> None:
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


@pytest.fixture
def running(raymq: RayMQ, request: pytest.FixtureRequest) -> RayMQ:
    """Start the topology if needed and connect this process to its Ray.

    An unhealthy topology is stopped before a test is repeated.
    """
    from tests.cluster.ray_helpers import ensure_up, stop_if_unhealthy

    if getattr(request.node, "execution_count", 1) > 1:
        stop_if_unhealthy(raymq)
    ensure_up(raymq)
    return raymq


@pytest.fixture
def topic() -> str:
    """Return a topic name that no test and no earlier run of this test has used."""
    return f"topic-{next(_topics)}"


_topics = itertools.count()
