"""Ctrl-C at any time: the command exits immediately, with the shell's exit code and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import LIMIT_S, eventually

# The interrupt comes when this module is about to be imported.
INTERRUPTED_AT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[0] = "raymq"
from cluster.cli.entry import main
main()
"""
ENDED = (-signal.SIGINT, 130)


def interrupted_at(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = INTERRUPTED_AT.format(module=module)
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    "module",
    ["cluster.cli.main", "typer", "cluster.cli.topics.topic", "cluster.client", "actors.transport.client"],
)
def test_interrupt_during_imports_exits_silently(module: str) -> None:
    done = interrupted_at(module, "topic", "list", "-n", "127.0.0.1:1")
    assert (done.returncode in ENDED, done.stdout, done.stderr) == (True, "", "")


def test_interrupt_of_up_reports_how_to_continue() -> None:
    done = interrupted_at("cluster.control.topology.topology_file", "up", "--dry-run")
    assert done.returncode in ENDED
    assert "Traceback" not in done.stderr


def test_ignored_interrupts_stay_ignored() -> None:
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + INTERRUPTED_AT.format(
        module="cluster.cli.version"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "version", "--json"],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0


def is_stopped(process: subprocess.Popen[str]) -> bool:
    """Stop a child process; return False if it has ended instead."""
    os.kill(process.pid, signal.SIGSTOP)
    state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return state is not None and state.si_code == os.CLD_STOPPED


def test_bench_stopped_by_several_signals_cleans_up(tmp_path: Path) -> None:
    """`timeout 60 uv run raymq bench …` signals the group, and uv passes its own signal on.

    Each signal is sent to the stopped process while the store is still there: a signal that arrives after the
    interpreter has reset its handlers ends the process by itself (return code -15).
    """
    command = [sys.executable, "-m", "cluster.cli.entry", "bench", "send-one", "--directory", str(tmp_path)]
    bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # The broker writes it when it has started.
        eventually(lambda: any(log.stat().st_size for log in tmp_path.glob("*/broker.log")) or bench.poll())
        assert bench.poll() is None
        [root] = tmp_path.iterdir()
        for number in range(5_000):  # they take long enough to delete for some signals to arrive meanwhile
            (root / f"{number}").touch()

        def is_tidied_up() -> bool:
            if not is_stopped(bench) or not list(tmp_path.iterdir()):
                return True
            os.kill(bench.pid, signal.SIGTERM)
            os.kill(bench.pid, signal.SIGCONT)
            return False

        eventually(is_tidied_up)
        os.kill(bench.pid, signal.SIGCONT)
        _, output = bench.communicate(timeout=LIMIT_S)
    finally:
        bench.kill()
    assert bench.returncode == 130
    assert "all processes are stopped" in output
    assert list(tmp_path.iterdir()) == []
