"""Numbers every operation that changes a file, so that a process can be killed at each of them.

There is one step before each system call, and one more within a write over several pages. Writes to mapped
memory make no system call: they have a step before and after.
"""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from store.commitlog.mapped_file import HEAD_BYTES, MappedFile
from store.index.index_file import IndexFile
from store.message.buffers import Buffer

_CALLS = (
    "fdatasync", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate", "posix_fallocate",
)  # fmt: skip
PAGE_BYTES = 4096  # a kill stops a write between pages
_CREATES_FILE = os.O_CREAT | os.O_TRUNC


class Steps:
    """Counts steps after `arm`, and kills the process with SIGKILL at the step numbered `kill_at`."""

    def __init__(self, kill_at: int | None, report: Callable[[str], None]) -> None:
        """Patch the system calls; `report` is called with the name of the step just before the kill."""
        self.count = 0
        self._kill_at = kill_at
        self._report = report
        self._is_armed = False
        for name in _CALLS:
            setattr(os, name, self._before(name, getattr(os, name)))
        self._patch_writes()
        self._patch_opens()
        self._patch_maps()

    def arm(self) -> None:
        """Start counting steps."""
        self._is_armed = True

    def disarm(self) -> None:
        """Stop counting steps: the tested part is over."""
        self._is_armed = False

    def step(self, name: str) -> None:
        """Count a step, and kill the process if it is the step `kill_at`."""
        if not self._is_armed:
            return
        if self.count == self._kill_at:
            self._is_armed = False
            self._report(name)
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def _before(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **named: Any) -> Any:
            self.step(f"{name} {_shown(arguments)}")
            return call(*arguments, **named)

        return stepped

    def _patch_writes(self) -> None:
        pwrite = os.pwrite

        def stepped(descriptor: int, data: Buffer, place: int) -> int:
            self.step(f"pwrite {_shown([descriptor])}")
            pages_end = (place + len(data) - 1) // PAGE_BYTES * PAGE_BYTES
            if self._is_armed and pages_end > place:
                pwrite(descriptor, memoryview(data)[: pages_end - place], place)
                self.step(f"all but the last page of a pwrite {_shown([descriptor])}")
            return pwrite(descriptor, data, place)

        os.pwrite = stepped  # type: ignore[assignment]

    def _patch_opens(self) -> None:
        os_open, io_open = os.open, io.open

        def stepped_open(path: str, flags: int, *arguments: Any, **named: Any) -> int:
            if flags & _CREATES_FILE:
                self.step(f"create {_shown([path])}")
            return os_open(path, flags, *arguments, **named)

        def stepped_io_open(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if "w" not in mode:
                return io_open(path, mode, *arguments, **named)
            self.step(f"create {_shown([path])}")
            opened = io_open(path, mode, *arguments, **named)
            self.step(f"created {_shown([path])}")
            return opened

        os.open, io.open = stepped_open, stepped_io_open  # type: ignore[assignment]

    def _patch_maps(self) -> None:
        insert = IndexFile.insert

        def write_at(file: MappedFile, place: int, buffers: Sequence[Buffer]) -> None:
            """Write through the map, with a step before each part (docs/design.md#invariant-6)."""
            whole = b"".join(bytes(buffer) for buffer in buffers)
            middle = (HEAD_BYTES + len(whole)) // 2
            for start, end in ((HEAD_BYTES, middle), (middle, len(whole)), (0, 3), (3, HEAD_BYTES)):
                self.step(f"log {file.path.name} {place}: bytes {start} to {end}")
                file.view[place + start : place + min(end, len(whole))] = whole[start:end]
            self.step(f"log {file.path.name} {place}: written")

        def stepped_insert(file: IndexFile, *arguments: Any) -> int:
            self.step(f"insert into {file.path.name}")
            done = insert(file, *arguments)
            self.step(f"inserted into {file.path.name}")
            return done

        MappedFile.write_at = write_at  # type: ignore[method-assign]
        IndexFile.insert = stepped_insert  # type: ignore[method-assign]


def _shown(arguments: Sequence[Any]) -> str:
    """Return the file names of a call, given by a descriptor or by one or two paths."""
    if isinstance(arguments[0], int):
        paths = [Path(f"/proc/self/fd/{arguments[0]}").readlink()]
    else:
        paths = [Path(each) for each in arguments[:2] if not isinstance(each, int)]
    return " → ".join("/".join(path.parts[-2:]) for path in paths)
