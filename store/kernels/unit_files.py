"""Writes units to the consume queue files of many queues: opens, writes and closes each file, in one kernel.

With tens of thousands of queues, a Python loop would take longer than the system calls.

The path of a queue's file, relative to the directory of all queues, ends with the byte position of the file
in the queue (docs/store-format.md#consume-queue):

    <topic>/<queueId>/<20 digits>

A new file is created sparse, with its final size. Missing directories are created too. Creating 20,000 of
them may take the disk seconds.

A group contains the units of one queue from one call of `store.kernels.units.dispatch_records`.
"""

import os

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

_TOPIC_BYTES_MAX = 255  # maximum length of a name in Linux file systems
_PATH_BYTES = 512  # the topic, 10 and 20 digits, two slashes and a final zero byte fit in
_PLACE_DIGITS = 20
_SLASH = ord("/")
_ZERO = ord("0")
_FLAGS = os.O_WRONLY | os.O_CLOEXEC
_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o777
_FAILED = -1

# Addresses are passed as numbers. The cause of a failure (errno) is not read: the caller writes the failed
# queue again in Python and gets the exception.
_openat = types.ExternalFunction("openat", types.intc(types.intc, types.intp, types.intc, types.intc))
_mkdirat = types.ExternalFunction("mkdirat", types.intc(types.intc, types.intp, types.intc))
_ftruncate = types.ExternalFunction("ftruncate", types.intc(types.intc, types.int64))
_pwrite = types.ExternalFunction("pwrite", types.intp(types.intc, types.intp, types.uintp, types.int64))
_close = types.ExternalFunction("close", types.intc(types.intc))


@helper()
def _write_digits(path: U8, end: int, value: int, digits: int) -> int:
    """Write `value` in decimal into `path`, with at least `digits` digits, so that it ends before `end`.

    Returns the position of the first digit.
    """
    start = end
    while value > 0 or end - start < digits:
        start -= 1
        store_u8(path, start, _ZERO + value % 10)
        value //= 10
    return start


@helper()
def _write_path(path: U8, log: U8, topic: int, length: int, queue_id: int, base: int) -> int:
    """Write the path of a queue's file, followed by a zero byte, to the end of the buffer `path`.

    Returns the position at which the path starts in the buffer. The topic name is copied from the log file.
    """
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
    """Create the directory whose path is `path[start:end]`, if it does not exist.

    The directory is relative to the descriptor `directory`. A slash must follow the path at `end`.
    """
    store_u8(path, end, 0)
    _mkdirat(directory, path.ctypes.data + start, _DIRECTORY_MODE)
    store_u8(path, end, _SLASH)


@helper()
def _make_file(directory: int, path: U8, start: int, topic_length: int, file_bytes: int) -> int:
    """Create the consume queue file at `path[start:]` and its directories.

    Returns the file's descriptor, or _FAILED if the file cannot be created.
    """
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
    """Write the consume queue units of some groups of a dispatched log slice to the files of their queues.

    A group contains the units of one queue. The function stops at the first group whose units cannot be
    written completely.

    Args:
        directory: Descriptor of the directory that contains the directories of all topics.
        file_bytes: Size of a consume queue file. The units of a group must not cross the end of a file.
        log: The log file that was dispatched: it contains the topic names.
        groups: The groups, as filled by `dispatch_records`. First queue offsets must not be negative.
        chosen: Indexes of the groups to write.
        is_new: For each of `chosen`, True to create the file. Other files must exist.
        units: The units, as filled by `dispatch_records`.

    Returns:
        The number of groups written.
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
    """Compiled implementation of `write_units`; `path` is a work area for the paths of the files."""
    for done in range(len(chosen)):
        group = chosen[done]
        place = groups[group, GROUP_FIRST_QUEUE_OFFSET] * UNIT_BYTES
        within = place % file_bytes
        topic, length = groups[group, GROUP_TOPIC], groups[group, GROUP_TOPIC_LENGTH]
        queue_id = groups[group, GROUP_QUEUE_ID]
        if queue_id < 0 or not 0 < length <= _TOPIC_BYTES_MAX or log[topic] == _SLASH:
            return done  # not a queue that a RayMQ broker creates
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
