"""Runs each fuzz target with its seeds, its earlier failures, and a few mutations of both."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FAILURES = Path(__file__).parents[1] / "fixtures" / "fuzz"
MUTATIONS = 60
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, ord('"'), ord("{"), ord("\\"))


def earlier_failures(name: str) -> list[bytes]:
    """Return the inputs with which this target failed earlier."""
    return [path.read_bytes() for path in sorted((FAILURES / name).glob("*.bin"))]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the data with one to three random changes: bytes replaced, removed, repeated or inserted."""
    made = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(made) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(made):
            made[at] = rng.choice(INTERESTING) if rng.random() < 0.5 else rng.randrange(256)
        elif kind == 1:
            del made[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            made[at:at] = made[at : at + 16]
        else:
            made[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(made)


@pytest.mark.parametrize("name", TARGETS)
def test_target_passes_with_seeds_earlier_failures_and_mutations(name: str) -> None:
    target, rng = TARGETS[name], random.Random(name)
    inputs = [*target.seeds, *earlier_failures(name)]
    for data in (b"", *inputs):
        target.check(data)
    for _ in range(MUTATIONS):
        target.check(mutated(rng.choice(inputs), rng))


def test_each_directory_of_failures_belongs_to_a_target() -> None:
    assert {path.name for path in FAILURES.iterdir()} <= set(TARGETS)
