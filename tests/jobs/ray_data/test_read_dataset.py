"""`read_dataset` in a real Ray: rows, offsets, times, tasks and refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.client import Admin, ClientError, MessageQueue, Producer
from jobs import commit_read, read_dataset
from jobs.job_errors import CommitRefused, DataLoss, OffsetsInvalid, OptionInvalid
from jobs.reading.describe import describe_topic
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import ReadPlan, plan_read
from jobs.reading.schema import ALL_COLUMNS
from store.message.group_config import SubscriptionGroupConfig
from tests.jobs.conftest import MESSAGES, TOPIC, Orders

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_data")]


def test_read_returns_all_messages_with_all_columns(orders: Orders) -> None:
    from jobs.ray_data.read import arrow_schema

    dataset = read_dataset(TOPIC, nameservers=orders.nameservers)
    assert dataset.schema().base_schema.equals(arrow_schema(ALL_COLUMNS))
    assert dataset.count() == MESSAGES + 1
    rows = dataset.take_all()
    assert sorted(row["body"] for row in rows) == sorted(orders.sent)
    special = next(row for row in rows if row["tags"] == "späte")
    assert dict(special["properties"])["color"] == "blå"
    assert special["keys"] == "a b"


@pytest.mark.parametrize("map_files", [True, False])
def test_several_tasks_read_one_queue(orders: Orders, map_files: bool) -> None:
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        topic = f"one-queue-{map_files}"
        admin.create_topic(topic, queues=1)
        queue = MessageQueue(topic, "broker-b", 0)
        producer.send_many(topic, [b"%d" % number for number in range(1_000)], queue=queue)
    dataset = read_dataset(
        topic,
        nameservers=orders.nameservers,
        columns=["queueOffset", "body"],
        map_files=map_files,
        override_num_blocks=4,
    )
    assert dataset.materialize().num_blocks() == 4
    rows = sorted(dataset.take_all(), key=lambda row: row["queueOffset"])
    assert [(row["queueOffset"], int(row["body"])) for row in rows] == [(n, n) for n in range(1_000)]


def test_datasource_makes_one_task_per_split(orders: Orders) -> None:
    from jobs.ray_data.read import QueueDatasource

    plan = plan_read(ReadOptions(TopicNames((TOPIC,)), nameservers=orders.nameservers, columns=("body",)))
    source = QueueDatasource(plan)
    tasks = source.get_read_tasks(12)
    assert 12 <= len(tasks) <= 12 + len(plan.ranges)
    assert sum(task.metadata.num_rows or 0 for task in tasks) == MESSAGES + 1
    assert source.estimate_inmemory_data_size() > MESSAGES


def test_offsets_select_a_range_of_each_queue(orders: Orders) -> None:
    dataset = read_dataset(
        TOPIC,
        nameservers=orders.nameservers,
        start_offset={TOPIC: {"broker-a": {0: 10, 1: "latest", 2: "latest"}}},
        end_offset={TOPIC: {"broker-a": {0: 30}, "broker-b": {0: 7, 1: "earliest", 2: "earliest"}}},
        columns=["brokerName", "queueOffset"],
    )
    found = sorted((row["brokerName"], row["queueOffset"]) for row in dataset.take_all())
    assert found == [*(("broker-a", n) for n in range(10, 30)), *(("broker-b", n) for n in range(7))]


def test_datetimes_select_by_store_time(orders: Orders) -> None:
    now = datetime.now(UTC)
    before, after = now - timedelta(days=1), now + timedelta(days=1)

    def count(**offsets: datetime) -> int:
        return read_dataset(TOPIC, nameservers=orders.nameservers, **offsets).count()

    assert count(start_offset=before) == count(end_offset=after.replace(tzinfo=None)) == MESSAGES + 1
    assert count(start_offset=after) == count(end_offset=before) == 0


def test_empty_read_has_all_columns(orders: Orders) -> None:
    dataset = read_dataset(TOPIC, nameservers=orders.nameservers, start_offset="latest")
    assert (dataset.count(), dataset.schema().names) == (0, list(ALL_COLUMNS))


def test_missing_offsets_fail_the_read_or_are_skipped(orders: Orders) -> None:
    beyond = 1 + max(state.max_offset for state in describe_topic(orders.nameservers, TOPIC))
    with pytest.raises(DataLoss, match=r"orders/broker-a/0 .*fail_on_data_loss"):
        read_dataset(TOPIC, nameservers=orders.nameservers, end_offset=beyond)
    dataset = read_dataset(
        TOPIC, nameservers=orders.nameservers, end_offset=beyond, fail_on_data_loss=False, columns=["body"]
    )
    assert dataset.count() == MESSAGES + 1


def test_lost_log_file_fails_the_read_with_queue_and_range(orders: Orders, tmp_path: Path) -> None:
    import ray.data

    from jobs.ray_data.read import QueueDatasource

    options = ReadOptions(TopicNames((TOPIC,)), nameservers=orders.nameservers, columns=("body",))
    plan = plan_read(options)
    split = max(plan.ranges, key=lambda each: each.message_count)
    being_saved = shutil.ignore_patterns("*.new")  # tables being saved: these files may vanish
    root = Path(shutil.copytree(split.location.store_root, tmp_path / "store", ignore=being_saved))
    min((root / "commitlog").iterdir()).unlink()
    broken = replace(split, location=replace(split.location, store_root=str(root)))

    def source(fail_on_data_loss: bool) -> QueueDatasource:
        return QueueDatasource(ReadPlan(replace(options, fail_on_data_loss=fail_on_data_loss), [broken]))

    names = f"{TOPIC}/{split.queue.broker_name}/{split.queue.queue_id}"
    with pytest.raises(DataLoss, match=rf"{names} \[0, \d+\): CommitLog file .*fail_on_data_loss"):
        ray.data.read_datasource(source(True)).materialize()
    left = ray.data.read_datasource(source(False)).count()
    assert 0 < left < split.message_count


def test_invalid_options_are_refused_by_the_driver(orders: Orders) -> None:
    nameservers = orders.nameservers
    with pytest.raises(OptionInvalid, match="trigger='continuous'"):
        read_dataset(TOPIC, nameservers=nameservers, trigger="continuous")  # type: ignore[arg-type]
    with pytest.raises(OptionInvalid, match="columns"):
        read_dataset(TOPIC, nameservers=nameservers, columns=["value"])
    with pytest.raises(OptionInvalid, match="unknown option start_ofset='latest': did you mean start_offset"):
        read_dataset(TOPIC, nameservers=nameservers, start_ofset="latest")
    with pytest.raises(OptionInvalid, match="committed='no'"):
        read_dataset(TOPIC, nameservers=nameservers, committed="no")  # type: ignore[arg-type]
    with pytest.raises(OffsetsInvalid, match="start_offset='yesterday'"):
        read_dataset(TOPIC, nameservers=nameservers, start_offset="yesterday")
    with pytest.raises(OffsetsInvalid, match="end_offset lists queues that do not exist: orders/broker-x/0"):
        read_dataset(TOPIC, nameservers=nameservers, end_offset={TOPIC: {"broker-x": {0: 1}}})
    by_queue = {TOPIC: {"broker-a": {0: -1}}}
    negative: list[tuple[str, Any]] = [
        ("start_offset", -1), ("end_offset", -2), ("start_offset", "-1"), ("start_offset", by_queue),
    ]  # fmt: skip
    for option, offset in negative:
        with pytest.raises(OffsetsInvalid, match="is negative: give 0 or more, 'earliest' or 'latest'"):
            read_dataset(TOPIC, nameservers=nameservers, **{option: offset})
    with pytest.raises(OffsetsInvalid, match="start_offset 9 is greater than end_offset 3"):
        read_dataset(TOPIC, nameservers=nameservers, start_offset=9, end_offset=3)
    with pytest.raises(ClientError, match="unknown-topic"):
        read_dataset("unknown-topic", nameservers=nameservers)


def test_several_topics_are_read_by_list_or_pattern(orders: Orders) -> None:
    topics = ["dataset-first", "dataset-second"]
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        for topic in topics:
            admin.create_topic(topic, queues=1)
            producer.send_many(topic, [b"x"] * 5)
    for chosen in ({"topic": topics}, {"topic_pattern": "dataset-(first|second)"}):
        dataset = read_dataset(nameservers=orders.nameservers, columns=["topic"], **chosen)
        assert sorted(row["topic"] for row in dataset.take_all()) == [topics[0]] * 5 + [topics[1]] * 5
    with pytest.raises(OptionInvalid, match="topic_pattern='x': give one of them"):
        read_dataset("orders", topic_pattern="x", nameservers=orders.nameservers)


def test_tags_select_messages(orders: Orders) -> None:
    dataset = read_dataset(TOPIC, nameservers=orders.nameservers, tags="tag-1 || späte", columns=["tags"])
    assert dataset.count() == MESSAGES // 3 + 1
    assert set(dataset.unique("tags")) == {"tag-1", "späte"}


def test_dataset_from_group_offsets_is_committed(orders: Orders) -> None:
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic("dataset-billed", queues=1)
        admin.put_group(SubscriptionGroupConfig("dataset-billing"))
        queue = MessageQueue("dataset-billed", "broker-a", 0)
        producer.send_many(queue.topic, [b"1", b"2"], queue=queue)
        dataset = read_dataset(
            queue.topic, nameservers=orders.nameservers, start_offset="group:dataset-billing"
        )
        assert dataset.count() == 2
        assert commit_read(dataset) == {queue: 2}
        assert admin.committed_offsets("dataset-billing", queue.topic)[queue] == 2
    again = read_dataset(queue.topic, nameservers=orders.nameservers, start_offset="group:dataset-billing")
    assert again.count() == 0
    with pytest.raises(CommitRefused, match="start_offset"):
        commit_read(again.select_columns(["body"]))
