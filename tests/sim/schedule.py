"""Schedule: what happens in one simulation, drawn from a seed.

Faults are drawn before the simulation starts, so a failing schedule can be shrunk by leaving faults out. What
the network and the disks do with each single message and flush is drawn during the simulation, from a
generator of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from actors.raft.messages import Message
from actors.raft.state import Timing

TIMINGS = (Timing(1_000, 500), Timing(300, 150), Timing(200, 80))
MESSAGE_KINDS = tuple(each.__name__ for each in get_args(Message))
LATE_ELECTIONS = (0.3, 8)
"""Bounds of the delay of a late message, in election times: most arrive in a later term."""
LATENCIES_MS = ((1, 1, 2, 3), (1, 2, 5, 20), (1, 5, 10, 30))


class Fault(NamedTuple):
    """One fault or command of the operator, at `time_ms`."""

    time_ms: int
    kind: str
    arguments: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.time_ms:>6} ms  {self.kind} {', '.join(map(str, self.arguments))}"


@dataclass(frozen=True)
class Schedule:
    """One simulation: `voters` replicas, and one spare replica that is no member at first."""

    seed: int
    voters: int
    timing: Timing
    latencies_ms: tuple[int, ...]
    loss: float
    duplication: float
    """The part of the messages of which a second copy arrives, which is late."""
    lateness: float
    """The part of the messages that are late, see LATE_ELECTIONS; of `late_kinds` ten times as many."""
    late_kinds: frozenset[str]
    sends_ms: tuple[int, ...]
    """Times at which a client appends a value to each replica that accepts sends."""
    faults: tuple[Fault, ...]
    duration_ms: int

    def only(self, places: list[int]) -> Schedule:
        """Return the schedule with only the faults at these places."""
        return replace(self, faults=tuple(self.faults[place] for place in places))


def draw(seed: int, *, sends: int = 45, faults: int = 12) -> Schedule:
    """Return the schedule of a seed, with about this number of sends and faults."""
    rng = random.Random(seed)
    timing = rng.choice(TIMINGS)
    voters = 5 if seed % 4 == 3 else 3
    # A fault is often followed by another one before the group has recovered from it.
    pause_ms = timing.election_ms * rng.choice((0.5, 1.5, 3))
    time_ms, planned = 2.5 * timing.election_ms, []
    swarm = _swarm(rng)
    for _ in range(rng.randrange(faults // 2, faults * 3 // 2)):
        planned.append(_fault(rng, int(time_ms), voters, timing, swarm))
        time_ms += rng.expovariate(1 / pause_ms)
    duration_ms = int(time_ms + timing.election_ms)
    times = sorted(rng.randrange(duration_ms) for _ in range(sends))
    return Schedule(
        seed,
        voters,
        timing,
        rng.choice(LATENCIES_MS),
        rng.choice((0, 0, 0.02, 0.1)),
        rng.choice((0.01, 0.01, 0.05)),
        rng.choice((0.01, 0.03, 0.03)),
        frozenset(rng.sample(MESSAGE_KINDS, rng.randrange(3))),
        tuple(times),
        tuple(planned),
        duration_ms,
    )


class Swarm(NamedTuple):
    """What the faults of one schedule have in common: rare combinations need a few kinds, again and again."""

    kinds: frozenset[int]
    """Places of the kinds that occur; all if it is empty."""
    target: int | None
    """A replica, or LEADER, which half of the faults hit."""


def _swarm(rng: random.Random) -> Swarm:
    if rng.random() < 0.5:
        return Swarm(frozenset(), None)
    kinds = frozenset(rng.sample(range(KINDS), rng.randrange(2, 6)))
    return Swarm(kinds, rng.choice((0, 1, LEADER, None)))


def _fault(rng: random.Random, time_ms: int, voters: int, timing: Timing, swarm: Swarm) -> Fault:
    """Draw one fault. Replicas are numbers below `voters`; LEADER stands for the leader at that time."""
    replica = rng.choice((*range(voters), LEADER))
    if swarm.target is not None and rng.random() < 0.5:
        replica = swarm.target
    down_ms = rng.choice((5, timing.hold_ms, timing.election_ms * 2, timing.election_ms * 6))
    election_ms = timing.election_ms
    kinds: list[tuple[int, str, tuple[Any, ...]]] = [
        (8, "crash", (replica, down_ms)),
        (8, "crash_in_step", (replica, rng.randrange(12), down_ms)),
        (3, "power_loss", (rng.randrange(1, 1 << voters), down_ms)),
        (8, "partition", (rng.randrange(1, (1 << voters) - 1), rng.random() < 0.4, down_ms * 2)),
        (5, "isolate", (replica, rng.choice(("in", "out", "both")), down_ms * 2)),
        (3, "cut", (replica, rng.randrange(voters), down_ms * 2)),
        (4, "slow_disk", (replica, rng.choice((30, election_ms // 2)), election_ms * 4)),
        (3, "stalled_disk", (replica, 0, election_ms * 3)),
        (4, "pause", (replica, rng.choice((election_ms // 2, election_ms * 3, election_ms * 30)))),
        (2, "clock_jump", (replica, rng.choice((election_ms, election_ms * 100)))),
        (2, "failed_flush", (replica, down_ms)),
        (3, "wipe", (replica, down_ms)),
        (2, "lose_suffix", (replica, down_ms)),
        (3, "trim", (replica,)),
        (5, "transfer", (rng.randrange(voters),)),
        (3, "add", (voters,)),
        (2, "remove", (replica,)),
        (3, "replace", (replica, voters)),
        (2, "damage", (replica,)),
        (2, "failed_write", (replica,)),
    ]
    assert len(kinds) == KINDS
    weights = [
        weight if not swarm.kinds or place in swarm.kinds else 0 for place, (weight, _, _) in enumerate(kinds)
    ]
    _, kind, arguments = rng.choices(kinds, weights)[0]
    return Fault(time_ms, kind, arguments)


KINDS = 20
LEADER = -1
"""Stands for the replica that leads when the fault occurs."""
