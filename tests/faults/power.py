"""Simulation of a power loss: data that was not synced is kept in part, and pages may be torn.

The fault model is a journaling file system on a disk that writes sectors of 512 bytes atomically:

- The bytes of a file are durable after fdatasync or fsync returns. Of later writes any subset of the pages
  may be kept, in any earlier state of the page, and a page may be torn between sectors.
- The length of a file is the durable one or the current one.
- Creations, renames and removals become durable in order. After a sync of a directory all changes up to the
  last one in that directory are durable; any number of the later ones may be durable too.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass
class _File:
    """A file, with an open descriptor that stays readable after a rename or removal."""

    descriptor: int
    durable: bytearray = field(default_factory=bytearray)
    durable_size: int = 0

    def now(self) -> bytes:
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def sync(self) -> None:
        self.durable = bytearray(self.now())
        self.durable_size = len(self.durable)

    def write_back(self, rng: random.Random, share: float) -> None:
        """Write random dirty pages to the disk, about `share` of them, some only in part."""
        now = self.now()
        self.durable.extend(bytes(max(len(now) - len(self.durable), 0)))
        for place in range(0, len(now), PAGE_BYTES):
            page = now[place : place + PAGE_BYTES]
            if page == self.durable[place : place + len(page)] or rng.random() >= share:
                continue
            start, end = 0, len(page)
            if rng.random() < 0.3:
                start, end = sorted(rng.randrange(0, PAGE_BYTES + 1, SECTOR_BYTES) for _ in range(2))
            self.durable[place + start : place + end] = page[start:end]


class _Name(NamedTuple):
    """Change of a path: it now names a file (by inode number), a directory (None) or nothing (`_GONE`)."""

    path: str
    number: int | None


_GONE = -1


def _paths(directory: str) -> Iterator[tuple[str, int | None]]:
    """Yield the paths below a directory with their inode numbers; None for directories."""
    with os.scandir(directory) as entries:
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            yield entry.path, None if is_directory else entry.inode()
            if is_directory:
                yield from _paths(entry.path)


def _apply(changes: list[list[_Name]], names: dict[str, int | None]) -> None:
    for change in changes:
        for path, number in change:
            if number == _GONE:
                names.pop(path, None)
            else:
                names[path] = number


class PowerLossDisk:
    """Tracks the files below `root`; `cut` writes a copy as a power loss would leave them."""

    def __init__(self, root: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        """Begin with what is below `root`, all durable; without `monkeypatch`, see `track_calls`."""
        self.root = root
        self._rng = rng
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._names: dict[str, int | None] = {}  # durable paths with their inode numbers; None: a directory
        self._now: dict[str, int | None] = {}
        self._changes: list[list[_Name]] = []  # not durable yet, in order; each change is atomic
        self._scan()
        self._all_durable()
        if monkeypatch is not None:
            track_calls([self], monkeypatch)

    # ---- tracking ----------------------------------------------------------------------------------------

    def contains(self, path: str) -> bool:
        """Return True if `path` is the root of this disk, or below it."""
        return path.startswith(str(self.root)) and path[len(str(self.root)) :][:1] in ("", "/")

    def sync(self, call: Callable[[int], None], descriptor: int, path: str) -> None:
        """Make the file or directory `path` durable, as the system call does."""
        with self._lock:
            self._scan()
            call(descriptor)
            number = os.fstat(descriptor).st_ino
            if number in self._files:
                self._files[number].sync()
                return
            self._directory_synced(Path(path))

    def change_name(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Record the change of names by a system call as one atomic change."""
        with self._lock:
            self._scan()
            done = call(*arguments, **named)
            self._scan(is_one_change=True)
            return done

    def _scan(self, *, is_one_change: bool = False) -> None:
        """Record the paths created and removed since the last scan; `is_one_change`: as one atomic change."""
        found: dict[str, int | None] = {}
        for path, number in sorted(_paths(str(self.root))):
            found[path] = number
            if number is not None and number not in self._files:
                try:
                    self._files[number] = _File(os.open(path, os.O_RDONLY))
                except FileNotFoundError:  # renamed by a thread whose calls are not tracked any more
                    del found[path]
        changes = [_Name(path, number) for path, number in found.items() if self._now.get(path, -1) != number]
        changes += [_Name(path, _GONE) for path in self._now if path not in found]
        self._changes += [changes] if is_one_change else [[change] for change in changes]
        self._now = found

    def _directory_synced(self, directory: Path) -> None:
        touching = (
            number
            for number, change in enumerate(self._changes)
            if any(Path(name.path).parent == directory for name in change)
        )
        count = max(touching, default=-1) + 1
        _apply(self._changes[:count], self._names)
        del self._changes[:count]

    def _all_durable(self) -> None:
        _apply(self._changes, self._names)
        self._changes = []
        for file in self._files.values():
            file.sync()

    def write_back_some(self) -> None:
        """Write back random dirty pages, as the kernel may do at any time."""
        with self._lock:
            self._scan()
            for file in self._files.values():
                if self._rng.random() < 0.5:
                    file.write_back(self._rng, 0.4)

    # ---- power loss --------------------------------------------------------------------------------------

    def cut(self, into: Path) -> Path:
        """Write the files that a power loss would leave to the new directory `into`, and return it."""
        with self._lock:
            self._scan()
            names = dict(self._names)
            _apply(self._changes[: self._rng.randint(0, len(self._changes))], names)
            into.mkdir()
            for path, number in sorted(names.items()):
                target = into / Path(path).relative_to(self.root)
                if number is None:
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(self._content(self._files[number]))
        return into

    def _content(self, file: _File) -> bytes:
        kept = _File(file.descriptor, bytearray(file.durable), file.durable_size)
        if self._rng.random() < 0.7:
            kept.write_back(self._rng, self._rng.choice((0.1, 0.5, 0.9)))
        size = self._rng.choice((file.durable_size, os.fstat(file.descriptor).st_size))
        size = max(size, file.durable_size) if size else file.durable_size
        return bytes(kept.durable[:size].ljust(size, b"\0"))

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.descriptor)


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def track_calls(disks: Sequence[PowerLossDisk], monkeypatch: pytest.MonkeyPatch) -> None:
    """Report system calls to the disk that contains their file; `disks` may change later."""

    def disk_of(path: str) -> PowerLossDisk | None:
        return next((each for each in disks if each.contains(path)), None)

    def syncing(call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            path = str(_path_of(descriptor))
            disk = disk_of(path)
            if disk is None:
                call(descriptor)
            else:
                disk.sync(call, descriptor, path)

        return synced

    def naming(call: Callable[..., Any]) -> Callable[..., Any]:
        def renamed(*arguments: Any, **named: Any) -> Any:
            path = os.fspath(arguments[0])
            if named.get("dir_fd") is not None:
                path = f"{_path_of(named['dir_fd'])}/{path}"
            disk = disk_of(path)
            if disk is None:
                return call(*arguments, **named)
            return disk.change_name(call, *arguments, **named)

        return renamed

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, syncing(getattr(os, name)))
    for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, naming(getattr(os, name)))
