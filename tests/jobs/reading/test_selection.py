"""Selecting messages by tag and by SQL92 expression, in mapped and in fetched reads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from cluster.client import Admin, Message, MessageQueue, MessageSelector, Producer
from jobs import read_queue, read_stream
from jobs.job_errors import DataLoss, OptionInvalid
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.selection import parse_selector
from jobs.reading.splits import Split
from store.consumequeue.unit import FILLER, UNIT_BYTES
from store.message.tags import tags_code
from tests.eventually import LIMIT_S
from tests.jobs.conftest import MESSAGES, TOPIC, Orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
TAGS = ("Aa", "BB", "other", None)
SQL = "a > 10 AND region IN ('x', 'y')"
MATCHING = [n for n in range(60) if n > 10 and n % 3 < 2]


@pytest.fixture(scope="module")
def topic(orders: Orders) -> str:
    """Return a topic with 60 messages in one queue. The first two tags have the same tags code."""
    name = f"selected-{uuid4().hex[:8]}"
    assert tags_code("Aa") == tags_code("BB")
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(name, queues=1)
        queue = MessageQueue(name, "broker-a", 0)
        for n in range(60):
            properties = {"a": str(n), "region": "xyz"[n % 3]}
            producer.send(Message(name, b"%d" % n, TAGS[n % 4], properties=properties), queue=queue)
    return name


def splits(orders: Orders, topic: str) -> list[Split]:
    states = describe_topic(orders.nameservers, topic)
    return [Split(s.queue, 0, s.max_offset, s.location) for s in states if s.max_offset]


@pytest.fixture
def copied(orders: Orders, tmp_path: Path) -> Callable[[str], Split]:
    """Return a function that copies the store with the queue of a topic, and returns its split there."""

    def copy(topic: str) -> Split:
        (split,) = splits(orders, topic)
        being_saved = shutil.ignore_patterns("*.new")  # tables being saved: these files may vanish
        root = shutil.copytree(split.location.store_root, tmp_path / "store", ignore=being_saved)
        return replace(split, location=replace(split.location, store_root=str(root)))

    return copy


def bodies(
    found: Iterable[Split], selector: MessageSelector, *, map_files: bool = True, fail: bool = True
) -> list[int]:
    reader = SplitsReader(list(found), ("body",), fail, map_files, selector)
    batches = list(reader.read_all())
    assert all(batch.schema.names == ["body"] for batch in batches)
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize("map_files", [True, False])
def test_tags_select_by_text_and_not_only_by_hash(orders: Orders, topic: str, map_files: bool) -> None:
    def read(tags: str) -> list[int]:
        return bodies(splits(orders, topic), parse_selector(tags, None), map_files=map_files)

    assert read("Aa") == list(range(0, 60, 4))
    assert read(" BB || other ") == [n for n in range(60) if n % 4 in (1, 2)]
    assert read("*") == read("Aa || *") == list(range(60))
    assert read("unknown") == []


@pytest.mark.parametrize("map_files", [True, False])
def test_sql_selects_by_properties(orders: Orders, topic: str, map_files: bool) -> None:
    def read(sql: str) -> list[int]:
        return bodies(splits(orders, topic), parse_selector(None, sql), map_files=map_files)

    assert read(SQL) == MATCHING
    assert read("TAGS IS NULL AND a BETWEEN 0 AND 9") == [3, 7]
    assert read("missing = 1") == []


@pytest.mark.parametrize("map_files", [True, False])
def test_tags_select_the_same_over_many_files(orders: Orders, map_files: bool) -> None:
    found = bodies(splits(orders, TOPIC), MessageSelector.by_tag("tag-1"), map_files=map_files)
    assert sorted(found) == list(range(1, MESSAGES, 3))


def test_damaged_record_is_lost_only_if_it_may_match(copied: Callable[[str], Split], topic: str) -> None:
    split = copied(topic)
    reader = SplitsReader([split], ("commitLogOffset",), True, True)
    offsets = [offset for batch in reader.read_all() for offset in batch.column(0).to_pylist()]
    offset = offsets[14]  # its tag is "other", a = 14, region = z
    for log in (Path(split.location.store_root) / "commitlog").iterdir():
        base = int(log.name)
        if base <= offset < base + log.stat().st_size:
            with log.open("r+b") as file:
                file.seek(offset - base)
                file.write(b"\xff" * 8)
    for selector in (MessageSelector.by_sql("region = 'z'"), MessageSelector.by_tag("other")):
        with pytest.raises(DataLoss, match=r"\[14, 15\)"):
            bodies([split], selector)
        assert 14 not in bodies([split], selector, fail=False)
    assert bodies([split], MessageSelector.by_tag("Aa")) == list(range(0, 60, 4))


@pytest.mark.parametrize("map_files", [True, False])
@pytest.mark.parametrize("tags", ["*", "other"])
def test_only_the_message_of_an_invalid_unit_is_lost(orders: Orders, map_files: bool, tags: str) -> None:
    name = f"gap-{uuid4().hex[:8]}"
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(name, queues=1)
        for n in range(10):
            message = Message(name, b"%d" % n, "other")
            producer.send(message, queue=MessageQueue(name, "broker-b", 0))
    (split,) = splits(orders, name)
    units = Path(split.location.store_root) / "consumequeue" / name / "0" / f"{0:020d}"
    descriptor = os.open(units, os.O_RDWR)
    os.pwrite(descriptor, FILLER, 4 * UNIT_BYTES)
    os.close(descriptor)
    part = replace(split, end=8)
    selector = parse_selector(tags, None)
    with pytest.raises(DataLoss, match=r"1 requested messages are missing: .*\[4, 5\)"):
        bodies([part], selector, map_files=map_files)
    assert bodies([part], selector, map_files=map_files, fail=False) == [0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(
    ("tags", "sql", "fault"),
    [
        ("a", "a = 1", "give one"),
        ("||", None, r"tags='\|\|' is invalid"),
        ("", None, "tags='' is invalid"),
        (7, None, "tags=7 is invalid"),
        (None, "a >", "the SQL92 expression 'a >' is invalid"),
        (None, 7, "expression is 7"),
    ],
)
def test_invalid_tags_and_expressions_are_refused(tags: Any, sql: Any, fault: str) -> None:
    with pytest.raises(OptionInvalid, match=fault):
        parse_selector(tags, sql)


@pytest.mark.spark
def test_spark_reads_and_streams_only_selected_messages(
    spark: SparkSession, orders: Orders, topic: str, tmp_path: Path
) -> None:
    frame = read_queue(spark, topic, nameservers=orders.nameservers, columns=["body"], tags="Aa || other")
    assert sorted(int(row["body"]) for row in frame.collect()) == list(range(0, 60, 2))
    checkpoint = str(tmp_path / "checkpoint")
    stream = read_stream(
        spark,
        topic,
        checkpointLocation=checkpoint,
        nameservers=orders.nameservers,
        startingOffsets="earliest",
        columns=["body"],
        sql=SQL,
    )
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "output"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT_S))
    rows = spark.read.schema("body binary").parquet(str(tmp_path / "output")).collect()
    assert sorted(int(row["body"]) for row in rows) == MATCHING
    with pytest.raises(OptionInvalid, match="'a >' is invalid"):
        read_queue(spark, topic, nameservers=orders.nameservers, sql="a >")
