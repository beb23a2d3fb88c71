"""Fixtures of the fault tests: a small file system, and the process that forks children to be killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.crasher import Crasher, crasher


class SmallDisk:
    """Small file system at `path`, mounted for one test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Allocate all free space."""
        space = os.statvfs(self.path)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)

    def free(self) -> None:
        """Release the space allocated by `fill`."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """Remount the file system read-only; no file may be open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Return a function that mounts a tmpfs of a size in bytes; skips the test if mounting is not allowed."""
    mounted: list[Path] = []

    def mount(size_bytes: int) -> SmallDisk:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount command: cannot create a full disk")
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs (requires root): {done.stderr.strip()}")
        mounted.append(path)
        return SmallDisk(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="session")
def crashing() -> Iterator[Crasher]:
    with crasher() as process:
        yield process
