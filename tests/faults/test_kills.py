"""SIGKILL at every step: what was acknowledged is there, nothing else, and derived files are as the log
makes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.metadata import JsonConfigFile
from tests.faults.aftermath import check_store, history
from tests.faults.crasher import Crasher
from tests.faults.stories import history_of

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def fresh(directory: Path) -> Iterator[Path]:
    """Roots for one story after the other; what the last one has left is removed."""
    number = 0
    while True:
        root = directory / f"store-{number}"
        yield root
        shutil.rmtree(root)
        history_of(root).unlink()
        number += 1


def copies(directory: Path, of: Path) -> Iterator[Path]:
    """Roots that hold the same store, with its history beside it."""
    for root in fresh(directory):
        shutil.copytree(of, root)
        shutil.copyfile(history_of(of), history_of(root))
        yield root


@pytest.mark.parametrize("story", ["append", "append_ahead", "dispatch", "checkpoint", "close"])
def test_killed_at_every_step_a_store_keeps_what_was_acknowledged_and_nothing_else(
    crashing: Crasher, tmp_path: Path, story: str
) -> None:
    for count, (root, about) in enumerate(crashing.every_step(story, fresh(tmp_path))):
        check_store(root, about, derived=count % 4 == 0)
    assert count >= 10, f"only {count} steps: the seam no longer sees them"


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "raymq.derived"])
def test_killed_at_every_step_of_recovery_it_is_recovered_by_the_next_start(
    crashing: Crasher, tmp_path: Path, lost: str
) -> None:
    """The first process dies in the middle of an append; its successors die in recovering from that."""
    image = tmp_path / "image"
    step = next(
        step
        for step in range(50, 90)
        if crashing.run("append", tmp_path / f"try-{step}", step).killed_at.startswith("log")
    )
    crashing.run("append", image, step)
    if (image / lost).is_dir():
        shutil.rmtree(image / lost)
    elif lost != "nothing":
        (image / lost).unlink()
    for count, (root, about) in enumerate(crashing.every_step("reopen", copies(tmp_path, image))):
        check_store(root, about, derived=count % 4 == 0)
    assert count >= 15


def test_killed_at_every_step_of_a_truncation_no_record_is_damaged_or_lost_before_the_cut(
    crashing: Crasher, tmp_path: Path
) -> None:
    for root, about in crashing.every_step("truncate", fresh(tmp_path)):
        check_store(root, about)


def test_killed_at_every_step_of_a_deletion_by_age_what_has_not_expired_is_whole(
    crashing: Crasher, tmp_path: Path
) -> None:
    for root, about in crashing.every_step("clean", fresh(tmp_path)):
        check_store(root, about, consume_queue_file_bytes=80, file_reserved_time_h=1)


def test_killed_at_every_step_of_deleting_a_topic_the_others_are_whole(
    crashing: Crasher, tmp_path: Path
) -> None:
    for root, about in crashing.every_step("delete_topic", fresh(tmp_path)):
        check_store(root, about)


def test_killed_at_every_step_of_saving_a_table_the_old_or_the_new_one_is_there(
    crashing: Crasher, tmp_path: Path
) -> None:
    for root, about in crashing.every_step("save_config", fresh(tmp_path)):
        events = history(root)
        saved = [int(event.value) for event in events if event.type == "ok"]
        begun = [int(event.value) for event in events if event.type == "invoke"]
        for _ in range(2):
            content = JsonConfigFile(root / "config" / "topics.json").load()
            assert content is not None, about
            assert content["saved"] in (max(saved, default=0), max(begun, default=0)), about
            JsonConfigFile(root / "config" / "topics.json").save(content)
