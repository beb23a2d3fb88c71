"""After the warm-up, sending and reading messages neither compiles nor loads a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import gc, logging, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from store import warm
from store.common.clock import SystemClock
from store.ownership.identity import StoreIdentity
from store.message_store import MessageStore

logging.basicConfig(level=logging.WARNING)

def compiled():
    return sum(len(each.signatures) for each in gc.get_objects() if isinstance(each, Dispatcher))

warm.warm_up()
before = compiled()
store = MessageStore.open(
    Path(sys.argv[1]), warm._SETTINGS, StoreIdentity("c", "b"), SystemClock(), store_host=warm._HOST
)
for _ in range(3):
    warm._send(store)
    warm._read(store)
store.close()
print(before, compiled())
"""


@pytest.mark.slow
def test_warm_up_compiles_all_kernels(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # a new user would take an error of the warm-up for a damaged store
    before, after = run.stdout.split()[-2:]
    assert int(before) > 0
    assert before == after
