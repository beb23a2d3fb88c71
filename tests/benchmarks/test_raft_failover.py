"""The benchmark of failovers measures one kill."""

from __future__ import annotations

import pytest
import uvloop

from benchmarks.raft_failover import measure


@pytest.mark.extended
def test_benchmark_measures_a_kill_of_the_leader() -> None:
    figures = uvloop.run(measure(1, 4, 100))
    assert figures["median_s"] == figures["worst_s"]
    assert figures["failed_sends"] == 0
    assert len(figures["timer_seconds"]) == 1
