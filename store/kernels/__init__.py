"""Loops compiled with numba. Tests compare them with pure-Python equivalents (`tests/store/kernels`).

Importing a module of this package compiles its kernels or loads them from the cache.
"""

from store.kernels.cache import install_locator, unpack_shipped

install_locator()
unpack_shipped()
