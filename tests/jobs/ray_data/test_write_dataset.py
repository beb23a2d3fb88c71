"""`write_dataset` in a real Ray: content, a task that is retried, commits and refusals."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster.client import Admin
from jobs import read_dataset, write_dataset
from jobs.job_errors import OptionInvalid, TopicNotEmpty, WriteFailed
from jobs.writing.commit import prepare_topic
from jobs.writing.write_job import BUFFER_BYTES, WriteColumns, new_job
from store.common.clock import SystemClock
from tests.jobs.conftest import Orders

if TYPE_CHECKING:
    import ray.data
    from ray.data.block import Block

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_data")]


def create(orders: Orders, topic: str) -> str:
    with Admin(orders.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def numbers(rows: int) -> ray.data.Dataset:
    import ray.data

    return ray.data.from_items(
        [{"body": b"%d" % n, "name": f"key-{n}", "customer": n % 7} for n in range(rows)],
        override_num_blocks=3,
    )


def read(orders: Orders, topic: str, *, committed: bool) -> list[tuple[int, str]]:
    dataset = read_dataset(
        topic, nameservers=orders.nameservers, columns=["body", "uniqKey"], committed=committed
    )
    rows = [(int(row["body"]), row["uniqKey"]) for row in dataset.take_all()]
    assert dataset.count() == len(rows)
    return sorted(rows)


def test_write_stores_all_columns_and_commits(orders: Orders) -> None:
    topic = create(orders, "dataset-written")
    receipt = write_dataset(
        numbers(2_000),
        topic,
        nameservers=orders.nameservers,
        key="name",
        tag="customer",
        sharding_key="customer",
    )
    assert (receipt.topic, receipt.rows) == (topic, 2_000)
    rows = read_dataset(topic, nameservers=orders.nameservers, committed=True).take_all()
    assert sorted(int(row["body"]) for row in rows) == list(range(2_000))
    assert all(row["keys"] == f"key-{int(row['body'])}" for row in rows)
    assert len({row["uniqKey"] for row in rows}) == 2_000
    places = {(row["tags"], row["brokerName"], row["queueId"]) for row in rows}
    assert len(places) == 7


def test_committed_read_returns_rows_of_a_killed_task_once(orders: Orders, tmp_path: Path) -> None:
    from jobs.ray_data.write import QueueDatasink

    class CrashingDatasink(QueueDatasink):
        """Kills the process of the first task after its rows are stored."""

        def write(self, blocks: Iterable[Block], ctx: Any) -> bytes:
            receipt = super().write(blocks, ctx)
            if ctx.task_idx == 0 and not marker.exists():
                marker.touch()
                os._exit(1)
            return receipt

    marker = tmp_path / "crashed"
    topic = create(orders, "dataset-retried")
    columns = WriteColumns("body")
    job = new_job(topic, orders.nameservers, columns, BUFFER_BYTES, SystemClock().wall_ms())
    prepare_topic(job, "append")
    sink = CrashingDatasink(job)
    numbers(300).write_datasink(sink)
    assert marker.exists()
    assert sink.receipt.rows == 300
    committed, stored = (read(orders, topic, committed=each) for each in (True, False))
    assert [number for number, _ in committed] == list(range(300))
    assert len(stored) > 300
    assert set(stored) == set(committed)  # a row that is stored twice has one UNIQ_KEY
    with pytest.raises(OptionInvalid, match="create a new QueueDatasink"):
        numbers(3).write_datasink(sink)


def test_failed_write_names_topic_rows_and_remedy(orders: Orders) -> None:
    topic = create(orders, "dataset-failed")
    import ray.data

    dataset = ray.data.from_items([{"body": b"x"}, {"body": b""}], override_num_blocks=1)
    with pytest.raises(WriteFailed, match="row 1: the body is missing or empty") as failed:
        write_dataset(dataset, topic, nameservers=orders.nameservers)
    assert str(failed.value).startswith(f"topic {topic}: rows [0, 2) of partition 0")
    assert "write again" in str(failed.value)
    assert read(orders, topic, committed=True) == []


def test_invalid_arguments_are_refused(orders: Orders) -> None:
    topic = create(orders, "dataset-refused")
    with pytest.raises(
        OptionInvalid, match="key='nothing' is not a column of the data: use one of body, name"
    ):
        write_dataset(numbers(3), topic, nameservers=orders.nameservers, key="nothing")
    with pytest.raises(OptionInvalid, match="delay=-1 must be a column, or an integer of at least 0"):
        write_dataset(numbers(3), topic, nameservers=orders.nameservers, delay=-1)
    write_dataset(numbers(3), topic, nameservers=orders.nameservers)
    with pytest.raises(TopicNotEmpty, match="contains 3 messages"):
        write_dataset(numbers(3), topic, nameservers=orders.nameservers, mode="errorifexists")


def test_rows_of_functions_are_written(orders: Orders) -> None:
    topic = create(orders, "dataset-mapped")
    import ray.data

    dataset = ray.data.range(4, override_num_blocks=1).map(
        lambda row: {
            "body": str(row["id"]),
            "key": None if row["id"] < 2 else f"k{row['id']}",
            "properties": {"even": "yes"} if row["id"] % 2 == 0 else {"odd": "yes", "n": str(row["id"])},
        }
    )
    write_dataset(dataset, topic, nameservers=orders.nameservers, key="key", properties="properties")
    with Admin(orders.nameservers) as admin:
        found = {
            message.body: (message.keys, message.properties.get("even"), message.properties.get("n"))
            for queue, end in admin.end_offsets(topic).items()
            for message in admin.messages_at(queue, 0, end)
        }
    assert found == {
        b"0": (None, "yes", None),
        b"1": (None, None, "1"),
        b"2": ("k2", "yes", None),
        b"3": ("k3", None, "3"),
    }


def test_function_without_the_body_column_fails_by_name(orders: Orders) -> None:
    topic = create(orders, "dataset-no-body")
    import ray.data

    dataset = ray.data.range(2, override_num_blocks=1).map(lambda row: {"text": str(row["id"])})
    with pytest.raises((OptionInvalid, WriteFailed), match="'body'"):
        write_dataset(dataset, topic, nameservers=orders.nameservers)
