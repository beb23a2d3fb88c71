"""Reads of history: each message once, whether it is in the table, in the log, or in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.client import Admin, MessageQueue
from jobs.job_errors import DataLoss, FetchFailed, OffsetsInvalid, OptionInvalid
from jobs.lake.bodies import LakeBodies
from jobs.lake.catalogs import ERRORS_SUFFIX, LakeSettings, open_catalog
from jobs.lake.history import plan_lake_read
from jobs.lake.lake_table import LakeGap, LakeTable
from jobs.reading.describe import describe_topic
from jobs.reading.group_offsets import commit_read
from jobs.reading.options.lake_options import LakeOptions, parse_lake
from jobs.reading.options.read_options import Edge, ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import ReadPlan, plan_read
from jobs.reading.row_filters import DROPMALFORMED
from jobs.reading.selection import parse_selector
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from jobs.reading.times import Times
from store.message.group_config import SubscriptionGroupConfig
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic
from tests.jobs.lake.lake_files import rows_of, write_days, write_rows

DAY = timedelta(days=1)
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
ORDER = [(name, "ascending") for name in ("brokerName", "queueId", "queueOffset")]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        yield HistoryTopic(running.cluster.nameserver_address, tmp_path_factory.mktemp("lake"))
    finally:
        running.stop()


def test_history_and_tail_are_the_rows_of_the_log(topic: HistoryTopic) -> None:
    plan = topic.plan()
    assert sum(each.message_count for each in plan.tables) == 300
    assert sum(each.message_count for each in plan.ranges) == 100
    log = plan_read(ReadOptions(TopicNames((TOPIC,)), nameservers=topic.nameservers))
    assert rows_of(plan).sort_by(ORDER).equals(rows_of(log).sort_by(ORDER))


def test_table_alone_is_read_without_a_cluster(topic: HistoryTopic) -> None:
    lake = LakeOptions(False, topic.warehouse)
    plan = plan_lake_read(ReadOptions(TopicNames((TOPIC,)), nameservers="127.0.0.1:1", lake=lake))
    assert not plan.ranges
    assert sorted(map(int, rows_of(plan)["body"].to_pylist())) == list(range(300))


def test_snapshot_is_fixed_when_the_read_is_planned(tmp_path: Path) -> None:
    table, plan = _days(tmp_path, 2), lambda: _plan_days(tmp_path)
    before = plan()
    write_days(table, [FIRST + 2 * DAY], begin=20)
    assert [len(_offsets(each)) for each in (before, plan())] == [20, 30]


@pytest.mark.parametrize("partitions", [1, 3, 8, 100])
def test_splits_have_each_row_once(topic: HistoryTopic, partitions: int) -> None:
    plan = topic.plan()
    splits = plan.splits(partitions)
    assert len(splits) >= min(partitions, 2)
    bodies = [
        body
        for each in splits
        for batch in plan.reader([each]).read_all()
        for body in batch["body"].to_pylist()
    ]
    assert sorted(map(int, bodies)) == list(range(400))


def test_splits_join_small_files_and_cut_large_ones(topic: HistoryTopic) -> None:
    plan = topic.plan(has_tail=False)
    assert len(plan.splits(1)) == 1
    assert len(plan.splits(1)[0].parts) == 2  # type: ignore[union-attr]
    assert max(each.message_count for each in plan.splits(1, max_records_per_partition=40)) <= 40
    assert len(plan.splits(6)) >= 6


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("keys = 'key-7' or keys = 'key-350'", [7, 350]),
        ("queueOffset < 0", []),
        ("tags in ('tag-1') and storeTimestamp >= '2026-01-01T00:00:00+00:00'", list(range(1, 400, 3))),
        ("keys = 'key-7' and tags is null", []),
    ],
)
def test_expression_selects_rows_of_table_and_log(
    topic: HistoryTopic, where: str, expected: list[int]
) -> None:
    assert topic.numbers(where=where, columns=("body",)) == expected


def test_expression_on_queues_selects_the_same_rows_as_the_columns(topic: HistoryTopic) -> None:
    rows = rows_of(topic.plan(where="queueId = 1 and brokerName = 'broker-b'"))
    assert rows.num_rows
    assert set(zip(*(rows[name].to_pylist() for name in ("brokerName", "queueId")), strict=True)) == {
        ("broker-b", 1)
    }


@pytest.mark.parametrize(
    "where", ["size = 1", "queueId =", "queueId = 'x'", "storeTimestamp > 'yesterday'", "topic = 'orders'"]
)
def test_expression_that_is_not_one_on_columns_is_refused(topic: HistoryTopic, where: str) -> None:
    with pytest.raises(OptionInvalid, match=r"is invalid: .*Give an expression on brokerName, queueId"):
        topic.plan(where=where)


def test_tags_and_sql_select_rows_of_table_and_log(topic: HistoryTopic) -> None:
    assert topic.numbers(selector=parse_selector("tag-0 || tag-9", None)) == list(range(0, 400, 3))
    assert topic.numbers(selector=parse_selector(None, "size BETWEEN 298 AND 301")) == [298, 299, 300, 301]


def _edge(option: str, default: int, listed: dict[MessageQueue, int]) -> Edge:
    return Edge(option, Offsets(default, listed))


def test_offsets_select_a_range_across_table_and_log(topic: HistoryTopic) -> None:
    for state in describe_topic(topic.nameservers, TOPIC):
        border = topic.table.state().offsets[state.queue]
        assert 5 < border < state.max_offset
        for begin, end in ((5, border + 2), (2, border - 1), (border, border + 1), (border + 1, border + 2)):
            others = {each.queue: 0 for each in describe_topic(topic.nameservers, TOPIC)}
            read = topic.plan(
                starting=_edge("startingOffsets", EARLIEST, {state.queue: begin}),
                ending=_edge("endingOffsets", LATEST, {**others, state.queue: end}),
            )
            assert rows_of(read).sort_by(ORDER)["queueOffset"].to_pylist() == list(range(begin, end))
    queue = state.queue
    with pytest.raises(OffsetsInvalid, match="is greater than endingOffsets"):
        topic.plan(
            starting=_edge("s", EARLIEST, {queue: 4}), ending=_edge("endingOffsets", LATEST, {queue: 3})
        )
    with pytest.raises(DataLoss, match="after the end of the queue"):
        topic.plan(ending=_edge("endingOffsets", LATEST, {queue: 10_000}))
    assert rows_of(topic.plan(starting=Edge("startingOffsets", Offsets(LATEST)))).num_rows == 0


def test_offsets_of_a_group_lie_in_history(topic: HistoryTopic) -> None:
    with Admin(topic.nameservers) as admin:
        admin.put_group(SubscriptionGroupConfig("history-reader"))
        queue = describe_topic(topic.nameservers, TOPIC)[0].queue
        admin.commit_offsets("history-reader", {queue: 3})
    plan = topic.plan(starting=Edge("startingOffsets", Offsets(EARLIEST), None, "history-reader"))
    rows = rows_of(plan)
    assert rows.num_rows == 400 - 3
    plan.remember(topic)
    ends = {each.queue: each.max_offset for each in describe_topic(topic.nameservers, TOPIC)}
    assert commit_read(topic) == ends


def _days(tmp_path: Path, count: int, gaps: Sequence[LakeGap] = ()) -> LakeTable:
    """Return a table with one file of ten messages for each day."""
    table = LakeTable.create(open_catalog(LakeSettings(str(tmp_path))), "raymq", TOPIC)
    write_days(table, [FIRST + number * DAY for number in range(count)], gaps=gaps)
    return table


def _plan_days(tmp_path: Path, where: str = "", **options: Any) -> ReadPlan:
    lake = LakeOptions(False, str(tmp_path), where=where)
    return plan_lake_read(ReadOptions(TopicNames((TOPIC,)), lake=lake, **options))


def _offsets(plan: ReadPlan) -> list[int]:
    return rows_of(plan)["queueOffset"].to_pylist()


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def test_times_and_expressions_read_only_the_files_of_their_days(tmp_path: Path) -> None:
    _days(tmp_path, 30)
    begin, end = FIRST + 7 * DAY, FIRST + 9 * DAY

    def check(plan: ReadPlan) -> None:
        assert [each.rows for table in plan.tables for each in table.parts] == [10, 10]
        assert _offsets(plan) == list(range(70, 90))

    check(
        _plan_days(
            tmp_path,
            starting=Edge("startingOffsets", Offsets(EARLIEST), Times("startingTimestamp", _ms(begin))),
            ending=Edge("endingOffsets", Offsets(LATEST), Times("endingTimestamp", _ms(end))),
        )
    )
    check(
        _plan_days(
            tmp_path, f"storeTimestamp >= '{begin.isoformat()}' and storeTimestamp < '{end.isoformat()}'"
        )
    )
    assert [len(_plan_days(tmp_path, text).tables) for text in ("keys = 'x'", "queueId = 1")] == [0, 0]
    assert sum(len(each.parts) for each in _plan_days(tmp_path, "keys = 'key-00123'").tables) == 1


def test_gap_fails_the_reads_that_would_return_its_messages(tmp_path: Path) -> None:
    beginning, middle = LakeGap("broker-a", 0, 0, 10), LakeGap("broker-a", 0, 45, 50)
    _days(tmp_path, 10, gaps=(beginning, middle))
    with pytest.raises(DataLoss, match=r"history/broker-a/0 \[45, 50\): deleted from the log before"):
        _plan_days(tmp_path)
    assert len(_offsets(_plan_days(tmp_path, fail_on_data_loss=False))) == 85
    after = Edge("startingOffsets", Offsets(EARLIEST), Times("startingTimestamp", _ms(FIRST + 6 * DAY)))
    assert _offsets(_plan_days(tmp_path, starting=after)) == list(range(60, 100))
    before = Edge("endingOffsets", Offsets(LATEST), Times("endingTimestamp", _ms(FIRST + 4 * DAY)))
    assert _offsets(_plan_days(tmp_path, ending=before)) == list(range(10, 40))
    around = Edge("startingOffsets", Offsets(EARLIEST), Times("startingTimestamp", _ms(FIRST + 4 * DAY)))
    with pytest.raises(DataLoss):
        _plan_days(tmp_path, starting=around)
    with pytest.raises(DataLoss, match="before the first offset, 10"):
        _plan_days(tmp_path, starting=_edge("s", 0, {}), ending=_edge("e", 40, {}))


def test_log_that_lacks_what_the_table_does_not_have_fails(topic: HistoryTopic, tmp_path: Path) -> None:
    lake = LakeOptions(True, str(tmp_path))
    queue = describe_topic(topic.nameservers, TOPIC)[0]
    table = LakeTable.create(open_catalog(LakeSettings(str(tmp_path))), "raymq", TOPIC)
    table.commit([], {queue.queue: queue.max_offset + 7}, (), table.state())
    options = ReadOptions(TopicNames((TOPIC,)), nameservers=topic.nameservers, lake=lake)
    with pytest.raises(DataLoss, match=f"the log ends at {queue.max_offset}, before the table"):
        plan_lake_read(options)


def test_file_that_is_gone_is_named(tmp_path: Path) -> None:
    _days(tmp_path, 1)
    plan = _plan_days(tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(
        FetchFailed, match=r"history: the file .*\.parquet of its table cannot be read: .*expired"
    ):
        rows_of(plan)


def test_table_of_decoded_columns_is_read_with_its_errors(tmp_path: Path) -> None:
    catalog = open_catalog(LakeSettings(str(tmp_path)))
    table = LakeTable.create(catalog, "raymq", TOPIC, bodies=LakeBodies("amount BIGINT"))
    errors = LakeTable.create(catalog, "raymq", TOPIC, suffix=ERRORS_SUFFIX)
    queue = MessageQueue(TOPIC, "broker-a", 0)
    errors.commit([write_rows(errors, [3, 12], "errors")], {queue: 20}, (), errors.state())
    files = [write_rows(table, [0, 1, 2, 4, 5, 6, 7, 8, 9], "decoded")]
    table.commit(files, {queue: 10}, (), table.state())
    with pytest.raises(OptionInvalid, match="decoded columns instead of bodies: give columns= without body"):
        _plan_days(tmp_path)
    rows = rows_of(_plan_days(tmp_path, columns=("queueOffset", "keys")))
    assert sorted(rows["queueOffset"].to_pylist()) == list(range(10))


def test_topic_without_a_table_is_refused(topic: HistoryTopic, tmp_path: Path) -> None:
    options = ReadOptions(TopicNames(("other",)), lake=LakeOptions(False, topic.warehouse))
    with pytest.raises(OptionInvalid, match=r"topic other has no table in the warehouse .*warehouse="):
        plan_lake_read(options)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("yes", None, None, None), "lake='yes' is unknown: give 'only'"),
        ((True, None, None, None), "lake=True is unknown"),
        ((None, "lake", None, "queueId = 1"), "warehouse, where: give also lake="),
        (("only", "", None, None), "warehouse='' is invalid"),
        (("only", None, "sqlite", None), "catalog='sqlite' is invalid: give PyIceberg's properties"),
        (("only", None, None, " "), "where=' ' is invalid: give an expression"),
    ],
)
def test_lake_options_with_invalid_values_are_refused(given: tuple[Any, ...], error: str) -> None:
    with pytest.raises(OptionInvalid, match=error):
        parse_lake(*given)


def test_lake_options_that_contradict_others_are_refused() -> None:
    only, tail = parse_lake("only"), parse_lake("With_Tail")
    group = Edge("startingOffsets", Offsets(EARLIEST), None, "billing")
    times = Edge("endingOffsets", Offsets(LATEST), Times("endingTimestamp", _ms(FIRST)))
    names = TopicNames((TOPIC,))
    with pytest.raises(OptionInvalid, match="manifests"):
        ReadOptions(names, lake=tail, committed=True)
    with pytest.raises(OptionInvalid, match="mode='DROPMALFORMED' and lake"):
        ReadOptions(names, lake=tail, mode=DROPMALFORMED)
    for options in ({"lake": only, "starting": group}, {"lake": tail, "starting": group, "ending": times}):
        with pytest.raises(OptionInvalid, match="offsets of group billing"):
            ReadOptions(names, **options)  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="reads no topics by a pattern"):
        ReadOptions(TopicNames(pattern="hist.*"), lake=only)
