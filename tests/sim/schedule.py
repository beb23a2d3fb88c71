"""Schedule: what happens in one simulation, drawn from a seed.

Faults are drawn before the simulation starts, so a failing schedule can be shrunk by leaving faults out. What
the network and the disks do with each single message and flush is drawn during the simulation, from a
generator of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from actors.raft.state import Timing

TIMINGS = (Timing(1_000, 500), Timing(300, 150), Timing(200, 80))
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
    for _ in range(rng.randrange(faults // 2, faults * 3 // 2)):
        planned.append(_fault(rng, int(time_ms), voters, timing))
        time_ms += rng.expovariate(1 / pause_ms)
    duration_ms = int(time_ms + timing.election_ms)
    times = sorted(rng.randrange(duration_ms) for _ in range(sends))
    return Schedule(
        seed,
        voters,
        timing,
        rng.choice(LATENCIES_MS),
        rng.choice((0, 0, 0.02, 0.1)),
        rng.choice((0, 0, 0.05)),
        tuple(times),
        tuple(planned),
        duration_ms,
    )


def _fault(rng: random.Random, time_ms: int, voters: int, timing: Timing) -> Fault:
    """Draw one fault. Replicas are numbers below `voters`; LEADER stands for the leader at that time."""
    replica = rng.choice((*range(voters), LEADER))
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
    ]
    weights = [weight for weight, _, _ in kinds]
    _, kind, arguments = rng.choices(kinds, weights)[0]
    return Fault(time_ms, kind, arguments)


LEADER = -1
"""Stands for the replica that leads when the fault occurs."""
