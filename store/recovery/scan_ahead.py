"""ScanAhead: scans the CommitLog file by file, while other threads already scan the next files.

Each log file begins with a record, so it can be scanned before the scan of the previous file is finished. The
result of another thread is used only if the sequential scan really reaches the beginning of that file.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np

from store.commitlog.holes import LogFiles
from store.commitlog.mapped_file import MappedFile
from store.common.background import BackgroundWork
from store.kernels import walk

_THREADS_MAX = 4


class Scan(NamedTuple):
    """Result of scanning records within one log file.

    `position` is the CommitLog offset at which the scan stopped, and `code` the reason (`kernels.walk`).
    `last_record` and `last_timestamp`, the offset and storeTimestamp of the last record, are undefined if
    `records` is 0.
    """

    position: int
    code: int
    records: int
    last_record: int
    last_timestamp: int


class LogScans(Protocol):
    """Scans of the CommitLog, each within one log file."""

    def scan(self, position: int) -> Scan:
        """Return the result of a scan that begins at CommitLog offset `position`. Raises StoreError."""


def scan_file(file: MappedFile, position: int, *, check_crc: bool) -> Scan:
    """Scan the records of a log file from CommitLog offset `position` on, up to the first invalid one."""
    found = np.zeros(walk.SCAN_FIELDS, dtype=np.int64)
    place, code = walk.scan_records(
        file.array, position - file.base, file.size_bytes, file.base, check_crc, found
    )
    return Scan(
        file.base + int(place),
        int(code),
        int(found[walk.SCAN_COUNT]),
        file.base + int(found[walk.SCAN_LAST_POSITION]),
        int(found[walk.SCAN_LAST_TIMESTAMP]),
    )


class ScanAhead:
    """Scans log files one after another, and the next files in advance in other threads.

    It is a context manager; its threads stop when it exits.
    """

    def __init__(self, log: LogFiles, *, check_crc: bool, background: BackgroundWork | None = None) -> None:
        """Prepare a scan of `log`, in a lane of `background`; nothing is read before the first `scan`."""
        self._log = log
        self._check_crc = check_crc
        self._ahead: deque[tuple[int, Future[Scan]]] = deque()
        self._threads = min(os.cpu_count() or 1, _THREADS_MAX)
        self._lane = (background or BackgroundWork()).lane("scan", self._threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lane.close()

    def scan(self, position: int) -> Scan:
        """Scan records from CommitLog offset `position` on, within one log file.

        The scan stops at the end of the file or at the first invalid record. Raises StoreError.
        """
        while self._ahead and self._ahead[0][0] < position:
            self._ahead.popleft()[1].cancel()
        if not self._ahead:
            self._begin(position)
        while len(self._ahead) < self._threads and (following := self._last_end()) < self._log.end:
            self._begin(following)
        begin, future = self._ahead[0]
        if begin == position:
            self._ahead.popleft()
            return future.result()
        return self._walk(self._log.file_at(position), position)

    def _last_end(self) -> int:
        return self._log.file_at(self._ahead[-1][0]).end

    def _begin(self, position: int) -> None:
        # The file is opened here, because the log may be used only on this thread.
        future = self._lane.submit(partial(self._walk, self._log.file_at(position), position))
        self._ahead.append((position, future))

    def _walk(self, file: MappedFile, position: int) -> Scan:
        return scan_file(file, position, check_crc=self._check_crc)
