"""Compile options of all kernels: no reference counting of arrays, and few kernels keep the GIL."""

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


def test_all_kernels_use_the_options_of_compiled() -> None:
    found = all_kernels()
    assert len(found) > 50
    others = [each.__name__ for each in found if each.targetoptions.get("_nrt", True)]
    assert others == []
    # 32 messages take 7 µs, a batch of 256 and 128 sends about 40 µs each, the batches of a full receive
    # buffer up to 200 µs; acquiring the GIL next to a busy loop takes 20 µs.
    holders = [each.__name__ for each in found if not each.targetoptions.get("nogil")]
    assert sorted(holders) == [
        "_write_batch",
        "_write_messages",
        "enter_name",
        "find_name",
        "hash_name",
        "remove_name",
        "take_sends",
    ]


def test_passing_an_array_to_a_helper_counts_no_references() -> None:
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


def test_no_kernel_creates_an_array() -> None:
    makers = {"array", "arange", "copy", "empty", "empty_like", "full", "ones", "zeros", "zeros_like"}
    used = {each.__name__: makers.intersection(each.py_func.__code__.co_names) for each in all_kernels()}
    assert {name: names for name, names in used.items() if names} == {}
