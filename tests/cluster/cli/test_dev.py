"""`raymq dev` serves clients and the console in one process, and says what to type next."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import LIMIT_S

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[3]
RAYMQ = [sys.executable, "-m", "cluster.cli.entry"]
FREE = ["--port", "0", "--broker-port", "0", "--console-port", "0"]


def words(root: Path, *more: str) -> list[str]:
    return [*RAYMQ, "dev", "--store-root", str(root), *FREE, *more]


@contextmanager
def dev(root: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yield the process and what it printed until it was ready."""
    with subprocess.Popen(
        words(root, *more), cwd=REPO, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            assert process.stdout is not None
            shown = []
            for line in process.stdout:
                shown.append(line)
                if line.startswith("READY"):
                    break
            yield process, "".join(shown)
        finally:
            process.kill()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPO, text=True, capture_output=True, timeout=LIMIT_S, check=False)


def test_dev_serves_what_it_says_to_type_and_keeps_messages(tmp_path: Path) -> None:
    with dev(tmp_path, "--gateway-port", "0") as (process, shown):
        for typed in re.findall(r"raymq (.*)", shown):
            done = run([*RAYMQ, *shlex.split(typed), *(["--no-follow"] if typed.startswith("tail") else [])])
            assert done.returncode == 0, done.stderr
        assert "4 apples" in done.stdout
        program = re.sub(
            r"^  ", "", shown.partition("in Python:\n")[2].partition("READY")[0], flags=re.MULTILINE
        )
        done = run([sys.executable, "-c", program])
        assert "4 apples" in done.stdout, done.stderr
        console = re.findall(r"console +(http://\S+)", shown)[0]
        with urllib.request.urlopen(console, timeout=LIMIT_S) as page:
            assert b"RayMQ" in page.read()
        host, port = re.findall(r"gRPC clients +(\S+):(\d+)", shown)[0]
        socket.create_connection((host, int(port)), LIMIT_S).close()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, output) == (0, f"stopped; messages are kept in {tmp_path}\n")
    assert not (tmp_path / "broker-a-0" / "abort").exists()
    with dev(tmp_path) as (_, shown):
        address = shown.splitlines()[-1].split()[1]
        assert (
            "4 apples" in run([*RAYMQ, "tail", "orders", "-n", address, "--last", "9", "--no-follow"]).stdout
        )


@pytest.mark.parametrize(
    "option",
    [
        "--port",
        "--console-port",
        pytest.param("--broker-port", marks=pytest.mark.extended),
        pytest.param("--gateway-port", marks=pytest.mark.extended),
    ],
)
def test_dev_refuses_a_used_port_with_the_remedy(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = run(words(tmp_path, option, port))
    assert done.returncode == 1
    assert port in done.stderr
    assert option in done.stderr
    assert "Traceback" not in done.stderr


def test_dev_refuses_a_store_that_is_locked_or_no_directory(tmp_path: Path) -> None:
    with dev(tmp_path / "stores") as (process, _):
        done = run(words(tmp_path / "stores"))
        assert done.returncode == 1
        assert f"PID {process.pid}" in done.stderr
    (tmp_path / "file").touch()
    done = run(words(tmp_path / "file"))
    assert (done.returncode, "--store-root" in done.stderr, "Traceback" in done.stderr) == (1, True, False)
