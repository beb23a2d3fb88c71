"""Counts in the sentences of commands and of the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.counted import counted

ROOT = Path(__file__).parents[2]
PLURAL = re.compile(
    r"\{[^{}'\"]*\} (?:unread )?(?:dead letters|messages|queues|topics|producers|consumers|settings|rules)\b"
)
"""A number and a noun that would be wrong for 1. The noun of a rate or of a limit may stand so."""
RATES = re.compile(r"messages/s|limits\.|task\.completed")


def test_noun_of_one_is_singular() -> None:
    assert [counted(each, "dead letter") for each in (0, 1, 2_000)] == [
        "0 dead letters", "1 dead letter", "2,000 dead letters",
    ]  # fmt: skip


@pytest.mark.parametrize("package", ["cli", "console", "driver", "views"])
def test_counts_of_a_command_are_written_by_counted(package: str) -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / "cluster" / package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if PLURAL.search(line) and not RATES.search(line)
    ]
    # `raymq store` counts the records and queues of whole stores
    assert [each for each in found if not each.startswith("store_tools.py")] == []
