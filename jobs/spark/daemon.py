"""The daemon that forks Spark's Python workers, with less overhead for each worker and task.

- The daemon loads our kernels before it forks the first worker. Otherwise each worker would load them
  (1.5 s), and again after each idle minute.
- It excludes the loaded objects from garbage collection, which Spark's workers run before every task.
- It imports pyspark from the installed package instead of from Spark's zip archives, whose directories Python
  would read again before every task.
- Workers keep freed memory for the next batch. Otherwise the C library returns it to the system, and the page
  faults of new memory take half of a write's time in the worker.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ARCHIVED = ("pyspark", "py4j")
ARCHIVES = ("pyspark", "py4j", "spark-core")
ARCHIVE_SUFFIXES = (".zip", ".jar")
WORKER_MODULES = (
    "jobs.reading.mapped",
    "jobs.reading.fetched",
    "jobs.reading.reader",
    "jobs.reading.bodies.body_decoder",
    "jobs.writing.partition_writer",
    "store.tools.reindex.run",
    "cluster.client.producer.table_columns",
    "cluster.client.producer.table_frames",
)


# Options of mallopt(3): the free memory that a worker keeps, and the size from which an allocation is mapped
# for itself and always returned; glibc's maximum for that is 32 MiB.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
RETAINED_BYTES = 64 * 1024 * 1024
MAPPED_BYTES = 32 * 1024 * 1024


def main() -> None:
    """Load the modules that reads and writes need, then run `pyspark.daemon`."""
    remove_spark_archives()
    retain_freed_memory()
    from pyspark import daemon

    for module in WORKER_MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


def retain_freed_memory() -> None:
    """Let this process and its forks keep freed memory, if the C library is glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, RETAINED_BYTES)
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


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
