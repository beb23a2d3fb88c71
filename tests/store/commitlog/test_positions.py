"""Positions: the confirmed offset, and the order of callbacks."""

from __future__ import annotations

from store.commitlog.positions import CONFIRM_POLICIES, AsyncFlush, Positions
from store.store_errors import StoreError


def test_confirmed_is_flushed_with_sync_flush_and_written_with_async_flush():
    for confirm, expected in (("sync", 50), ("async", 100)):
        positions = Positions(CONFIRM_POLICIES[confirm])
        positions.written, positions.flushed = 100, 50
        assert positions.confirmed == expected


def test_callbacks_run_in_offset_order_and_only_when_confirmed():
    positions = Positions(AsyncFlush())
    calls = []
    for offset in (10, 30, 20, 20):
        positions.on_confirmed(offset, lambda error, offset=offset: calls.append((offset, error)))
    positions.written = 20
    positions.run_callbacks()
    assert calls == [(10, None), (20, None), (20, None)]
    assert positions.has_waiters
    assert positions.first_waiting == 30


def test_callback_may_register_another_callback():
    positions = Positions(AsyncFlush())
    calls = []
    positions.written = 5
    positions.on_confirmed(5, lambda error: positions.on_confirmed(5, calls.append))
    positions.run_callbacks()
    assert calls == []
    positions.run_callbacks()
    assert calls == [None]


def test_fail_calls_all_callbacks_with_the_error():
    positions = Positions()
    calls = []
    positions.on_confirmed(5, calls.append)
    error = StoreError("broken")
    positions.fail(error)
    assert calls == [error]
    assert not positions.has_waiters
