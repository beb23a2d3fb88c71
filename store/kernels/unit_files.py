"""Units into the files of many queues, each opened, written once and closed, in one call: with tens of
thousands of queues the interpreter would take longer over it than the system does.

A queue's file, below the directory of all queues, is named by its first byte's place (store format 3):

    <topic>/<queueId>/<20 digits>
"""

import os
from pathlib import Path

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from store.kernels.memory import BYTES, U8, copy_bytes, store_u8
from store.kernels.units import (
    GROUP_COUNT,
    GROUP_FIRST_QUEUE_OFFSET,
    GROUP_FIRST_UNIT,
    GROUP_QUEUE_ID,
    GROUP_TOPIC,
    GROUP_TOPIC_LENGTH,
    UNIT_BYTES,
    Numbers,
)

_TOPIC_BYTES_MAX = 255  # a file system takes no longer names
_PATH_BYTES = 512  # the topic, ten digits, twenty digits, two slashes and the zero at the end
_PLACE_DIGITS = 20
_SLASH = ord("/")
_ZERO = ord("0")
_FLAGS = os.O_WRONLY | os.O_CLOEXEC
_FAILED = -1

# Addresses are passed as numbers. Of a failure nothing is asked here: whoever calls does that queue again by
# itself, and is told.
_openat = types.ExternalFunction("openat", types.intc(types.intc, types.intp, types.intc))
_pwrite = types.ExternalFunction("pwrite", types.intp(types.intc, types.intp, types.uintp, types.int64))
_close = types.ExternalFunction("close", types.intc(types.intc))


@njit(nogil=True)
def _write_digits(path: U8, end: int, value: int, digits: int) -> int:
    """`value` in decimal digits before `end`, at least so many; returns where they start."""
    start = end
    while value > 0 or end - start < digits:
        start -= 1
        store_u8(path, start, _ZERO + value % 10)
        value //= 10
    return start


@njit(nogil=True)
def _write_path(path: U8, log: U8, topic: int, length: int, queue_id: int, base: int) -> int:
    """The file's name, with a zero behind it, at the end of `path`; returns where it starts."""
    end = len(path) - 1
    store_u8(path, end, 0)
    start = _write_digits(path, end, base, _PLACE_DIGITS) - 1
    store_u8(path, start, _SLASH)
    start = _write_digits(path, start, queue_id, 1) - 1
    store_u8(path, start, _SLASH)
    start -= length
    copy_bytes(path, start, log, topic, length)
    return start


@njit(
    types.int64(
        types.intc, types.int64, BYTES, types.Array(types.int64, 2, "C", readonly=True),
        types.Array(types.int64, 1, "C", readonly=True), BYTES,
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def write_units(
    directory: int, file_bytes: int, log: U8, groups: Numbers, chosen: NDArray[np.int64], units: U8
) -> int:
    """Write the units of the `chosen` groups of `dispatch_records`, each from its first queue offset on, into
    files that are there; returns how many came before the first that could not be written whole.

    `directory` is a descriptor of that of all queues. No group's units go over the end of a file of
    `file_bytes`, and none's first queue offset is below 0.
    """
    path = np.empty(_PATH_BYTES, np.uint8)
    for done in range(len(chosen)):
        group = chosen[done]
        place = groups[group, GROUP_FIRST_QUEUE_OFFSET] * UNIT_BYTES
        within = place % file_bytes
        topic, length = groups[group, GROUP_TOPIC], groups[group, GROUP_TOPIC_LENGTH]
        queue_id = groups[group, GROUP_QUEUE_ID]
        if queue_id < 0 or not 0 < length <= _TOPIC_BYTES_MAX or log[topic] == _SLASH:
            return done  # no broker of ours makes such
        start = _write_path(path, log, topic, length, queue_id, place - within)
        descriptor = _openat(directory, path.ctypes.data + start, _FLAGS)
        if descriptor == _FAILED:
            return done
        first = groups[group, GROUP_FIRST_UNIT] * UNIT_BYTES
        size_bytes = groups[group, GROUP_COUNT] * UNIT_BYTES
        written = _pwrite(descriptor, units.ctypes.data + first, size_bytes, within)
        _close(descriptor)
        if written != size_bytes:
            return done
    return len(chosen)


def write_units_plain(
    directory: Path, file_bytes: int, log: bytes, groups: Numbers, chosen: list[int], units: bytes
) -> int:
    """The plain twin of `write_units`."""
    for done, number in enumerate(chosen):
        group = groups[number].tolist()
        topic = log[group[GROUP_TOPIC] : group[GROUP_TOPIC] + group[GROUP_TOPIC_LENGTH]].decode()
        place = group[GROUP_FIRST_QUEUE_OFFSET] * UNIT_BYTES
        base = place - place % file_bytes
        path = directory / topic / str(group[GROUP_QUEUE_ID]) / f"{base:020d}"
        first = group[GROUP_FIRST_UNIT] * UNIT_BYTES
        try:
            with path.open("r+b", buffering=0) as file:
                file.seek(place - base)
                part = units[first : first + group[GROUP_COUNT] * UNIT_BYTES]
                if file.write(part) != len(part):
                    return done
        except OSError:
            return done
    return len(chosen)
