"""Tiers of the tests: unit tests run in parallel, system tests in two lanes, extended tests on request.

| tier     | tests                             | how they run                                    |
|----------|-----------------------------------|-------------------------------------------------|
| unit     | all without another mark          | by file, on any worker; slow files first        |
| system   | marked ray, spark, java or faults | each lane on one worker, which starts its Ray   |
|          |                                   | cluster, Spark session and RocketMQ once        |
| extended | also marked extended              | like the others, with ``pytest -m extended``    |

The path of a test determines its lane, because the scheduler of pytest-xdist knows only test names.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

LANES = {
    "ray": (
        "tests/cluster/lab/demo/test_demo",
        "tests/cluster/test_ray",
        "tests/cluster/test_several_nodes",
        "tests/cluster/lab/bench/test_benches.py::test_spark",
        "tests/jobs/archive/test_undecodable_bodies",
        "tests/jobs/ray_data/test_example",
        "tests/jobs/ray_data/test_lake_engine",
        "tests/jobs/ray_data/test_read_dataset",
        "tests/jobs/ray_data/test_read_history",
        "tests/jobs/ray_data/test_write_dataset",
        "tests/jobs/reading/test_group_offsets",
        "tests/jobs/reading/test_read_losses",
        "tests/jobs/reading/test_selection",
        "tests/jobs/reindex/",
        "tests/jobs/spark/bodies/test_body_columns",
        "tests/jobs/spark/stream/test_read_stream",
        "tests/jobs/spark/stream/test_stream_history",
        "tests/jobs/spark/test_examples",
        "tests/jobs/spark/test_killed_jobs",
        "tests/jobs/spark/test_lake_engine",
        "tests/jobs/spark/test_placement",
        "tests/jobs/spark/test_read_history",
        "tests/jobs/spark/test_read_queue",
        "tests/jobs/spark/test_read_topics",
        "tests/jobs/spark/test_slave_reads",
        "tests/jobs/spark/test_write_queue",
        "tests/jobs/tasks/test_serve_with_celery",
        "tests/jobs/writing/test_delayed_rows",
        "tests/test_wheels.py::test_installed_raymq_runs_demo",
    ),
    "java": ("tests/compat/", "tests/faults/", "tests/jobs/lake/test_killed_writers"),
}
"""Prefixes of the test ids of each lane."""
LANE_MARKS = {"ray": ("ray", "spark"), "java": ("java", "faults")}
REPEATABLE_MARKS = ("ray", "spark", "java", "faults", "extended")
"""Marks of tests that are repeated once after a failure, because they depend on external processes."""


def lane_of(nodeid: str) -> str | None:
    """Return the lane of a system test, or None for a unit test."""
    return next((lane for lane, paths in LANES.items() if nodeid.startswith(paths)), None)


def scope_of(nodeid: str) -> str:
    """Return the scheduling unit of a test: its lane, or its file."""
    return lane_of(nodeid) or nodeid.partition("::")[0]


def is_repeatable(item: pytest.Item) -> bool:
    """Return True for system and extended tests, which may be repeated once."""
    return any(item.get_closest_marker(mark) for mark in REPEATABLE_MARKS)


def in_lane_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Sort stably, by length: lanes, files with slow tests, others; so no long file is the last."""
    slow = {scope_of(item.nodeid) for item in items if item.get_closest_marker("slow")}
    order = {lane: number for number, lane in enumerate(LANES)}

    def place(item: pytest.Item) -> int:
        scope = scope_of(item.nodeid)
        return order.get(scope, len(order) + (scope not in slow))

    return sorted(items, key=place)


class LaneScheduling(LoadScopeScheduling):
    """Scheduler that gives each worker one scope after another, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
