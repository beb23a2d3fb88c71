"""Loads and stores of big-endian numbers, and copies of bytes, for use inside kernels.

Indexing would take a load and a shift per byte, and check each index for being negative. These functions
check nothing: a kernel must check all lengths before it uses them.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from store.kernels.compiled import helper

U8: TypeAlias = npt.NDArray[np.uint8]
I64: TypeAlias = npt.NDArray[np.int64]

# Parameter types of kernels. A writable array may be passed for a read-only parameter.
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
WRITABLE_BYTES = types.Array(types.uint8, 1, "C")


def pointer_to(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Generate LLVM code for the address of `array[index]`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _loader(bits: int) -> Callable[..., Any]:
    """Return a numba intrinsic that loads a big-endian signed integer of `bits` bits as an int64."""

    def load(typing_context: Any, buffer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = pointer_to(context, builder, signature.args[0], *arguments)
            value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()))
            value.align = 1
            if bits > 8:
                value = builder.bswap(value)
            return builder.sext(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(buffer, types.int64), generate

    return load


def _storer(bits: int) -> Callable[..., Any]:
    """Return a numba intrinsic that stores the low `bits` bits of an int64 in big-endian byte order."""

    def store(typing_context: Any, buffer: Any, index: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array, index, value = arguments
            pointer = pointer_to(context, builder, signature.args[0], array, index)
            if bits < 64:
                value = builder.trunc(value, ir.IntType(bits))
            if bits > 8:
                value = builder.bswap(value)
            builder.store(value, builder.bitcast(pointer, ir.IntType(bits).as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(buffer, types.int64, types.int64), generate

    return store


load_i16 = intrinsic(_loader(16))
load_i32 = intrinsic(_loader(32))
load_i64 = intrinsic(_loader(64))
store_u8 = intrinsic(_storer(8))
store_i16 = intrinsic(_storer(16))
store_i32 = intrinsic(_storer(32))
store_i64 = intrinsic(_storer(64))


@intrinsic
def load_u64_little(typing_context: Any, buffer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """Load a little-endian uint64, which is the native byte order of all machines that numba supports."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, signature.args[0], *arguments)
        value = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(buffer, types.int64), generate


@intrinsic
def trailing_zeros(typing_context: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the number of trailing zero bits of a uint64 that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), generate


@intrinsic
def copy_bytes(
    typing_context: Any, target: Any, target_index: Any, source: Any, source_index: Any, count: Any
) -> tuple[Any, Callable[..., Any]]:
    """Copy `count` bytes from `source[source_index:]` to `target[target_index:]`.

    The two ranges must not overlap.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_index, source, source_index, count = arguments
        cgutils.raw_memcpy(
            builder,
            pointer_to(context, builder, signature.args[0], target, target_index),
            pointer_to(context, builder, signature.args[2], source, source_index),
            count,
            itemsize=1,
            align=1,
        )
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)


@helper()
def find_byte(buffer: U8, start: int, end: int, byte: int) -> int:
    """Return the position of the first byte equal to `byte` in [start, end), or `end` if not found.

    Processes eight bytes per step: the lowest bit set in `hits` is the high bit of the first zero byte of
    `word`.
    """
    pattern = np.uint64(byte) * _ONES
    position = start
    while position < end and position + 8 <= len(buffer):
        word = load_u64_little(buffer, position) ^ pattern
        hits = (word - _ONES) & ~word & _HIGHS
        if hits != np.uint64(0):
            return min(position + (trailing_zeros(hits) >> 3), end)
        position += 8
    while position < end and buffer[position] != byte:
        position += 1
    return min(position, end)
