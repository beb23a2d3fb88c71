"""Access to the Java objects behind a Spark session, which PySpark offers only as private attributes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def java_package(spark: SparkSession) -> Any:
    """Return the JVM view of the session, through which Java classes are accessed by package name."""
    return spark._jvm  # noqa: SLF001


def java_session(spark: SparkSession) -> Any:
    """Return the Java SparkSession object of `spark`."""
    return spark._jsparkSession  # noqa: SLF001


def is_active(spark: SparkSession) -> bool:
    """Return True if the Spark context of the session is not stopped."""
    return spark.sparkContext._jsc is not None  # noqa: SLF001
