"""The benchmark of the walk of a message counts the calls of each trip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def test_walk_counts_each_trip_and_lists_its_functions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.walk", "--repeats", "2", "--path", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["files", "re-entered", "calls", "hand-overs"]
    found = {
        " ".join(words[:-4]): [int(each.replace(",", "")) for each in words[-4:]]
        for words in map(str.split, rows)
    }
    assert list(found) == ["send", "delayed send", "pull", "pop", "gateway send", "raft append"]
    for files, repeated, calls, _ in found.values():
        assert 0 < repeated < files < calls
    assert found["send"][2] < found["raft append"][2]
    assert "ProducerCore.prepare" in (tmp_path / "send.txt").read_text()
