"""Checks and environment of a Spark session before Spark is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.job_errors import JavaNotFound, OptionInvalid
from jobs.spark.session import check_ray_has_java, local_session, prepare_environment


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "PATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def test_packaged_java_is_used_if_java_home_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "")
    prepare_environment()
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert java.is_file()
    assert os.environ["PATH"].startswith(str(java.parent))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_java_home_takes_precedence_over_packaged_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    prepare_environment()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_java_home_without_java_is_refused_with_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match="no bin/java"):
        prepare_environment()


def test_ray_cluster_without_java_is_refused() -> None:
    check_ray_has_java({"CPU": 2.0, "java": 1.0})
    with pytest.raises(JavaNotFound, match="raymq up"):
        check_ray_has_java({"CPU": 2.0})


@pytest.mark.parametrize("cores", [0, -1, "two", 1.5, True])
def test_invalid_number_of_cores_is_refused_before_spark_starts(cores: Any) -> None:
    with pytest.raises(OptionInvalid, match=r"^cores="):
        local_session(cores=cores)
