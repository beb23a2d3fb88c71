"""How all kernels are compiled: without the GIL, and without counting who refers to an array.

Left to itself, numba counts a reference up and down wherever one kernel hands an array to another, by an
atomic instruction each: that was more than half of the time of a dispatch. Our kernels make no arrays and
keep none, so whoever calls them holds all that there are. One that made an array would not always be told:
its memory would never be freed.
"""

from typing import Any

from numba import njit

_OPTIONS = {"nogil": True, "_nrt": False}


def kernel(*signature: Any, keeps_gil: bool = False) -> Any:
    """For Python to call: kept on disk (`store.kernels.cache`); with a signature, compiled at its import.

    `keeps_gil` is for what takes a few microseconds beside busy threads: to get it back would take longer.
    """
    return njit(*signature, cache=True, **_OPTIONS | {"nogil": not keeps_gil})


def helper() -> Any:
    """For kernels to call, which are compiled with it."""
    return njit(**_OPTIONS)
