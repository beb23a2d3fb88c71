"""The cache of compiled kernels is keyed by the content of the sources, not by their path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.kernels import cache

HELPER = """
from numba import njit

@njit
def helper(x):
    return x + 1
"""
KERNEL = """
from numba import njit, types
from store.kernels.helper import helper

@njit(types.int64(types.int64), cache=True)
def kernel(x):
    return helper(x)
"""
PROGRAM = """
from store.kernels.kernel import kernel
print(kernel(41), sum(kernel.stats.cache_hits.values()))
"""


def lay_out(sources: Path) -> None:
    """Create a package `store.kernels` with one kernel, its helper, and RayMQ's cache locator."""
    package = sources / "store" / "kernels"
    package.mkdir(parents=True)
    (sources / "store" / "__init__.py").touch()
    (sources / "store" / "common").mkdir()
    (sources / "store" / "common" / "__init__.py").touch()
    for name in ("kernels/__init__.py", "kernels/cache.py", "common/kernel_cache.py"):
        shutil.copy(cache.KERNELS.parent / name, sources / "store" / name)
    (package / "helper.py").write_text(HELPER)
    (package / "kernel.py").write_text(KERNEL)


def run_kernel(sources: Path, user_cache: Path) -> tuple[int, int]:
    """Run the kernel in a new process; return its result and the number of cache hits."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "XDG_CACHE_HOME": str(user_cache)}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=True)
    result, hits = run.stdout.split()
    return int(result), int(hits)


@pytest.mark.slow
def test_moved_kernels_are_loaded_from_the_cache_and_changed_ones_compiled(tmp_path: Path) -> None:
    """`ray job submit` unpacks the same sources into another directory each time."""
    first, second, user_cache = tmp_path / "first", tmp_path / "second", tmp_path / "cache"
    lay_out(first)
    lay_out(second)

    assert run_kernel(first, user_cache) == (42, 0)
    assert run_kernel(second, user_cache) == (42, 1)
    (second / "store/kernels/helper.py").write_text(HELPER.replace("x + 1", "x + 2"))
    assert run_kernel(second, user_cache) == (43, 0)


def test_locator_declines_if_the_cache_directory_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raymq").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert (
        cache.ContentCacheLocator.from_function(cache.content_hash.__wrapped__, str(cache.KERNELS / "a.py"))
        is None
    )


def test_locator_declines_functions_of_other_packages() -> None:
    assert cache.ContentCacheLocator.from_function(cache.content_hash.__wrapped__, __file__) is None


def test_kernels_not_loaded_for_a_month_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, used = cache.cache_root() / "kernels-old", cache.cache_root() / "kernels-used"
    for directory in (old, used):
        directory.mkdir(parents=True)
    month_ago = time.time() - cache.UNUSED_AFTER_S - 60
    os.utime(old, (month_ago, month_ago))

    cache.remove_unused()

    assert not old.exists()
    assert used.exists()
