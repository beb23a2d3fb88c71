"""ScanAhead scans log files in advance on other threads, with the same result as a sequential scan."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.kernels import walk
from store.message.record import RecordDraft, record_size
from store.recovery import scan_ahead
from store.recovery.scan_ahead import ScanAhead
from tests.eventually import LIMIT_S

FILE_BYTES = 8192
BODY = b"x" * 1000


@pytest.fixture
def log(stores, draft) -> Iterator[CommitLog]:
    """Give a log of five files; the last one has one record."""
    store = stores.open()
    for _ in range(4 * 7 + 1):
        store.append(draft(BODY))
    store.close()
    log = CommitLog(LogPaths(store.root), FILE_BYTES, Positions(), read_only=True)
    yield log
    log.close()


def size_of_a_record(draft) -> int:
    made: RecordDraft = draft(BODY)
    return record_size(made, 8)


def test_scan_begins_at_the_file_start_or_at_the_requested_position(log, draft) -> None:
    size = size_of_a_record(draft)
    with ScanAhead(log, check_crc=True) as scans:
        assert scans.scan(3 * size)[:4] == (7 * size, walk.BLANK, 4, 6 * size)
        assert scans.scan(FILE_BYTES)[:4] == (FILE_BYTES + 7 * size, walk.BLANK, 7, FILE_BYTES + 6 * size)
        # As after a hole in the third file; the scan of the fourth file is still used.
        middle = 2 * FILE_BYTES + 5 * size
        assert scans.scan(middle)[:4] == (middle + 2 * size, walk.BLANK, 2, middle + size)
        fourth = 3 * FILE_BYTES
        assert scans.scan(fourth)[:4] == (fourth + 7 * size, walk.BLANK, 7, fourth + 6 * size)
        last = 4 * FILE_BYTES
        assert scans.scan(last)[:4] == (last + size, walk.BAD_MAGIC, 1, last)


def test_next_file_is_scanned_in_parallel(log, monkeypatch) -> None:
    both = threading.Barrier(2, timeout=LIMIT_S)
    scan_records = walk.scan_records

    def wait_for_the_other(buffer, start, limit, base, *arguments):
        if base < 2 * FILE_BYTES:
            both.wait()
        return scan_records(buffer, start, limit, base, *arguments)

    monkeypatch.setattr(walk, "scan_records", wait_for_the_other)
    monkeypatch.setattr(scan_ahead.os, "cpu_count", lambda: 2)
    before = set(threading.enumerate())
    with ScanAhead(log, check_crc=True) as scans:
        assert [scans.scan(base).records for base in log.bases] == [7, 7, 7, 7, 1]
    assert set(threading.enumerate()) <= before
