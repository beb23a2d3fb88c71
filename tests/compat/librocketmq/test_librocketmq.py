"""The C++ client, through the PyPI package `rocketmq` 0.4.4, against RocketMQ and RayMQ.

Its batches are not tested: RocketMQ 5.3.3 stores their messages with empty bodies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S

pytestmark = pytest.mark.java

PACKAGE = "rocketmq==0.4.4"
PROGRAM = Path(__file__).with_name("program.py")


def run_program(nameserver: str, topic: str, group: str, home: Path) -> Any:
    """Run the program in a separate environment.

    This folder is not on its path, because it has modules with the same names as the package.
    """
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the PATH: it creates the environment of this client")
    command = [uv, "run", "--no-project", "--python", "3.11", "--with", PACKAGE, "python", "-P", str(PROGRAM)]
    done = subprocess.run(
        [*command, nameserver, topic, group],
        capture_output=True,
        text=True,
        timeout=3 * LIMIT_S,
        check=False,
        cwd=home,
        env={**os.environ, "UV_CACHE_DIR": uv_cache(uv), "HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def uv_cache(uv: str) -> str:
    """Return uv's package cache.

    The program runs with another home directory, because the library writes its logs there.
    """
    return subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()


def test_librocketmq_client_sends_and_receives(peer: Peer, topic: str, names: Names, tmp_path: Path) -> None:
    report = run_program(peer.nameserver_address, topic, names.group(), tmp_path)

    assert report["sent"] == {"sync": ["OK"] * 10, "orderly": "OK", "async": ["OK"]}
    expected = sorted(
        [f"k{number}", "odd" if number % 2 else "even", f"body {number}", str(number)] for number in range(13)
    )
    assert report["pushed"] == expected
    assert report["in_order"] == [fields for fields in expected if fields[1] == "odd"]
    assert report["pulled"] == sorted(f"body {number}" for number in range(13))
