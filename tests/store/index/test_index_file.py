"""Index files: what a power loss leaves of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from store.index.index_file import IndexFile, index_file_bytes

SLOTS, ENTRIES = 10, 32
TIME_MS = 1_700_000_000_000
HEADER, REST = slice(0, 40), slice(index_file_bytes(SLOTS, 6), None)
LOST_ENTRY = slice(index_file_bytes(SLOTS, 7), index_file_bytes(SLOTS, 8))


def keys(first: int, end: int) -> np.ndarray:
    rows = [(31 * number, 100 * number, TIME_MS + number) for number in range(first, end)]
    return np.array(rows, dtype=np.int64)


@pytest.mark.parametrize(
    ("old", "lost"),
    [(slice(0, 0), slice(0, 0)), (HEADER, slice(0, 0)), (slice(0, REST.start), LOST_ENTRY)],
    ids=["all kept", "header lost", "header, slots and an entry lost"],
)
def test_entries_after_a_snapshot_are_removed_after_a_power_loss(
    tmp_path: Path, old: slice, lost: slice
) -> None:
    file = IndexFile.create(tmp_path / "index", SLOTS, ENTRIES, tmp_path)
    file.insert(keys(1, 6), 0, 5)
    snapshot = file.snapshot()
    at_snapshot = file.array.copy()
    file.insert(keys(6, 12), 0, 6)
    file.array[old] = at_snapshot[old]
    file.array[lost] = 0
    assert file.array[REST].any()

    assert IndexFile(file.path, SLOTS, ENTRIES).restore(snapshot) is None
    assert np.array_equal(file.array, at_snapshot)
