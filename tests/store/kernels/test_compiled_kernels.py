"""The package ships its kernels compiled: they belong to its sources, and a new machine compiles nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from store.common.kernel_cache import KERNELS, content_hash, shipped_archive
from store.compiler import KERNELS_OF_A_BROKER

ONLY_CLIENTS = {
    "batches",
    "columns_to_records",
    "messages_to_batch",
    "records_to_columns",
    "records_to_messages",
}
PROGRAM = """
import gc
from numba.core.dispatcher import Dispatcher
from store.warm import load

load()
kernels = [each.stats for each in gc.get_objects() if isinstance(each, Dispatcher)]
for counts in ("cache_hits", "cache_misses"):
    print(sum(sum(getattr(each, counts).values()) for each in kernels))
"""
needs_our_platform = pytest.mark.skipif(
    not (sys.platform == "linux" and os.uname().machine == "x86_64"), reason="no kernels for this platform"
)


def members() -> dict[str, bytes]:
    """Return the files in the archive of compiled kernels."""
    with tarfile.open(shipped_archive()) as archive:
        files = {each.name: archive.extractfile(each) for each in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


@needs_our_platform
def test_compiled_kernels_are_those_of_the_sources() -> None:
    found = [each.name for each in KERNELS.glob("compiled-*")]

    assert found == [shipped_archive().name], "run `python -m tests.compiled_kernels`: a kernel has changed"


@needs_our_platform
def test_compiled_kernels_hold_those_of_a_broker_and_no_paths() -> None:
    files = members()
    families = [name.split(".")[0] for name in files if name.endswith(".nbi")]

    assert len([each for each in families if each not in ONLY_CLIENTS]) == KERNELS_OF_A_BROKER
    assert not [name for name, content in files.items() if re.search(rb"/[\w/.-]+/[\w.-]+\.py\b", content)]


@needs_our_platform
def test_compiled_kernels_multiply_without_carry() -> None:
    """Checksums use PCLMULQDQ, which numba omits for a named processor unless its features name it."""
    scan = next(content for name, content in members().items() if re.match(r"walk\.scan_records.*nbc", name))

    assert len(re.findall(rb"\xc4[\x03-\xe3].\x44..?[\x00\x11]", scan, re.DOTALL)) > 8


@pytest.mark.slow
@needs_our_platform
def test_new_machine_loads_the_compiled_kernels(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, env=environment, cwd=KERNELS.parents[1], capture_output=True, check=True)
    hits, misses = map(int, run.stdout.split())

    assert hits > 0
    assert misses == 0
    (directory,) = (tmp_path / "raymq").iterdir()
    assert directory.name.startswith(f"kernels-{content_hash()}-")
    assert (directory / "complete").exists()
