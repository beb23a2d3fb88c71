"""The worker daemon removes Spark's archives from sys.path, and lets its workers keep freed memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.spark.daemon import remove_spark_archives

PAGES = 3 * 16 * 1024 * 1024 // 4096
PAGE_FAULTS = f"""
import resource
from jobs.spark.daemon import retain_freed_memory

def read_batch():
    for column in [bytes({PAGES} * 4096 // 3) for _ in range(3)]:
        column.count(1)

def page_faults(batches):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(batches):
        read_batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

retain_freed_memory()
page_faults(2)
print(page_faults(10))
"""


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    entries = [str(tmp_path / name) for name in ("pyspark.zip", "py4j-0.10-src.zip", "spark-core_2.12.jar")]
    monkeypatch.setattr(sys, "path", [*entries, str(tmp_path / "mine.zip"), *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", {**sys.path_importer_cache, **dict.fromkeys(entries)})
    return entries


def test_only_spark_archives_are_removed(archives: list[str], tmp_path: Path) -> None:
    remove_spark_archives()
    assert not set(archives) & {*sys.path, *sys.path_importer_cache}
    assert str(tmp_path / "mine.zip") in sys.path


def test_archives_are_kept_if_pyspark_is_not_installed(
    archives: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", archives)
    remove_spark_archives()
    assert sys.path == archives


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES  # ten times as many if freed memory is returned to the system
