"""Loops compiled with numba, and pure-Python equivalents with which tests compare them.

Importing a module of this package compiles its kernels or loads them from the cache.
"""

from store.kernels.cache import install_locator

install_locator()
