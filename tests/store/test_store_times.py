"""A damaged storeTimestamp, which no CRC covers, does not affect starts, appends and other searches."""

from __future__ import annotations

import shutil

import pytest

from store.index.index_service import index_file_name
from tests.store.commitlog.test_holes import damage, fill, messages

DAY_MS = 24 * 3_600_000
TIMES = [-(1 << 63), -5, 1 << 50, 253_402_300_800_000, (1 << 63) - 1]


@pytest.mark.parametrize("when", TIMES)
@pytest.mark.parametrize("which", [0, 50, -1])
@pytest.mark.parametrize("has_summary", [True, False])
def test_store_with_a_damaged_timestamp_opens_and_appends(
    stores, draft, drain, read_all, clock, when, which, has_summary
):
    store = stores.open()
    fill(store, draft)
    drain(store)
    before = messages(store, read_all)
    store.close()
    damage(store.root, before[which].commit_log_offset + 56, when.to_bytes(8, "big", signed=True))
    if not has_summary:
        shutil.rmtree(store.root / "consumequeue")
        shutil.rmtree(store.root / "index")
        (store.root / "raymq.derived").unlink()
    for number in range(2):
        store = stores.open()
        for each in range(70):  # over the end of an index file
            clock.advance(ms=1)
            result = store.append(draft(b"new", keys=f"k{number}-{each}"))
            assert result.store_timestamp == clock.wall_ms()
        drain(store)
        assert len(messages(store, read_all)) == 100 + 70 * (number + 1)
        assert len(store.query_by_key("Topic", f"k{number}-33")) == 1
        store.close()


def test_timestamp_less_than_a_day_ahead_is_kept_for_later_records(stores, draft, clock):
    store = stores.open()
    now_ms = clock.wall_ms()
    clock.set_wall_ms(now_ms + DAY_MS - 1000)
    first = store.append(draft(b"first"))
    store.close()
    clock.set_wall_ms(now_ms)
    again = stores.open()
    assert again.append(draft(b"second")).store_timestamp == first.store_timestamp


def test_index_file_names_increase_for_timestamps_outside_the_calendar():
    names = [index_file_name(1_700_000_000_000, None)]
    for when in TIMES:
        names.append(index_file_name(when, names[-1]))
    assert names == sorted(set(names))
    assert {len(name) for name in names} == {17}
