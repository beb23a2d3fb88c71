"""Positions: the confirmed offset, and the order of callbacks."""

from __future__ import annotations

from collections.abc import Mapping

from store.commitlog.positions import CONFIRM_POLICIES, AsyncFlush, Positions
from store.store_errors import StoreError


def test_confirmed_is_flushed_with_sync_flush_and_written_with_async_flush():
    for confirm, expected in (("sync", 50), ("async", 100)):
        positions = Positions(CONFIRM_POLICIES[confirm])
        positions.written, positions.flushed = 100, 50
        positions.confirm()
        assert positions.confirmed == expected


def test_callbacks_run_in_offset_order_and_only_when_confirmed():
    positions = Positions(AsyncFlush())
    calls = []
    for offset in (10, 30, 20, 20):
        positions.on_confirmed(offset, lambda error, offset=offset: calls.append((offset, error)))
    positions.written = 20
    positions.confirm()
    assert calls == [(10, None), (20, None), (20, None)]
    assert positions.waiting == 1
    positions.written = 29
    positions.confirm()
    assert positions.waiting == 1
    positions.written = 30
    positions.confirm()
    assert calls[3:] == [(30, None)]


def test_callback_may_register_another_callback():
    positions = Positions(AsyncFlush())
    calls = []
    positions.written = 5
    positions.on_confirmed(5, lambda error: positions.on_confirmed(5, calls.append))
    positions.confirm()
    assert calls == []
    positions.confirm()
    assert calls == [None]


def test_fail_calls_all_callbacks_with_the_error():
    positions = Positions()
    calls = []
    positions.on_confirmed(5, calls.append)
    error = StoreError("broken")
    positions.fail(error)
    assert calls == [error]
    assert positions.waiting == 0


class AllReplicas:
    """Confirms what every replica has; before the first report, nothing."""

    def confirmed(self, positions: Positions, replicas: Mapping[int, int]) -> int:
        return min(replicas.values(), default=0)


def test_confirmed_never_falls_when_a_replica_returns_or_joins_behind():
    positions = Positions(AllReplicas())
    positions.written = 100
    positions.acknowledge(1, 60)
    positions.confirm()
    assert positions.confirmed == 60
    positions.acknowledge(1, 40)  # an older report, or the replica has lost its last bytes
    assert positions.replicas == {1: 40}
    positions.acknowledge(2, 10)
    positions.confirm()
    assert positions.confirmed == 60
    positions.remove_replica(1)
    positions.remove_replica(2)
    positions.confirm()
    assert (positions.confirmed, dict(positions.replicas)) == (60, {})


def test_replica_ahead_of_the_log_confirms_only_what_is_written():
    positions = Positions(AllReplicas())
    positions.written = 100
    positions.acknowledge(1, 500)
    positions.confirm()
    assert positions.confirmed == 100
    positions.written = 200
    positions.confirm()
    assert positions.confirmed == 200


def test_truncation_abandons_the_callbacks_of_dropped_records():
    positions = Positions(AllReplicas())
    positions.written = 100
    calls = []
    for offset in (50, 100):
        positions.on_confirmed(offset, lambda error, offset=offset: calls.append((offset, error)))
    error = StoreError("truncated")
    positions.truncate_to(60, error)
    assert calls == [(100, error)]
    positions.acknowledge(1, 60)
    positions.confirm()
    assert calls == [(100, error), (50, None)]


def test_truncation_below_confirmed_lowers_it():
    positions = Positions(AsyncFlush())
    positions.written = 100
    positions.confirm()
    assert positions.confirmed == 100
    positions.truncate_to(30, StoreError("truncated"))
    positions.written = 40
    positions.confirm()
    assert positions.confirmed == 40
