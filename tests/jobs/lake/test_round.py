"""A round adds the confirmed messages of a topic to its table once, from brokers or a store without one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog

from cluster.client import Admin, Producer
from jobs.job_errors import CommitConflict, DataLoss, LakeInvalid
from jobs.lake.lake_table import READ_COLUMNS, LakeGap, LakeState, LakeTable
from jobs.lake.round import (
    RoundOptions,
    RoundResult,
    ThreadEngine,
    cut_tasks,
    plan_round,
    stored_queues,
    write_round,
)
from jobs.lake.upkeep import compact
from jobs.lake.write_rows import DAY_US, DayFiles, FilesOf, WriteTask, WrittenRows
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import QueueState, Split, StoreLocation
from store.message.message_queue import MessageQueue
from tests.jobs import restored_broker
from tests.jobs.conftest import MESSAGES, TOPIC, ClusterThread, Orders
from tests.jobs.lake.lake_files import catalog_of, offsets_in, table_of
from tests.jobs.restored_broker import RestoredBroker

LOCATION = StoreLocation("127.0.0.1:1", "/none", "id", 1024, 10)
BY_OFFSET = [("brokerName", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]


def queue_of(queue_id: int, topic: str = TOPIC) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def queues_of(orders: Orders, topic: str = TOPIC) -> Callable[[], Sequence[QueueState]]:
    return lambda: describe_topic(orders.nameservers, topic)


def rows_in(table: LakeTable) -> pa.Table:
    table.refresh()
    return table.iceberg.scan().to_arrow()


def files_of(table: LakeTable) -> list[Path]:
    return sorted(Path(table.location.removeprefix("file://"), "data").rglob("*.parquet"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path)


def test_round_adds_all_messages_as_a_read_has_them(orders: Orders, catalog: Catalog) -> None:
    table = table_of(catalog)
    result = write_round(table, queues_of(orders), options=RoundOptions(file_bytes=100_000))
    assert (result.rows, result.remaining, result.gaps) == (MESSAGES + 1, 0, ())
    splits = [Split(each.queue, 0, each.max_offset, each.location) for each in queues_of(orders)()]
    reader = SplitsReader(splits, tuple(READ_COLUMNS.values()), fail_on_data_loss=True, map_files=False)
    expected = pa.Table.from_batches(list(reader.read_all())).sort_by(BY_OFFSET)
    found = rows_in(table).rename_columns(list(READ_COLUMNS.values())).sort_by(BY_OFFSET)
    assert found.cast(expected.schema).to_pylist() == expected.to_pylist()
    assert result.state.offsets == {each.queue: each.end for each in splits} == table.state().offsets
    assert result.files == len(files_of(table)) > 1
    for path in files_of(table):
        places = pq.read_table(path, columns=["broker", "queue", "offset"]).to_pylist()
        assert places == sorted(places, key=lambda row: tuple(row.values()))


def test_next_round_adds_only_what_was_sent_since(orders: Orders, catalog: Catalog) -> None:
    table = table_of(catalog, "growing-lake")
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(table.topic, queues=1)
        queue = next(each.queue for each in queues_of(orders, table.topic)())
        for number in range(20):
            producer.send(table.topic, b"%d" % number, queue=queue)
        first = write_round(table, queues_of(orders, table.topic), options=RoundOptions(messages_max=15))
        assert (first.rows, first.remaining) == (15, 5)
        for number in range(20, 30):
            producer.send(table.topic, b"%d" % number, queue=queue)
    rows = [write_round(table, queues_of(orders, table.topic)).rows for _ in range(2)]
    assert rows == [15, 0]
    assert offsets_in(table) == list(range(30))


class Interfering:
    """An engine during whose run another writer commits."""

    parallelism = 2

    def __init__(self, orders: Orders, table: LakeTable) -> None:
        self._orders, self._table = orders, table

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        write_round(self._table, queues_of(self._orders))
        return ThreadEngine().run(tasks)


def test_round_that_meets_another_writer_adds_nothing_and_leaves_no_files(
    orders: Orders, catalog: Catalog
) -> None:
    table = table_of(catalog)
    with pytest.raises(CommitConflict):
        write_round(table, queues_of(orders), Interfering(orders, table_of(catalog)))
    assert rows_in(table).num_rows == MESSAGES + 1
    assert {str(path) for path in files_of(table)} == {
        each.file.file_path.removeprefix("file://") for each in table.iceberg.scan().plan_files()
    }
    assert write_round(table, queues_of(orders)).rows == 0


class Failing:
    """An engine whose second task fails."""

    parallelism = 2

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        tasks[0].run()
        raise OSError(28, "No space left on device")


def test_round_whose_task_fails_is_repeated_without_loss(orders: Orders, catalog: Catalog) -> None:
    table = table_of(catalog)
    with pytest.raises(OSError, match="No space"):
        write_round(table, queues_of(orders), Failing())
    assert table.state() == LakeState()
    assert write_round(table, queues_of(orders)).rows == MESSAGES + 1


def without_log(queues: Sequence[QueueState], copy: Path) -> list[QueueState]:
    """Return the queues as if this machine had their stores without the CommitLog."""
    copied = []
    for each in queues:
        root = copy / each.queue.broker_name
        if not root.exists():
            shutil.copytree(each.location.store_root, root, ignore=shutil.ignore_patterns("commitlog"))
        copied.append(replace(each, location=replace(each.location, store_root=str(root))))
    return copied


def test_files_that_cannot_be_mapped_are_fetched_and_no_gap(
    orders: Orders, catalog: Catalog, tmp_path: Path
) -> None:
    table = table_of(catalog)
    queues = without_log(queues_of(orders)(), tmp_path / "copy")
    result = write_round(table, lambda: queues)
    assert (result.rows, result.gaps) == (MESSAGES + 1, ())


def test_messages_that_are_lost_become_gaps_or_fail_the_round(
    orders: Orders, catalog: Catalog, tmp_path: Path
) -> None:
    table = table_of(catalog)
    queues = without_log(queues_of(orders)(), tmp_path / "copy")
    with pytest.raises(DataLoss, match=f"{MESSAGES + 1} requested messages are missing"):
        write_round(table, lambda: queues, options=RoundOptions(has_broker=False, accept_loss=False))
    assert table.state() == LakeState()
    assert files_of(table) == []
    result = write_round(table, lambda: queues, options=RoundOptions(has_broker=False))
    expected = tuple(LakeGap(*each.queue[1:], 0, each.max_offset) for each in queues if each.max_offset)
    assert (result.rows, result.gaps, table.state().gaps) == (0, expected, expected)
    assert write_round(table, lambda: queues, options=RoundOptions(has_broker=False)).gaps == ()


@pytest.mark.slow
def test_round_adds_nothing_after_the_log_of_a_table_went_back(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The restored log has other messages at the offsets of the table, and more than it."""
    broker = RestoredBroker(tmp_path / "stores")
    table = table_of(catalog, restored_broker.TOPIC)

    def run() -> RoundResult:
        return write_round(table, lambda: describe_topic(broker.nameservers, table.topic))

    try:
        broker.send(*range(5))
        kept = run().state
        broker.copy()
        broker.send(*range(5, 10))
        assert run().rows == 5
        broker.restore()
        broker.send(*range(20, 30))
        for _ in range(2):
            with pytest.raises(LakeInvalid, match=r"broker-a.* from offset 5 on.* roll the table back"):
                run()
        assert "lake_log_went_back" in caplog.text
        assert offsets_in(table) == list(range(10))
        assert kept.snapshot_id is not None
        table.iceberg.manage_snapshots().rollback_to_snapshot(kept.snapshot_id).commit()
        assert run().rows == 10
        assert [int(body) for body in rows_in(table).sort_by("offset")["body"].to_pylist()] == [
            *range(5),
            *range(20, 30),
        ]
        compact(table, files_min=2)
        assert table.state().epochs
        assert run().rows == 0
    finally:
        broker.running.stop()


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[ClusterThread]:
    running = ClusterThread(tmp_path / "stores", brokers=1)
    yield running
    running.stop()


