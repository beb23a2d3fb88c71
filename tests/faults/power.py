"""A disk that loses its power: what was not synced is there in parts, pages torn among them.

The fault model, that of a journaling file system over a disk that writes sectors of 512 bytes whole:

- A file's bytes are durable when fdatasync or fsync of it has returned. Of what was written since, any subset
  of the pages may be there, in any of the states that they had, and any page may be torn between sectors.
- A file's length is the durable one or the present one.
- Names (creations, renames, removals) become durable in their order; those up to the last one in a directory
  that was synced are durable, of the later ones any number is.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE_BYTES = 4096
SECTOR_BYTES = 512


@dataclass
class _File:
    """A file by its number; an open descriptor keeps it readable whatever happens to its name."""

    descriptor: int
    durable: bytearray = field(default_factory=bytearray)
    durable_size: int = 0

    def now(self) -> bytes:
        return os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)

    def sync(self) -> None:
        self.durable = bytearray(self.now())
        self.durable_size = len(self.durable)

    def write_back(self, rng: random.Random, share: float) -> None:
        """Some dirty pages reach the disk, as the kernel likes; a few of them in part only."""
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
    """A name has come to stand for a file, for a directory (None), or for nothing."""

    path: str
    number: int | None


_GONE = -1


def _apply(changes: list[list[_Name]], names: dict[str, int | None]) -> None:
    for change in changes:
        for path, number in change:
            if number == _GONE:
                names.pop(path, None)
            else:
                names[path] = number


class DiskThatLosesItsPower:
    """Watches the files below `root` from its making on; `cut` gives what is there after a power loss."""

    def __init__(self, root: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._rng = rng
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._names: dict[str, int | None] = {}  # durable names with their file numbers; None: a directory
        self._now: dict[str, int | None] = {}
        self._changes: list[list[_Name]] = []  # since the last that is durable; each happens at once
        self._look()
        self._all_durable()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._syncing(getattr(os, name)))
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(os, name, self._naming(getattr(os, name)))

    # ---- what happens ------------------------------------------------------------------------------------

    def _syncing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            with self._lock:
                self._look()
                call(descriptor)
                number = os.fstat(descriptor).st_ino
                if number in self._files:
                    self._files[number].sync()
                    return
                self._directory_synced(Path(f"/proc/self/fd/{descriptor}").readlink())

        return synced

    def _naming(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def renamed(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self._look()
                done = call(*arguments, **named)
                self._look(is_one_change=True)
                return done

        return renamed

    def _look(self, *, is_one_change: bool = False) -> None:
        """Take note of all names that have come or gone since the last look."""
        found: dict[str, int | None] = {}
        for path in sorted(self.root.rglob("*")):
            number = None if path.is_dir() else path.stat().st_ino
            found[str(path)] = number
            if number is not None and number not in self._files:
                self._files[number] = _File(os.open(path, os.O_RDONLY))
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

    def some_time_passes(self) -> None:
        """The kernel writes back what it likes."""
        with self._lock:
            self._look()
            for file in self._files.values():
                if self._rng.random() < 0.5:
                    file.write_back(self._rng, 0.4)

    # ---- the cut -----------------------------------------------------------------------------------------

    def cut(self, into: Path) -> Path:
        """Write down, in the directory `into`, what the disk has kept; the store under test goes on."""
        with self._lock:
            self._look()
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
