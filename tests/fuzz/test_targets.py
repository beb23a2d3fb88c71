"""Every target of the fuzzer over what it begins with, what was found before, and a few mutations of both."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).parents[1] / "fixtures" / "fuzz"
MUTATIONS = 60
INTERESTING = (0, 1, 2, 0x7F, 0x80, 0xFF, ord('"'), ord("{"), ord("\\"))


def kept(name: str) -> list[bytes]:
    """What has once broken this target."""
    return [path.read_bytes() for path in sorted((FOUND / name).glob("*.bin"))]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with a byte changed, a piece cut out, doubled or put in."""
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
def test_a_target_takes_its_seeds_its_old_finds_and_mutations_of_them(name: str) -> None:
    target, rng = TARGETS[name], random.Random(name)
    begun = [*target.seeds, *kept(name)]
    for data in (b"", *begun):
        target.check(data)
    for _ in range(MUTATIONS):
        target.check(mutated(rng.choice(begun), rng))


def test_every_find_is_of_a_target() -> None:
    assert {path.name for path in FOUND.iterdir()} <= set(TARGETS)
