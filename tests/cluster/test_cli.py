"""The `raymq` command starts fast and reports errors in one line, with an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli.main import COMMANDS, build
from cluster.control.topology.topology import LOOPBACK_HOSTS

HEAVY = ("ray", "pyspark", "numba", "pyarrow", "pydantic")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(arguments), list(arguments))
    return result.exit_code, result.output


def test_help_lists_every_command_and_imports_no_heavy_module() -> None:
    script = f"""
import sys
from cluster.cli.main import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
print("imported", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("imported []")
    for command in COMMANDS:
        assert f" {command} " in done.stdout


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "400")


def test_version_shows_the_code_version() -> None:
    from actors.host.code_version import code_version

    status, shown = run("version", "--json")
    assert status == 0
    assert f'"code": "{code_version()}"' in shown
    assert run("version") == (0, shown)  # the output is not a terminal: JSON


def test_invalid_topology_exits_with_code_2_and_reason() -> None:
    status, shown = run("up", "--set", "flush=maybe")
    assert (status, shown) == (2, "--set flush=maybe: flush: 'maybe' is invalid: use 'sync' or 'async'\n")
    status, shown = run("status", "nowhere.yaml")
    assert status == 2
    assert "nowhere.yaml: no such file" in shown


WITH_FILE = ["up", "down", "status", "metrics config"]
WITH_NAMES = ["logs", "restart a", "drain a", "promote a-1", "migrate a", "autoscale status"]


@pytest.mark.parametrize("command", [*WITH_FILE, *WITH_NAMES])
def test_commands_on_a_cluster_take_its_topology_file_with_t(command: str) -> None:
    status, shown = run(*command.split(), "-t", "nowhere.yaml")
    assert (status, "nowhere.yaml: no such file" in shown) == (2, True), shown


@pytest.mark.parametrize("command", WITH_FILE)
def test_commands_refuse_two_topology_files(command: str) -> None:
    status, shown = run(*command.split(), "one.yaml", "-t", "other.yaml")
    assert (status, "one.yaml and -t other.yaml: omit one" in shown) == (2, True), shown


def test_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    ports = [
        "nameservers.0.listen_port=0",
        "brokers.0.listen_port=0",
        "brokers.1.listen_port=0",
        "ray.address=new",
    ]
    status, shown = run("up", "--dry-run", *[part for port in ports for part in ("--set", port)])
    assert status == 0
    assert json.loads(shown) == {
        "dry_run": True,
        "lines": ["would start Ray (started), and then:"],
        "actions": [
            {"verb": "create", "actor": actor, "reason": "not running"}
            for actor in ("nameserver-0", "rebalancer-0", "broker-a-0", "broker-b-0")
        ],
    }
    assert not (tmp_path / "home" / "ray.json").exists()


def test_port_in_use_is_refused_before_ray_starts(tmp_path: Path) -> None:
    import socket

    with socket.create_server((LOOPBACK_HOSTS[0], 0)) as server:
        port = server.getsockname()[1]
        status, shown = run(
            "up", "--set", "ray.address=new", "--set", f"nameservers.0.listen_port={port}",
            "--set", "brokers.0.listen_port=0", "--set", "brokers.1.listen_port=0",
        )  # fmt: skip
    assert status == 2
    assert f"nameservers[0].listen_port: cannot listen on 127.0.0.1:{port} (Address already in use)" in shown
    assert shown.endswith("nothing was started or changed\n")
    assert not (tmp_path / "home" / "ray.json").exists()


def test_down_without_a_cluster_reports_it() -> None:
    assert run("down", "--set", "ray.address=new") == (0, "cluster DefaultCluster is not running\n")


def test_every_command_can_be_mounted() -> None:
    for name in ("up", "down", "status", "version", "store"):
        assert isinstance(build([name]), typer.Typer)
