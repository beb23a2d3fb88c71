"""The decorators of all kernels: compiled functions release the GIL and do not count references to arrays.

By default numba increments and decrements a reference count, atomically, each time one kernel passes an array
to another. That took more than half of the time of a dispatch. It is not needed, because kernels only use the
arrays that their Python caller holds. A kernel must not create arrays: without reference counting their
memory would never be freed, and numba does not always report it.
"""

from typing import Any

from numba import njit

_OPTIONS = {"nogil": True, "_nrt": False}


def kernel(*signature: Any, keeps_gil: bool = False) -> Any:
    """Return a decorator for functions that Python code calls; compiled code is cached on disk.

    Args:
        signature: Types of the parameters. If given, the function is compiled or loaded when its module is
            imported, otherwise at its first call.
        keeps_gil: Do not release the GIL. For calls of a few microseconds: with other busy threads, acquiring
            the GIL again would take longer.
    """
    return njit(*signature, cache=True, **_OPTIONS | {"nogil": not keeps_gil})


def helper() -> Any:
    """Return a decorator for functions that only kernels call; they are compiled as part of the kernel."""
    return njit(**_OPTIONS)
