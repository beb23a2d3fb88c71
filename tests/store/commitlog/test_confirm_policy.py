"""InSyncReplicas confirms what the master and enough slaves have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.commitlog.confirm_policy import InSyncReplicas, confirm_policy
from store.commitlog.positions import AsyncFlush, Positions, SyncFlush


def confirmed(count: int, written: int, flushed: int, slaves: list[int], *, flush: str = "async") -> int:
    positions = Positions(confirm_policy(flush, "sync", count))
    positions.written, positions.flushed = written, flushed
    for replica, offset in enumerate(slaves):
        positions.acknowledge(replica, offset)
    positions.confirm()
    return positions.confirmed


@pytest.mark.parametrize(
    ("count", "slaves", "expected"),
    [(2, [], 0), (2, [70], 70), (2, [70, 90], 90), (3, [70], 0), (3, [70, 90], 70), (3, [70, 90, 80], 80)],
)
def test_as_many_slaves_as_set_must_have_a_record(count: int, slaves: list[int], expected: int) -> None:
    assert confirmed(count, 100, 0, slaves) == expected


def test_flush_of_the_master_is_awaited_too() -> None:
    assert confirmed(2, 100, 60, [90], flush="sync") == 60
    assert confirmed(2, 100, 95, [90], flush="sync") == 90


@given(st.integers(2, 4), st.lists(st.integers(0, 100), max_size=5))
def test_confirmed_records_are_on_enough_replicas(count: int, slaves: list[int]) -> None:
    offset = confirmed(count, 100, 0, slaves)
    assert offset == 0 or 1 + sum(each >= offset for each in slaves) >= count


def test_policy_follows_the_settings() -> None:
    assert isinstance(confirm_policy("sync", "async", 2), SyncFlush)
    assert isinstance(confirm_policy("async", "", 2), AsyncFlush)
    assert isinstance(confirm_policy("async", "sync", 2), InSyncReplicas)
