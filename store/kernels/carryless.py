"""Folding for CRC-32 with the processor's carry-less multiplication, sixty-four bytes a step.

Source: V. Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ instruction" (Intel,
2009), with the constants of the reflected CRC-32. Instead of its last reduction, the sixteen bytes that are
left have the same CRC as all that was folded into them, so that a table-driven CRC can go on from there.
"""

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from store.kernels.memory import pointer_to

BLOCK_BYTES = 64
LANE_BYTES = 16
_LANES = BLOCK_BYTES // LANE_BYTES

# x^(n+64) and x^n modulo the polynomial, bit-reflected, for a shift by n bits.
_FOLD_BLOCK = (0x1_5444_2BD4, 0x1_C6E4_1596)
_FOLD_LANE = (0x1_7519_97D0, 0x0_CCAA_009E)

_I64 = ir.IntType(64)
_LANE = ir.VectorType(_I64, 2)


def is_available() -> bool:
    """Whether numba compiles for a processor that has the instruction."""
    is_host = not config.CPU_NAME and not config.CPU_FEATURES
    return is_host and platform.machine() == "x86_64" and binding.get_host_cpu_features().get("pclmul", False)


@intrinsic
def fold(
    typing_context: Any, buffer: Any, start: Any, blocks: Any, lanes: Any, crc: Any
) -> tuple[Any, Callable[..., Any]]:
    """Sixteen bytes, as two little-endian uint64, whose CRC from 0 is that of all folded bytes from `crc`.

    Takes `blocks` of 64 bytes, at least one, from `buffer[start:]`, and then `lanes` of 16 bytes.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, start, blocks, lanes, crc = arguments
        multiply = builder.module.declare_intrinsic(
            "llvm.x86.pclmulqdq", fnty=ir.FunctionType(_LANE, [_LANE, _LANE, ir.IntType(8)])
        )

        def load(index: Any) -> Any:
            pointer = pointer_to(context, builder, signature.args[0], array, index)
            return builder.load(builder.bitcast(pointer, _LANE.as_pointer()), align=1)

        def fold_into(lane: Any, constants: tuple[int, int], following: Any) -> Any:
            factors = ir.Constant(_LANE, list(constants))
            low = builder.call(multiply, [lane, factors, ir.Constant(ir.IntType(8), 0x00)])
            high = builder.call(multiply, [lane, factors, ir.Constant(ir.IntType(8), 0x11)])
            return builder.xor(builder.xor(low, high), following)

        def place(first: Any, index: Any, size: int, offset: int = 0) -> Any:
            return builder.add(first, builder.add(builder.mul(index, _I64(size)), _I64(offset)))

        with_crc = builder.insert_element(ir.Constant(_LANE, [0, 0]), crc, ir.IntType(32)(0))
        block = [load(place(start, _I64(0), 0, LANE_BYTES * lane)) for lane in range(_LANES)]
        block[0] = builder.xor(block[0], with_crc)
        states = [cgutils.alloca_once_value(builder, lane) for lane in block]
        with cgutils.for_range(builder, blocks, start=_I64(1)) as loop:
            for lane, state in enumerate(states):
                following = load(place(start, loop.index, BLOCK_BYTES, LANE_BYTES * lane))
                builder.store(fold_into(builder.load(state), _FOLD_BLOCK, following), state)
        folded = builder.load(states[0])
        for state in states[1:]:
            folded = fold_into(folded, _FOLD_LANE, builder.load(state))
        rest = cgutils.alloca_once_value(builder, folded)
        after_blocks = place(start, blocks, BLOCK_BYTES)
        with cgutils.for_range(builder, lanes) as loop:
            following = load(place(after_blocks, loop.index, LANE_BYTES))
            builder.store(fold_into(builder.load(rest), _FOLD_LANE, following), rest)
        words = [builder.extract_element(builder.load(rest), ir.IntType(32)(half)) for half in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    words_type = types.UniTuple(types.uint64, 2)
    return words_type(buffer, types.int64, types.int64, types.int64, types.uint64), generate
