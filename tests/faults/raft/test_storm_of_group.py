"""Faults of a Raft group in processes of its own, in turn and at random, while every kind of client works.

Producers send plain, keyed, timed and transactional messages; concurrent, ordered and broadcasting groups
consume. As in `tests/faults/test_storm.py`, RAYMQ_STORM_S and RAYMQ_STORM_SEED set length and seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkers import Recorder
from tests.eventually import NEVER_S
from tests.faults.raft.storm import REPLICAS, RaftStorm
from tests.faults.storm_run import DURATION_S, print_seed, run_storm

pytestmark = [pytest.mark.faults, pytest.mark.extended]

PAUSE_S = 30.0
JUMP_MS = 3_600_000
SMALL_JUMP_MS = 5_000
"""Less than most timers wait: a message that is delivered early by more than this is found."""


# A repeated run has another interleaving: a failure must not be hidden.
@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(NEVER_S)
def test_faults_in_turn_lose_and_reorder_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills of the leader, a follower and two, pauses, clocks that jump by an hour, a deleted disk."""
    seed, recorder = print_seed(), Recorder(tmp_path / "history")
    outages_s: dict[str, float] = {}
    with RaftStorm(tmp_path, recorder, random.Random(seed), JUMP_MS) as storm:

        def replicas() -> tuple[int, int, int]:
            """Return the replicas when all have the whole log, the leader first."""
            storm.await_level()
            leader = storm.leader()
            return leader, *(each for each in REPLICAS if each != leader)  # type: ignore[return-value]

        def pause_leader() -> None:
            storm.pause(replicas()[0], PAUSE_S)

        lost: list[int] = []

        def lose_disk() -> None:
            lost.append(replicas()[2])
            storm.lose_disk(lost[0])

        def replace_and_kill_leader() -> None:
            storm.replace(lost[0])
            storm.kill(replicas()[0])

        faults: dict[str, Callable[[], None]] = {
            "kill of the leader": lambda: storm.kill(replicas()[0]),
            "kill of a follower": lambda: storm.kill(replicas()[1]),
            "kill of two": lambda: storm.kill(*replicas()[:2]),
            "pause of the leader": pause_leader,
            "pause of a follower": lambda: storm.pause(replicas()[1], PAUSE_S),
            "clock of the leader forward": lambda: storm.jump(replicas()[0], 1),
            "clock of a follower back": lambda: storm.jump(replicas()[1], -1),
            "kill of that leader": lambda: storm.kill(replicas()[0]),
            "clock of the leader back": lambda: storm.jump(replicas()[0], -1),
            "disk of a follower": lose_disk,
            "kill of the leader after its replacement": replace_and_kill_leader,
        }

        def rage() -> None:
            storm.fill()
            for name, fault in faults.items():
                outages_s[name] = storm.outage_s(fault)

        run_storm(storm, recorder, seed, rage)
    with capsys.disabled():
        shown = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in outages_s.items())
        print(f"\n{len(storm.acknowledged):,} acknowledged; outages: {shown}")  # noqa: T201 - the figures of docs/faults.md


@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(DURATION_S + NEVER_S)
def test_storm_of_faults_loses_and_reorders_nothing(tmp_path: Path) -> None:
    """Kills, pauses and clock jumps of one or two replicas at random; members come, leave and die."""
    seed, recorder = print_seed(), Recorder(tmp_path / "history")
    with RaftStorm(tmp_path, recorder, random.Random(seed), SMALL_JUMP_MS) as storm:
        run_storm(storm, recorder, seed, lambda: storm.rage(DURATION_S))
