"""What tests of faults share: a small disk of one's own, and the process that forks others to be killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.crasher import Crasher, crasher


class SmallDisk:
    """A file system of a few hundred kilobytes, mounted for one test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the space there is."""
        space = os.statvfs(self.path)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)

    def free(self) -> None:
        """Give the space back."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """No file may be open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Mount a tmpfs of so many bytes; skips the test where that is not allowed."""
    mounted: list[Path] = []

    def mount(size_bytes: int) -> SmallDisk:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no mount command: a full disk cannot be had")
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here (needs root): {done.stderr.strip()}")
        mounted.append(path)
        return SmallDisk(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="session")
def crashing() -> Iterator[Crasher]:
    with crasher() as process:
        yield process
