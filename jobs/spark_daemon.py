"""The daemon that forks Spark's Python workers, with less overhead for each worker and task.

- The daemon loads our kernels before it forks the first worker. Otherwise each worker would load them
  (1.5 s), and again after each idle minute.
- It excludes the loaded objects from garbage collection, which Spark's workers run before every task.
- It imports pyspark from the installed package instead of from Spark's zip archives, whose directories Python
  would read again before every task.
"""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ARCHIVED = ("pyspark", "py4j")
ARCHIVES = ("pyspark", "py4j", "spark-core")
ARCHIVE_SUFFIXES = (".zip", ".jar")
WORKER_MODULES = (
    "jobs.mapped",
    "jobs.fetched",
    "jobs.reader",
    "jobs.bodies.body_decoder",
    "jobs.partition_writer",
    "store.tools.reindex.run",
    "cluster.client.producer.table_columns",
    "cluster.client.producer.table_frames",
)


def main() -> None:
    """Load the modules that reads and writes need, then run `pyspark.daemon`."""
    remove_spark_archives()
    from pyspark import daemon

    for module in WORKER_MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


def remove_spark_archives() -> None:
    """Remove Spark's zip archives from `sys.path`, if their modules are also installed as packages."""
    archives = [entry for entry in sys.path if _is_sparks_archive(entry)]
    others = [entry for entry in sys.path if entry not in archives]
    if not all(PathFinder.find_spec(name, others) for name in ARCHIVED):
        return
    sys.path[:] = others
    for entry in archives:
        sys.path_importer_cache.pop(entry, None)


def _is_sparks_archive(entry: str) -> bool:
    name = Path(entry).name
    return name.startswith(ARCHIVES) and name.endswith(ARCHIVE_SUFFIXES)


if __name__ == "__main__":
    main()
