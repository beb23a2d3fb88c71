"""Positions: what is confirmed, and who is told when."""

from __future__ import annotations

from store.commitlog.positions import CONFIRM_POLICIES, AsyncFlush, Positions
from store.store_errors import StoreError


def test_confirmed_is_flushed_under_sync_and_written_under_async():
    for confirm, expected in (("sync", 50), ("async", 100)):
        positions = Positions(CONFIRM_POLICIES[confirm])
        positions.written, positions.flushed = 100, 50
        assert positions.confirmed == expected


def test_callbacks_come_in_order_of_their_offsets_and_only_when_confirmed():
    positions = Positions(AsyncFlush())
    told = []
    for offset in (10, 30, 20, 20):
        positions.on_confirmed(offset, lambda error, offset=offset: told.append((offset, error)))
    positions.written = 20
    positions.run_callbacks()
    assert told == [(10, None), (20, None), (20, None)]
    assert positions.has_waiters
    assert positions.first_waiting == 30


def test_a_callback_may_wait_again():
    positions = Positions(AsyncFlush())
    told = []
    positions.written = 5
    positions.on_confirmed(5, lambda error: positions.on_confirmed(5, told.append))
    positions.run_callbacks()
    assert told == []
    positions.run_callbacks()
    assert told == [None]


def test_a_failure_is_told_to_all_who_wait():
    positions = Positions()
    told = []
    positions.on_confirmed(5, told.append)
    error = StoreError("broken")
    positions.fail(error)
    assert told == [error]
    assert not positions.has_waiters
