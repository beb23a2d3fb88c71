"""The daemon of Spark's workers forgets an archive only when it can do without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jobs.spark_daemon import forget_archives


@pytest.fixture
def archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    entries = [str(tmp_path / name) for name in ("pyspark.zip", "py4j-0.10-src.zip", "spark-core_2.12.jar")]
    monkeypatch.setattr(sys, "path", [*entries, str(tmp_path / "mine.zip"), *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", {**sys.path_importer_cache, **dict.fromkeys(entries)})
    return entries


def test_sparks_archives_go_and_other_peoples_stay(archives: list[str], tmp_path: Path) -> None:
    forget_archives()
    assert not set(archives) & {*sys.path, *sys.path_importer_cache}
    assert str(tmp_path / "mine.zip") in sys.path


def test_without_an_installed_pyspark_the_archives_stay(
    archives: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", archives)
    forget_archives()
    assert sys.path == archives
