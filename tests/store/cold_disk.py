"""A store whose pages all appear to be not resident, for tests of reads that must not wait."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from store.commitlog import commit_log
from store.disk.residency import PAGE_BYTES, FileRange, Mapped, NotResident, Residency, WarmJob
from store.message_store import MessageStore

Result = TypeVar("Result")


class ColdDisk:
    """Reports every page as not resident until it has been loaded."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.warm: set[tuple[str, int]] = set()
        self.rounds = 0

    def lacks(self, path: str, begin: int, end: int) -> FileRange | None:
        pages = range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))
        if all((path, page) in self.warm for page in pages):
            return None
        return FileRange(path, begin, end)

    def bring(self, cold: NotResident) -> None:
        self.rounds += 1
        WarmJob(cold.ranges).run()
        self.note(cold.ranges)

    def note(self, ranges: Sequence[FileRange]) -> None:
        """Mark these ranges as resident."""
        for path, begin, end in ranges:
            self.warm |= {(path, page) for page in range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))}


def make_cold(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> ColdDisk:
    """Make all pages of the store appear not resident from now on."""
    disk = ColdDisk(store)

    def absent(_: Residency, file: Mapped, begin: int, end: int) -> FileRange | None:
        return disk.lacks(file.name, begin, min(end, file.size_bytes))

    def pread(residency: Residency, descriptor: int, size_bytes: int, place: int, path: str) -> bytes:
        lacks = disk.lacks(path, place, place + size_bytes) if residency.is_required else None
        if lacks is not None:
            raise NotResident([lacks])
        return os.pread(descriptor, size_bytes, place)

    monkeypatch.setattr(commit_log, "RECENT_BYTES", 0)
    monkeypatch.setattr(Residency, "uncached_range", absent)
    monkeypatch.setattr(Residency, "pread", pread)
    return disk


def settled(disk: ColdDisk, read: Callable[[], Result]) -> Result:
    """Return the result of `read`, repeated after each NotResident with the missing ranges loaded."""
    for _ in range(500):
        try:
            with disk.store.resident_only:
                return read()
        except NotResident as cold:
            disk.bring(cold)
    raise AssertionError("still cold")
