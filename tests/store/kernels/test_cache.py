"""The cache of compiled kernels goes by what the sources say, not by where they lie."""

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
    """A package `store.kernels` of one kernel and its helper, under our cache."""
    package = sources / "store" / "kernels"
    package.mkdir(parents=True)
    (sources / "store" / "__init__.py").touch()
    for name in ("__init__.py", "cache.py"):
        shutil.copy(cache.KERNELS / name, package)
    (package / "helper.py").write_text(HELPER)
    (package / "kernel.py").write_text(KERNEL)


def run_kernel(sources: Path, user_cache: Path) -> tuple[int, int]:
    """Run the kernel in a process of its own; returns its result and how often the cache was hit."""
    environment = {**os.environ, "PYTHONPATH": str(sources), "XDG_CACHE_HOME": str(user_cache)}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=True)
    result, hits = run.stdout.split()
    return int(result), int(hits)


@pytest.mark.slow
def test_kernels_moved_elsewhere_are_not_compiled_again_but_changed_ones_are(tmp_path: Path) -> None:
    """As when `ray job submit` unpacks the same sources into another directory."""
    first, second, user_cache = tmp_path / "first", tmp_path / "second", tmp_path / "cache"
    lay_out(first)
    lay_out(second)

    assert run_kernel(first, user_cache) == (42, 0)
    assert run_kernel(second, user_cache) == (42, 1)
    (second / "store/kernels/helper.py").write_text(HELPER.replace("x + 1", "x + 2"))
    assert run_kernel(second, user_cache) == (43, 0)


def test_directory_that_cannot_be_written_is_left_to_numbas_own_locators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raymq").write_text("a file where the directory should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert (
        cache.ContentCacheLocator.from_function(cache.content_hash.__wrapped__, str(cache.KERNELS / "a.py"))
        is None
    )


def test_kernels_of_others_are_left_alone() -> None:
    assert cache.ContentCacheLocator.from_function(cache.content_hash.__wrapped__, __file__) is None


def test_kernels_that_nobody_loads_are_removed_after_a_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, used = cache.cache_root() / "kernels-old", cache.cache_root() / "kernels-used"
    for directory in (old, used):
        directory.mkdir(parents=True)
    month_ago = time.time() - cache.UNUSED_AFTER_S - 60
    os.utime(old, (month_ago, month_ago))

    cache.remove_unused()

    assert not old.exists()
    assert used.exists()
