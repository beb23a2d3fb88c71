"""Ports are given out once, in all processes of a test run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ports

PROGRAM = "import sys; from tests import ports; ports.PORTS = [int(sys.argv[1])]; ports.free_port()"


def test_port_and_its_neighbours_are_given_out_once() -> None:
    given = [ports.free_port(1) for _ in range(5)]
    given += [port + 1 for port in given]
    assert len(set(given)) == 10


def test_port_of_a_process_is_not_given_out_in_another_one() -> None:
    port = ports.free_port()
    result = subprocess.run([sys.executable, "-c", PROGRAM, str(port)], capture_output=True, text=True)
    assert "AssertionError: no free port" in result.stderr


def test_reserved_port_is_not_given_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", [ports.free_port()])
    with pytest.raises(AssertionError, match="no free port"):
        ports.free_port()
