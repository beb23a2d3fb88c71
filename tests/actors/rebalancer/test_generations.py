"""Generations never decrease: across restarts, failed saves and a lost disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.rebalancer.generations import BLOCK, Generations


def opened(path: Path, clock) -> Generations:
    generations = Generations(path, clock)
    generations.load()
    return generations


def test_generations_increase_by_one_and_never_repeat_after_a_restart(tmp_path: Path, clock) -> None:
    before = opened(tmp_path, clock)
    given = [before.next("g", 1000) for _ in range(2 * BLOCK + 5)]
    assert given == list(range(given[0], given[0] + len(given)))
    clock.set_wall_ms(0)
    after = opened(tmp_path, clock)
    assert after.current("g") >= given[-1]
    assert after.next("g", 1000) > given[-1]


def test_longest_lease_of_a_group_is_saved(tmp_path: Path, clock) -> None:
    before = opened(tmp_path, clock)
    assert before.saved_lease_ms("g") is None
    before.next("g", 1000)
    before.save_lease("g", 5000)
    before.next("g", 2000)
    after = opened(tmp_path, clock)
    assert after.saved_lease_ms("g") == 5000
    assert after.saved_lease_ms("other") is None


def test_generations_after_a_lost_disk_are_higher(tmp_path: Path, clock) -> None:
    last = opened(tmp_path / "first", clock).next("g", 1000)
    clock.advance(1000)
    assert opened(tmp_path / "second", clock).next("g", 1000) > last


def test_no_generation_is_returned_if_it_cannot_be_saved(tmp_path: Path, clock) -> None:
    (tmp_path / "config").write_text("a file where the directory should be")
    generations = Generations(tmp_path, clock)
    before = generations.current("g")
    with pytest.raises(FileExistsError):
        generations.next("g", 1000)
    assert generations.current("g") == before
    assert generations.saved_lease_ms("g") is None


def test_generations_are_saved_in_blocks(tmp_path: Path, clock) -> None:
    generations = opened(tmp_path, clock)
    file = tmp_path / "config" / "generations.json"
    stamps = set()
    for _ in range(BLOCK):
        generations.next("g", 1000)
        stamps.add(file.stat().st_ino)
    assert len(stamps) == 1
