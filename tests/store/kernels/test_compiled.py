"""All kernels are compiled in one way: none counts references to an array, and few hold the GIL."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import numpy as np
from numba.core.dispatcher import Dispatcher

import store.kernels
from store.kernels.compiled import helper, kernel


def all_kernels() -> list[Dispatcher]:
    modules = [
        import_module(f"store.kernels.{found.name}") for found in pkgutil.iter_modules(store.kernels.__path__)
    ]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)]


def test_no_kernel_is_compiled_in_another_way() -> None:
    found = all_kernels()
    assert len(found) > 50
    others = [each.__name__ for each in found if each.targetoptions.get("_nrt", True)]
    assert others == []
    # A run of 32 messages takes 7 µs, a batch of 256 some 40, and to get the GIL back beside a busy loop 20.
    holders = [each.__name__ for each in found if not each.targetoptions.get("nogil")]
    assert holders == ["_write_batch", "_write_messages"]


def test_arrays_are_handed_from_kernel_to_kernel_without_counting() -> None:
    @helper()
    def sum_of(values, first, end):
        total = 0
        while first < end:
            total += values[first]
            first += 1
        return total

    @kernel()
    def sums_of(values, sums):
        for index in range(len(sums)):
            sums[index] = sum_of(values, index, len(values)) if index % 2 else 0

    sums = np.zeros(4, np.int64)
    sums_of(np.arange(4), sums)
    assert sums.tolist() == [0, 6, 0, 3]
    (code,) = sums_of.inspect_asm().values()
    assert "NRT_incref" not in code
    assert "NRT_decref" not in code


def test_no_kernel_makes_an_array() -> None:
    makers = {"array", "arange", "copy", "empty", "empty_like", "full", "ones", "zeros", "zeros_like"}
    used = {each.__name__: makers.intersection(each.py_func.__code__.co_names) for each in all_kernels()}
    assert {name: names for name, names in used.items() if names} == {}
