"""Spark's daemon of Python workers, with our kernels loaded before it forks the first of them.

Loading numba and the kernels takes a second and a half of a core, for each worker, again after every minute
in which it was idle. Here it is done once, and what is loaded is kept out of the garbage collector's sight:
Spark's workers collect garbage before every task.
"""

from __future__ import annotations

import gc
import importlib


def main() -> None:
    """Load what a read needs, then be `pyspark.daemon`."""
    from pyspark import daemon

    for module in ("jobs.mapped", "jobs.fetched", "jobs.reader"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
