"""The table of deliberate mistakes is up to date; some of them are searched for: see docs/simulation.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutation.mutant import ROOT, Mutation, changed
from tests.mutation.table import MUTATIONS

REPRESENTATIVE = (
    "a vote does not compare the logs",
    "the lease before a pre-vote is removed",
    "term and vote are not written",
    "one replica less than a majority confirms",
)


def searched(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutation", *names]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_mistake_of_the_table_can_be_made() -> None:
    assert len({each.name for each in MUTATIONS}) == len(MUTATIONS)
    for each in MUTATIONS:
        compile(changed((ROOT / each.file).read_text(), each), each.file, "exec")


@pytest.mark.slow
def test_common_mistakes_are_found() -> None:
    done = searched(*REPRESENTATIVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(REPRESENTATIVE)


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_every_mistake_is_found_unless_it_is_equivalent(mutation: Mutation) -> None:
    done = searched(mutation.name)
    assert done.returncode == 0, done.stdout + done.stderr
