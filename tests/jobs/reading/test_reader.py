"""Reading splits without Spark: mapped and fetched rows are equal, and every lost message is reported."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.job_errors import DataLoss
from jobs.reading.describe import describe_topic
from jobs.reading.mapped import is_local
from jobs.reading.reader import SplitsReader
from jobs.reading.schema import ALL_COLUMNS
from jobs.reading.splits import QueueState, Split, choose_ranges, cut_splits
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from tests.jobs.conftest import MESSAGES, STORE, TOPIC, Orders


@pytest.fixture(scope="module")
def states(orders: Orders) -> list[QueueState]:
    return describe_topic(orders.nameservers, TOPIC)


@pytest.fixture
def copied(states: list[QueueState], tmp_path: Path) -> Split:
    """Return a split of the longest queue in a copy of its broker's store, which a test may damage."""
    state = max(states, key=lambda state: state.max_offset)
    being_saved = shutil.ignore_patterns("*.new")  # tables being saved: these files may vanish
    root = Path(shutil.copytree(state.location.store_root, tmp_path / "store", ignore=being_saved))
    return Split(
        state.queue, state.min_offset, state.max_offset, replace(state.location, store_root=str(root))
    )


def rows(splits: Iterable[Split], *, map_files: bool = True, fail: bool = True) -> pa.Table:
    reader = SplitsReader(list(splits), ALL_COLUMNS, fail, map_files)
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(list(splits))))], names=["id"])
    return pa.Table.from_batches(list(reader(iter([numbers]))))


def whole(states: list[QueueState], parts: int) -> list[Split]:
    ranges, missing = choose_ranges(states, Offsets(EARLIEST), Offsets(LATEST))
    assert not missing
    return cut_splits(ranges, parts)


def lost(split: Split) -> DataLoss:
    with pytest.raises(DataLoss) as loss:
        rows([split])
    return loss.value


def test_describe_topic_returns_all_queues_of_local_stores(states: list[QueueState]) -> None:
    assert [state.queue for state in states] == sorted(state.queue for state in states)
    assert len(states) == 6
    assert sum(state.max_offset - state.min_offset for state in states) == MESSAGES + 1
    assert all(is_local(state.location) for state in states)


def test_mapped_and_fetched_rows_are_equal_and_complete(orders: Orders, states: list[QueueState]) -> None:
    splits = whole(states, 11)
    mapped, fetched = rows(splits), rows(splits, map_files=False)
    assert mapped.equals(fetched)
    assert sorted(mapped["body"].to_pylist()) == sorted(orders.sent)
    for split in splits:
        of_queue = [
            row["queueOffset"]
            for row in mapped.select(["brokerName", "queueId", "queueOffset"]).to_pylist()
            if (row["brokerName"], row["queueId"]) == split.queue[1:]
        ]
        assert of_queue == sorted(of_queue)


def test_read_returns_all_columns_of_a_message(states: list[QueueState]) -> None:
    special = next(row for row in rows(whole(states, 1)).to_pylist() if row["tags"] == "späte")
    properties = dict(special["properties"])
    assert (special["topic"], special["body"], special["keys"], special["reconsumeTimes"]) == (
        TOPIC,
        b"!",
        "a b",
        0,
    )
    assert (properties["color"], properties["empty?"], properties["UNIQ_KEY"]) == (
        "blå",
        "no",
        special["uniqKey"],
    )
    assert timedelta() <= special["storeTimestamp"] - special["bornTimestamp"] < timedelta(days=1)


def test_store_with_another_id_or_machine_is_not_local(copied: Split) -> None:
    assert is_local(copied.location)
    assert not is_local(replace(copied.location, store_id="another"))
    assert not is_local(replace(copied.location, store_root="/nowhere"))
    assert not is_local(replace(copied.location, machine_id="another"))


def test_missing_log_file_is_data_loss_and_the_rest_is_readable(copied: Split) -> None:
    complete = rows([copied])
    first = min((Path(copied.location.store_root) / "commitlog").iterdir())
    first.unlink()
    loss = lost(copied)
    assert str(first) in str(loss)
    rest = rows([copied], fail=False)
    assert 0 < rest.num_rows < complete.num_rows
    gone = sum(each < STORE.commit_log_file_bytes for each in complete["commitLogOffset"].to_pylist())
    assert rest.equals(complete.slice(gone))


def test_missing_consume_queue_file_is_data_loss(copied: Split) -> None:
    queue = Path(copied.location.store_root) / "consumequeue" / TOPIC / str(copied.queue.queue_id)
    (queue / f"{STORE.consume_queue_file_bytes:020d}").unlink()
    assert [(each.begin, each.end) for each in lost(copied).missing] == [(400, 800)]
    left = rows([copied], fail=False)["queueOffset"].to_pylist()
    assert left == [offset for offset in range(copied.end) if not 400 <= offset < 800]


def damage(split: Split, row: dict[str, int], at: int) -> None:
    """Invert the byte at offset `at` of the record of `row`."""
    offset = row["commitLogOffset"] + at
    base = offset - offset % STORE.commit_log_file_bytes
    with (Path(split.location.store_root) / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(offset - base)
        byte = file.read(1)[0]
        file.seek(offset - base)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize(
    ("at", "error"),
    [(4, "no record"), (100, "CRC"), (27, "has queueOffset"), (87, "do not add up to totalSize")],
)
def test_only_the_damaged_record_is_lost(copied: Split, at: int, error: str) -> None:
    row = rows([copied]).slice(37, 1).to_pylist()[0]
    damage(copied, row, at)
    loss = lost(copied)
    assert [(each.begin, each.end) for each in loss.missing] == [(37, 38)]
    assert error in str(loss)
    left = rows([copied], fail=False)["queueOffset"].to_pylist()
    assert left == [offset for offset in range(copied.end) if offset != 37]


def test_fetching_offsets_beyond_the_queue_is_data_loss(states: list[QueueState]) -> None:
    state = states[0]
    beyond = Split(state.queue, state.max_offset, state.max_offset + 5, state.location)
    with pytest.raises(DataLoss, match=f"has only offsets \\[0, {state.max_offset}\\)"):
        rows([beyond], map_files=False)
