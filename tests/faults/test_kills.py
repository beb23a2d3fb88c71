"""SIGKILL at every step: exactly the acknowledged messages are kept, and derived files match the log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.common.json_file import JsonConfigFile
from tests.faults.aftermath import check_store, history
from tests.faults.crasher import Crasher
from tests.faults.scenarios import history_of

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def fresh(directory: Path) -> Iterator[Path]:
    """Yield a new store directory for each scenario, and remove the previous one with its history."""
    number = 0
    while True:
        root = directory / f"store-{number}"
        yield root
        shutil.rmtree(root)
        history_of(root).unlink()
        number += 1


def copies(directory: Path, of: Path) -> Iterator[Path]:
    """Yield copies of the store `of` with its history, and remove the previous copy."""
    for root in fresh(directory):
        shutil.copytree(of, root)
        shutil.copyfile(history_of(of), history_of(root))
        yield root


@pytest.mark.parametrize("scenario", ["append", "append_ahead", "dispatch", "checkpoint", "close"])
def test_kill_at_every_step_keeps_exactly_the_acknowledged_messages(
    crashing: Crasher, tmp_path: Path, scenario: str
) -> None:
    for count, (root, about) in enumerate(crashing.every_step(scenario, fresh(tmp_path))):
        check_store(root, about, derived=count % 4 == 0)
    assert count >= 10, f"only {count} steps: `Steps` no longer patches all calls"


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "raymq.derived"])
def test_kill_at_every_step_of_recovery_is_recovered_by_next_start(
    crashing: Crasher, tmp_path: Path, lost: str
) -> None:
    """The first process is killed during an append, the next ones during the recovery from that."""
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


def test_kill_at_every_step_of_truncation_keeps_records_before_the_offset(
    crashing: Crasher, tmp_path: Path
) -> None:
    for root, about in crashing.every_step("truncate", fresh(tmp_path)):
        check_store(root, about)


def test_kill_at_every_step_of_retention_keeps_unexpired_messages(crashing: Crasher, tmp_path: Path) -> None:
    for root, about in crashing.every_step("clean", fresh(tmp_path)):
        check_store(root, about, consume_queue_file_bytes=80, file_reserved_time_h=1)


def test_kill_at_every_step_of_topic_deletion_keeps_other_topics(crashing: Crasher, tmp_path: Path) -> None:
    for root, about in crashing.every_step("delete_topic", fresh(tmp_path)):
        check_store(root, about)


def test_kill_at_every_step_of_table_save_keeps_old_or_new_table(crashing: Crasher, tmp_path: Path) -> None:
    for root, about in crashing.every_step("save_config", fresh(tmp_path)):
        events = history(root)
        saved = [int(event.value) for event in events if event.type == "ok"]
        begun = [int(event.value) for event in events if event.type == "invoke"]
        for _ in range(2):
            content = JsonConfigFile(root / "config" / "topics.json").load()
            assert content is not None, about
            assert content["saved"] in (max(saved, default=0), max(begun, default=0)), about
            JsonConfigFile(root / "config" / "topics.json").save(content)
