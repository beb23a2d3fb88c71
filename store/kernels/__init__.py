"""Compiled loops, one file a family, each with its plain-Python twin; importing one compiles or loads it."""

from store.kernels.cache import install_locator

install_locator()
