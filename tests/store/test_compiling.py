"""Kernels are compiled once per machine, by a process of their own, and waiting for it ends."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import compiling
from store.common.kernel_cache import cache_directory
from tests.eventually import eventually

COMPILER = """
import os, sys, time
from pathlib import Path

directory = Path(os.environ["DIRECTORY"])
with (directory / "runs").open("a") as runs:
    runs.write(f"{os.getpid()}\\n")
"""
WAITS = """
(directory / "progress").write_text("compiling 7 of 44 kernels")
while not (directory / "proceed").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DIRECTORY", str(cache_directory()))
    return cache_directory()


def install_compiler(sources: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Replace the compiling process by one that notes its process id and runs `program`."""
    (sources / "store").mkdir()
    (sources / "store" / "__init__.py").touch()
    (sources / "store" / "compiler.py").write_text(COMPILER + program)
    monkeypatch.setattr(compiling, "SOURCES", sources)


def runs(directory: Path) -> int:
    """Return how often the compiling process was started."""
    return len((directory / "runs").read_text().split())


def test_brokers_wait_for_the_one_process_that_compiles_and_report_its_progress(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_compiler(tmp_path, monkeypatch, WAITS + "(directory / 'complete').touch()")
    reports: list[list[str]] = [[], [], []]
    with ThreadPoolExecutor() as brokers:
        started = [brokers.submit(compiling.compile_once, each.append) for each in reports]
        try:
            eventually(lambda: all(reports))
            assert not any(each.done() for each in started)
        finally:
            (directory / "proceed").touch()
        for each in started:
            each.result()

    assert reports == [["compiling 7 of 44 kernels"]] * 3
    assert runs(directory) == 1
    compiling.compile_once()
    assert runs(directory) == 1


def test_failed_compiling_process_leaves_the_kernels_to_the_broker(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_compiler(tmp_path, monkeypatch, "sys.exit('no space left')")

    compiling.compile_once()

    assert not compiling.are_compiled()
    compiling.compile_once()
    assert runs(directory) == 2


def test_compiling_without_progress_is_given_up_by_all_who_wait(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "STALLED_S", 0.5)
    install_compiler(tmp_path, monkeypatch, WAITS)
    brokers = [threading.Thread(target=compiling.compile_once) for _ in range(2)]
    for each in brokers:
        each.start()

    for each in brokers:
        eventually(lambda broker=each: not broker.is_alive())
    assert not compiling.are_compiled()


def test_cache_that_is_not_writable_leaves_the_kernels_to_the_broker(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")

    compiling.compile_once()

    assert not compiling.are_compiled()
