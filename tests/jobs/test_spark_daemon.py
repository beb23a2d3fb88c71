"""The worker daemon removes Spark's archives from sys.path only if their modules are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobs.spark_daemon import remove_spark_archives


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
