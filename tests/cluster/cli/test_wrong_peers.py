"""The address of another process, given as that of a nameserver, is named for what it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.standalone import StandaloneCluster
from tests.jobs.conftest import ClusterThread


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    made = ClusterThread(tmp_path_factory.mktemp("peers"), brokers=1, gateway_port=0)
    yield made.cluster
    made.stop()


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(build(list(arguments)), list(arguments))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("send", "orders", "x"), ("tail", "orders", "--no-follow")]
)
def test_other_process_is_no_nameserver(running: StandaloneCluster, command: tuple[str, ...]) -> None:
    metrics = f"127.0.0.1:{running.brokers[0].graph.metrics.port}"
    for address, kind in {
        running.brokers[0].address: "this is a broker",
        running.rebalancer_address: "this is no nameserver",
        running.gateway_address: "this is a gateway for gRPC clients",
        metrics: "this is a web server, such as the port of metrics or a console",
    }.items():
        error = error_of(*command, "-n", address)
        assert f"{address}: {kind}: -n takes nameservers" in error
        assert "older RayMQ broker" not in error


def test_one_nameserver_among_wrong_addresses_is_enough(running: StandaloneCluster) -> None:
    both = f"{running.brokers[0].address};{running.nameserver_address}"
    arguments = ["topic", "list", "-n", both, "--json"]
    assert CliRunner().invoke(build(arguments), arguments).exit_code == 0
