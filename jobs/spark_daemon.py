"""Spark's daemon of Python workers, made ready so that a task costs its worker nothing but its work.

Before it forks the first worker it loads our kernels (1.5 s of a core, else for each worker, and again after
every idle minute) and keeps what is loaded out of the garbage collector's sight: Spark's workers collect
garbage before every task. It takes pyspark from where it is installed rather than from Spark's archives: the
directory of each of them would be read again, in Python, before every task.
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
READER_MODULES = ("jobs.mapped", "jobs.fetched", "jobs.reader")


def main() -> None:
    """Load what a read needs, then be `pyspark.daemon`."""
    forget_archives()
    from pyspark import daemon

    for module in READER_MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


def forget_archives() -> None:
    """Take Spark's archives from the module search path, if what they hold can be found without them."""
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
