"""A read-only view of a log whose files may be damaged.

A short file reads as if it were filled up with zeros, a missing file as zeros, and a long file up to its
correct size. Each of these is reported as a finding.
"""

import mmap
import os
from pathlib import Path

import numpy as np

from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import MappedFile, file_name
from store.common.bounded_dict import BoundedDict
from store.store_errors import StoreError
from store.tools.verify.findings import Report

_OPEN_MAX = 256


class PaddedFile(MappedFile):
    """A copy in memory of a log file that is missing or has a wrong size, extended with zeros."""

    __slots__ = ("_data_end",)

    def __init__(self, path: Path, base: int, size_bytes: int) -> None:
        self.path = path
        self.base = base
        self.size_bytes = size_bytes
        self.end = base + size_bytes
        self._descriptor = -1
        memory = memoryview(mmap.mmap(-1, size_bytes))
        self._data_end = 0
        if path.exists():
            with path.open("rb") as file:
                self._data_end = file.readinto(memory) or 0
        self.view = memory
        self.array = np.frombuffer(memory, dtype=np.uint8)

    def data_end(self) -> int:
        """Return the byte position in the file after which only zeros follow."""
        return self._data_end


class LogView:
    """Read access to the files of a log, which may be damaged, with the interface of `CommitLog`."""

    def __init__(self, paths: LogPaths, file_bytes: int, report: Report) -> None:
        """Find the files of the log. Report wrong names, wrong sizes and missing files."""
        self.file_bytes = file_bytes
        self._paths: dict[int, Path] = {}
        self._odd: set[int] = set()
        self._directory = paths.all[0]
        self._open = BoundedDict[int, MappedFile](_OPEN_MAX, lambda _, file: file.close())
        entries = sorted(
            (entry for directory in paths.all if directory.is_dir() for entry in os.scandir(directory)),
            key=lambda entry: entry.name,
        )
        names = [entry for entry in entries if not entry.is_dir()]
        for number, entry in enumerate(names):
            self._take(entry, report, is_last=number == len(names) - 1)
        for base in range(min(self._paths, default=0), max(self._paths, default=0), file_bytes):
            if base not in self._paths:
                report.add(self._directory / file_name(base), -1, file_bytes, "file", "the file is missing")

    def _take(self, entry: "os.DirEntry[str]", report: Report, *, is_last: bool) -> None:
        size_bytes = entry.stat().st_size
        if len(entry.name) != 20 or not entry.name.isdigit():
            report.add(
                entry.path, -1, size_bytes, "file", "unexpected file: only log files may be in this directory"
            )
            return
        base = int(entry.name)
        if size_bytes == 0 and is_last:
            report.notes.append(f"{report.name(entry.path)} is empty: the next start removes it")
            return
        first = min(self._paths, default=base)
        if base in self._paths or (base - first) % self.file_bytes:
            reason = f"the name does not continue the files before it, of {self.file_bytes:,} bytes each"
            report.add(entry.path, -1, size_bytes, "file", reason)
            return
        if size_bytes != self.file_bytes:
            reason = f"the file has {size_bytes:,} bytes instead of {self.file_bytes:,}"
            report.add(entry.path, -1, size_bytes, "file", reason)
            self._odd.add(base)
        self._paths[base] = Path(entry.path)

    @property
    def first(self) -> int:
        """The CommitLog offset at which the first file begins."""
        return min(self._paths, default=0)

    @property
    def end(self) -> int:
        """The CommitLog offset after the last file of the log."""
        return max(self._paths) + self.file_bytes if self._paths else 0

    def path_of(self, base: int) -> Path:
        """Return the path of the log file that begins at CommitLog offset `base`; it may be missing."""
        return self._paths.get(base, self._directory / file_name(base))

    def file_at(self, offset: int) -> MappedFile:
        """Return the file that contains `offset`. Raises StoreError if the offset is outside the log."""
        base = offset - (offset - self.first) % self.file_bytes
        file = self._open.get(base)
        if file is None:
            if not self.first <= offset < self.end:
                raise StoreError(f"offset {offset:,} is outside the log", self._directory)
            path = self.path_of(base)
            if base in self._odd or base not in self._paths:
                file = PaddedFile(path, base, self.file_bytes)
            else:
                file = MappedFile(path, base, self.file_bytes, copy_on_write=True)
            self._open[base] = file
        return file

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return the bytes at the CommitLog offsets [offset, offset + size_bytes).

        Raises StoreError if they are not within one file.
        """
        file = self.file_at(offset)
        place = offset - file.base
        if size_bytes < 0 or place + size_bytes > file.size_bytes:
            raise StoreError(
                f"{size_bytes:,} bytes from here on exceed the end of the file", file.path, place
            )
        return file.view[place : place + size_bytes]

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()
