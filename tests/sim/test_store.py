"""Seeded schedules of Raft groups on real stores: see docs/simulation.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from actors.broker.replication.group_log import GroupLog
from actors.broker.replication.raft.meta_log import MetaLog
from store.commitlog.flush import LogFlush
from store.recovery import opening
from tests.sim.run import Level, SeedFailed, run_seeds
from tests.sim.schedule import draw
from tests.sim.store_log import stores_in_memory


@pytest.fixture(scope="module")
def stores() -> Iterator[Level]:
    with stores_in_memory() as level:
        yield level


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.extended) for n in (100, 200))])
def test_schedules_on_stores_break_no_promise(stores: Level, first: int) -> None:
    print(run_seeds(range(first, first + 100), stores))  # noqa: T201 - a report


@pytest.mark.extended
@pytest.mark.timeout(7_200)
def test_many_schedules_on_stores_break_no_promise(stores: Level) -> None:
    print(run_seeds(range(10_000, 13_000), stores))  # noqa: T201 - a report


def _two_parts(log: GroupLog, offset: int, max_bytes: int) -> bytes:
    """Return two records of the log; the second one may be a blank."""
    end = [each.end for each in log.parts(offset, log.end)][:2][-1]
    pieces, place = [], offset
    while place < end:
        pieces.append(bytes(log._store.log_bytes(place, end - place)))  # noqa: SLF001
        place += len(pieces[-1])
    return b"".join(pieces)


MISTAKES = {
    "a restart takes the whole log as confirmed": (opening, "_confirmed_before", lambda *_: 1 << 60),
    "a fetch ends with a blank": (GroupLog, "read", _two_parts),
    "a flush counts over a truncation": (LogFlush, "cancel", lambda _: None),
    "the ends of queues are not logged": (MetaLog, "_queue_ends", lambda _: {}),
}


@pytest.mark.extended
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_schedules_on_stores_find_mistakes(stores: Level, monkeypatch: Any, mistake: str) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(SeedFailed):
        run_seeds(range(5_000, 5_300), stores._replace(draw=partial(draw, sends=40, faults=10)))


def test_schedule_on_stores_replays_exactly(stores: Level) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        stores.run(stores.draw(7), trace)
    assert len(traces[0]) > 100
    assert traces[0] == traces[1]