@pytest.mark.slow
def test_store_without_broker_is_written_to_the_table(
    small_cluster: ClusterThread, catalog: Catalog, tmp_path: Path
) -> None:
    nameservers = small_cluster.cluster.nameserver_address
    table = table_of(catalog)
    with Admin(nameservers) as admin, Producer(nameservers) as producer:
        admin.create_topic(TOPIC, queues=2)
        write_round(table, lambda: describe_topic(nameservers, TOPIC))
        for number in range(100):
            producer.send(TOPIC, b"%d" % number)
    store = tmp_path / "stores" / "broker-a-0"
    with pytest.raises(LakeInvalid, match="serves the store"):
        stored_queues(store, TOPIC)
    small_cluster.stop()
    with pytest.raises(LakeInvalid, match=r"has no queue of topic other; it has .*orders"):
        stored_queues(store, "other")
    with pytest.raises(LakeInvalid, match="nowhere"):
        stored_queues(tmp_path / "nowhere", TOPIC)
    result = write_round(
        table, lambda: stored_queues(store, TOPIC), options=RoundOptions(has_broker=False, accept_loss=False)
    )
    assert result.rows == 100
    assert sorted(rows_in(table)["body"].to_pylist()) == sorted(b"%d" % number for number in range(100))


def test_files_have_one_day_and_a_bounded_size(catalog: Catalog) -> None:
    table = table_of(catalog)
    files = DayFiles(FilesOf.table(table, file_bytes=4_000))
    for begin in range(0, 600, 100):  # six days from 2026-11-20 on, twice
        rows = [
            {
                "queue": 0,
                "offset": number,
                "body": b"x" * 9,
                "store_time": (20_777 + number % 300 // 50) * DAY_US,
            }
            for number in range(begin, begin + 100)
        ]
        files.write(pa.RecordBatch.from_pylist(rows, table.arrow_schema))
    written = files.close()
    assert written.rows == 600
    assert len(written.files) > 6
    for uri in written.files:
        days = {
            time.date().isoformat()
            for time in pq.read_table(uri.removeprefix("file://"))["store_time"].to_pylist()
        }
        assert uri.split("/")[-2] == f"store_time_day={days.pop()}"
        assert not days
    table.commit(written.files, {queue_of(0): 600}, [], table.state())
    assert offsets_in(table) == list(range(600))
    one_day = table.iceberg.scan(
        "store_time >= '2026-11-22T00:00:00+00:00' and store_time < '2026-11-23T00:00:00+00:00'"
    )
    assert {each.file.file_path.split("/")[-2] for each in one_day.plan_files()} == {
        "store_time_day=2026-11-22"
    }


def test_plan_lists_gaps_and_leaves_queues_alone_that_the_table_is_ahead_of() -> None:
    states = [QueueState(queue_of(number), 10 * number, 100, LOCATION) for number in range(3)]
    state = LakeState(7, {queue_of(0): 30, queue_of(2): 150, queue_of(9): 5}, ())
    plan = plan_round(states, state)
    assert [(each.queue_id, each.begin, each.end) for each in plan.missing] == [(1, 0, 10)]
    assert plan.ahead == [queue_of(2)]
    assert [(each.queue, each.begin, each.end) for each in plan.ranges] == [
        (queue_of(0), 30, 100),
        (queue_of(1), 10, 100),
    ]
    assert plan.ends == {queue_of(0): 100, queue_of(1): 100, queue_of(2): 150, queue_of(9): 5}


QUEUES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400_000), st.integers(0, 3)), max_size=8)


@given(QUEUES, st.integers(1, 500_000), st.integers(1, 6))
def test_tasks_have_each_planned_offset_once(
    given_queues: list[tuple[int, int, int]], messages_max: int, parallelism: int
) -> None:
    states = [
        QueueState(queue_of(number), low, low + count, replace(LOCATION, node_ip=f"10.0.0.{node}"))
        for number, (low, count, node) in enumerate(given_queues)
    ]
    plan = plan_round(states, LakeState(), messages_max)
    assert plan.message_count <= messages_max + len(states)
    assert plan.message_count + plan.remaining == sum(count for _, count, _ in given_queues)
    tasks = cut_tasks(plan.ranges, parallelism)
    covered = sorted((each.queue, each.begin, each.end) for task in tasks for each in task)
    for each in plan.ranges:
        parts = [part[1:] for part in covered if part[0] == each.queue]
        assert [parts[0][0], *(end for _, end in parts)] == [*(begin for begin, _ in parts), each.end]
        assert parts[0][0] == each.begin
    assert sum(end - begin for _, begin, end in covered) == plan.message_count
    assert all(len({each.location.node_ip for each in task}) == 1 for task in tasks)
