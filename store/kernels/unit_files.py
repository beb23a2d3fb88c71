"""Units into the files of many queues, each opened, written once and closed, in one call: with tens of
thousands of queues the interpreter would take longer over it than the system does.

A queue's file, below the directory of all queues, is named by its first byte's place (store format 3):

    <topic>/<queueId>/<20 digits>

A new one is sparse, of its exact size, and so are the directories above it made: 20,000 of them may take the
disk seconds.
"""

import os
from pathlib import Path

import numpy as np
from numba import types
from numpy.typing import NDArray

from store.kernels.compiled import helper, kernel
from store.kernels.memory import BYTES, U8, WRITABLE_BYTES, copy_bytes, store_u8
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
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o777
_FAILED = -1

# Addresses are passed as numbers. Of a failure nothing is asked here: whoever calls does that queue again by
# itself, and is told.
_openat = types.ExternalFunction("openat", types.intc(types.intc, types.intp, types.intc, types.intc))
_mkdirat = types.ExternalFunction("mkdirat", types.intc(types.intc, types.intp, types.intc))
_ftruncate = types.ExternalFunction("ftruncate", types.intc(types.intc, types.int64))
_pwrite = types.ExternalFunction("pwrite", types.intp(types.intc, types.intp, types.uintp, types.int64))
_close = types.ExternalFunction("close", types.intc(types.intc))


@helper()
def _write_digits(path: U8, end: int, value: int, digits: int) -> int:
    """`value` in decimal digits before `end`, at least so many; returns where they start."""
    start = end
    while value > 0 or end - start < digits:
        start -= 1
        store_u8(path, start, _ZERO + value % 10)
        value //= 10
    return start


@helper()
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


@helper()
def _make_directory(directory: int, path: U8, start: int, end: int) -> None:
    """Make what `path` names from `start` to the slash at `end`, if it is not there."""
    store_u8(path, end, 0)
    _mkdirat(directory, path.ctypes.data + start, _DIRECTORY_MODE)
    store_u8(path, end, _SLASH)


@helper()
def _make_file(directory: int, path: U8, start: int, topic_length: int, file_bytes: int) -> int:
    """Make a queue's file, and the directories above it; returns its descriptor, or that it failed."""
    _make_directory(directory, path, start, start + topic_length)
    _make_directory(directory, path, start, len(path) - 2 - _PLACE_DIGITS)
    descriptor = _openat(directory, path.ctypes.data + start, _FLAGS | os.O_CREAT, _FILE_MODE)
    if descriptor != _FAILED and _ftruncate(descriptor, file_bytes) == _FAILED:
        _close(descriptor)
        return _FAILED
    return descriptor


def write_units(
    directory: int,
    file_bytes: int,
    log: U8,
    groups: Numbers,
    chosen: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    units: U8,
) -> int:
    """Write the units of the `chosen` groups of `dispatch_records`, each from its first queue offset on, into
    its file; returns how many came before the first that could not be written whole.

    Where it `is_new` (one flag for each of the chosen) the file is made; the others have to be there.

    `directory` is a descriptor of that of all queues. No group's units go over the end of a file of
    `file_bytes`, and none's first queue offset is below 0.
    """
    path = np.empty(_PATH_BYTES, np.uint8)
    return int(_write_units(directory, file_bytes, log, groups, chosen, is_new, units, path))


@kernel(
    types.int64(
        types.intc, types.int64, BYTES, types.Array(types.int64, 2, "C", readonly=True),
        types.Array(types.int64, 1, "C", readonly=True),
        types.Array(types.boolean, 1, "C", readonly=True), BYTES, WRITABLE_BYTES,
    ),
)  # fmt: skip
def _write_units(
    directory: int,
    file_bytes: int,
    log: U8,
    groups: Numbers,
    chosen: NDArray[np.int64],
    is_new: NDArray[np.bool_],
    units: U8,
    path: U8,
) -> int:
    """`write_units`, with room for a `path`."""
    for done in range(len(chosen)):
        group = chosen[done]
        place = groups[group, GROUP_FIRST_QUEUE_OFFSET] * UNIT_BYTES
        within = place % file_bytes
        topic, length = groups[group, GROUP_TOPIC], groups[group, GROUP_TOPIC_LENGTH]
        queue_id = groups[group, GROUP_QUEUE_ID]
        if queue_id < 0 or not 0 < length <= _TOPIC_BYTES_MAX or log[topic] == _SLASH:
            return done  # no broker of ours makes such
        start = _write_path(path, log, topic, length, queue_id, place - within)
        if is_new[done]:
            descriptor = _make_file(directory, path, start, length, file_bytes)
        else:
            descriptor = _openat(directory, path.ctypes.data + start, _FLAGS, 0)
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
    directory: Path,
    file_bytes: int,
    log: bytes,
    groups: Numbers,
    chosen: list[int],
    is_new: list[bool],
    units: bytes,
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
            if is_new[done]:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(_FILE_MODE)
                os.truncate(path, file_bytes)
            with path.open("r+b", buffering=0) as file:
                file.seek(place - base)
                part = units[first : first + group[GROUP_COUNT] * UNIT_BYTES]
                if file.write(part) != len(part):
                    return done
        except OSError:
            return done
    return len(chosen)
