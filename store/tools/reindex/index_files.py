"""Build index files from the keys of all parts, each file by itself, or check the existing files.

The keys of the log fill the index files one after another: file n has the keys [n·(capacity − 1),
(n + 1)·(capacity − 1)) of the log. Besides its keys, a file depends only on the last key before them, whose
time and position RocketMQ stores in the header of a new file, and on the name of the file before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from store.disk.files import sync_files
from store.index.index_file import IndexFile, IndexSnapshot
from store.index.index_service import index_file_name
from store.kernels.index import KEY_PHYSICAL_OFFSET, KEY_TIMESTAMP
from store.recovery.opening import INDEX
from store.tools.reindex.parts import Numbers, Part, map_keys
from store.tools.reindex.store_files import StoreFiles
from store.tools.verify.findings import Finding, Report
from store.tools.verify.index import IndexCheck, LogExtent

_CHUNK_KEYS = 1 << 20


class KeyRange(NamedTuple):
    """The keys [first, end) of the part whose log file begins at CommitLog offset `base`."""

    base: int
    first: int
    end: int


class IndexFilePlan(NamedTuple):
    """An index file to build.

    `keys` are the file's keys. `previous` is the (storeTimestamp, CommitLog offset) of the record of the last
    key before them, or None for the first file.
    """

    name: str
    keys: tuple[KeyRange, ...]
    previous: tuple[int, int] | None


def plan_index_files(files: StoreFiles, parts: Sequence[Part]) -> list[IndexFilePlan]:
    """Distribute the keys of all parts over index files. `parts` are in the order of the log."""
    capacity = files.sizes.index_entries - 1  # entry 0 is never used
    plans: list[IndexFilePlan] = []
    total = sum(part.keys for part in parts)
    for first in range(0, total, capacity):
        keys = tuple(_cut(parts, first, min(first + capacity, total)))
        timestamp, _ = _record_of(files, keys[0].base, keys[0].first)
        previous = None
        if plans:
            last = plans[-1].keys[-1]
            previous = _record_of(files, last.base, last.end - 1)
        name = index_file_name(timestamp, plans[-1].name if plans else None)
        plans.append(IndexFilePlan(name, keys, previous))
    return plans


def _cut(parts: Sequence[Part], first: int, end: int) -> Iterator[KeyRange]:
    """Yield the keys [first, end), counted over all parts, as ranges of keys of each part."""
    before = 0
    for part in parts:
        low, high = max(first - before, 0), min(end - before, part.keys)
        if low < high:
            yield KeyRange(part.base, low, high)
        before += part.keys


def _record_of(files: StoreFiles, base: int, key: int) -> tuple[int, int]:
    """Return the storeTimestamp and the CommitLog offset of the record of a key in a part."""
    row = map_keys(files, base)[key]
    return int(row[KEY_TIMESTAMP]), int(row[KEY_PHYSICAL_OFFSET])


def build_index_file(files: StoreFiles, plan: IndexFilePlan) -> IndexSnapshot:
    """Build one index file below the work directory, flush it, and return its state.

    The file may be built again. Raises OSError, StoreError.
    """
    directory = files.new / INDEX
    directory.mkdir(parents=True, exist_ok=True)
    sizes = files.sizes
    path = directory / plan.name
    file = IndexFile.create(path, sizes.index_slots, sizes.index_entries, files.work)
    try:
        if plan.previous is not None:
            file.begin_after(*plan.previous)
        for keys in _chunks(files, plan.keys):
            file.insert(keys, 0, len(keys))
        snapshot = file.snapshot()
        sync_files([str(path)], directory)
    finally:
        file.close()
    return snapshot


def _chunks(files: StoreFiles, ranges: Sequence[KeyRange]) -> Iterator[Numbers]:
    for base, first, end in ranges:
        keys = map_keys(files, base)
        for low in range(first, end, _CHUNK_KEYS):
            yield keys[low : min(low + _CHUNK_KEYS, end)]


class IndexCheckResult(NamedTuple):
    """The differences between the index files and the keys of the log.

    `missing` is the number of keys at the end of the log that are in no index file.
    """

    findings: list[Finding]
    omitted: int
    missing: int


def check_index(
    files: StoreFiles, extent: LogExtent, parts: Sequence[Part], *, may_lag: bool
) -> IndexCheckResult:
    """Compare all index files with the keys of the parts; nothing is written.

    A store without index files is not checked. With `may_lag`, the last keys may be missing, because the
    store was not closed cleanly. Raises OSError, StoreError.
    """
    files.check_machine()
    report = Report(files.root)
    check = IndexCheck(
        files.root / INDEX, files.sizes, report, extent, is_ours=files.is_ours, may_lag=may_lag
    )
    if not check.exists:
        return IndexCheckResult(report.findings, report.omitted, 0)
    for keys in _chunks(files, [KeyRange(part.base, 0, part.keys) for part in parts]):
        check.put(keys, len(keys))
    check.finish()
    return IndexCheckResult(report.findings, report.omitted, check.missing_count)
