"""`index_keys` and `reshard_topic` on a topic of two brokers, in a local Spark session."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from cluster.client import Admin, ClientError, Message, Producer
from jobs import index_keys, read_queue, reshard_topic
from jobs.job_errors import KeyNotFound, OptionInvalid, TargetExists, TopicNotEmpty
from jobs.reindex.command import app
from tests.jobs.conftest import Orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "journeys"
MESSAGES = 300
CUSTOMERS = 17


@pytest.fixture(scope="module")
def journeys(orders: Orders) -> Orders:
    """Fill TOPIC with JSON bodies; consecutive steps of a customer are in different queues."""
    with Admin(orders.nameservers) as admin:
        admin.create_topic(TOPIC, queues=3)
    with Producer(orders.nameservers) as producer:
        for number in range(MESSAGES):
            customer = number % CUSTOMERS
            body = json.dumps({"customer": {"id": f"c{customer}"}, "step": number}).encode()
            properties = {"customer": f"c{customer}"}
            if number % 3 == 0:
                properties["region"] = f"r{number % 2}"
            keys = [f"k{number}", f"all{number % 2}"]
            producer.send(Message(TOPIC, body, f"tag{number % 2}", keys, properties))
    return orders


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Return the name of a new topic, another one if the test is repeated."""
    return tmp_path.name


def rows_of(spark: SparkSession, orders: Orders, topic: str, **options: Any) -> list[Any]:
    return read_queue(spark, topic, nameservers=orders.nameservers, **options).collect()


def test_index_over_a_property_leads_to_the_messages(spark, journeys: Orders, tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    done = index_keys(spark, TOPIC, path, property="region", nameservers=journeys.nameservers)
    assert (done.messages, done.messages_with_key, done.entries) == (MESSAGES, 100, 100)
    found = spark.read.parquet(path)
    assert found.columns == ["key", "topic", "brokerName", "queueId", "queueOffset", "commitLogOffset"]
    places = {tuple(row[1:]) for row in found.where("key = 'r1'").collect()}
    expected = {
        (row["topic"], row["brokerName"], row["queueId"], row["queueOffset"], row["commitLogOffset"])
        for row in rows_of(spark, journeys, TOPIC)
        if row["properties"].get("region") == "r1"
    }
    assert len(places) == 50
    assert places == expected
    for file in (tmp_path / "index").glob("*.parquet"):  # sorted, for the statistics of Parquet
        keys = [row["key"] for row in spark.read.parquet(str(file)).collect()]
        assert keys == sorted(keys)


def test_index_over_a_json_field_and_over_keys(spark, journeys: Orders, tmp_path: Path) -> None:
    names = journeys.nameservers
    by_field = index_keys(spark, TOPIC, f"{tmp_path}/a", json_field="customer.id", nameservers=names)
    same = index_keys(spark, TOPIC, f"{tmp_path}/b", json_field="$.customer['id']", nameservers=names)
    assert by_field.entries == same.entries == MESSAGES
    found = spark.read.parquet(by_field.path)
    assert found.exceptAll(spark.read.parquet(same.path)).count() == 0
    assert found.where("key = 'c3'").count() == len(range(3, MESSAGES, CUSTOMERS))
    by_keys = index_keys(spark, TOPIC, f"{tmp_path}/c", property="KEYS", nameservers=names)
    assert (by_keys.messages, by_keys.entries) == (MESSAGES, 2 * MESSAGES)
    assert spark.read.parquet(by_keys.path).where("key = 'all1'").count() == MESSAGES // 2


def test_index_refuses_bad_input_and_writes_nothing(spark, journeys: Orders, tmp_path: Path) -> None:
    names, path = journeys.nameservers, tmp_path / "index"
    for key in ({"property": "colour"}, {"json_field": "customer.name"}):
        with pytest.raises(KeyNotFound, match="no message of topic journeys has the"):
            index_keys(spark, TOPIC, str(path), nameservers=names, **key)
    for key in ({}, {"property": "a", "json_field": "b"}, {"property": ""}):
        with pytest.raises(OptionInvalid, match="give one of them"):
            index_keys(spark, TOPIC, str(path), nameservers=names, **key)
    with pytest.raises(OptionInvalid, match="mode='append' is unknown"):
        index_keys(spark, TOPIC, str(path), property="region", nameservers=names, mode="append")
    with pytest.raises(ClientError, match="nowhere"):
        index_keys(spark, "nowhere", str(path), property="region", nameservers=names)
    assert not path.exists()
    path.mkdir()
    with pytest.raises(TargetExists, match="choose another path, or mode='overwrite'"):
        index_keys(spark, TOPIC, str(path), property="region", nameservers=names)
    assert list(path.iterdir()) == []
    assert index_keys(spark, TOPIC, str(path), property="region", nameservers=names, mode="overwrite").entries


def test_resharded_topic_has_each_key_in_one_queue_in_order(spark, journeys: Orders, target: str) -> None:
    receipt = reshard_topic(spark, TOPIC, target, 5, property="customer", nameservers=journeys.nameservers)
    assert receipt.rows == MESSAGES
    source = {bytes(row["body"]): row for row in rows_of(spark, journeys, TOPIC)}
    assert len({(row["brokerName"], row["queueId"]) for row in source.values()}) == 6
    copied = rows_of(spark, journeys, target, committed=True)
    assert {row["queueId"] for row in copied} <= set(range(5))
    queues: dict[str, set[tuple[str, int]]] = defaultdict(set)
    steps: dict[str, list[int]] = defaultdict(list)
    for row in sorted(copied, key=lambda row: (row["brokerName"], row["queueId"], row["queueOffset"])):
        content = json.loads(row["body"])
        customer = content["customer"]["id"]
        queues[customer].add((row["brokerName"], row["queueId"]))
        steps[customer].append(content["step"])
        original = source[bytes(row["body"])]
        assert (row["keys"], row["tags"]) == (original["keys"], original["tags"])
        assert row["properties"].get("region") == original["properties"].get("region")
    assert len(queues) == CUSTOMERS
    assert all(len(each) == 1 for each in queues.values())
    assert len({queue for each in queues.values() for queue in each}) > 5
    sent = read_in_log_order(list(source.values()))
    assert steps == sent


def read_in_log_order(rows: list[Any]) -> dict[str, list[int]]:
    """Return the steps of each customer in the order of store time, broker and position."""
    steps: dict[str, list[int]] = defaultdict(list)
    for row in sorted(
        rows, key=lambda row: (row["storeTimestamp"], row["brokerName"], row["commitLogOffset"])
    ):
        content = json.loads(row["body"])
        steps[content["customer"]["id"]].append(content["step"])
    return steps


def test_reshard_keeps_the_order_of_a_log_whose_clock_was_set_back(spark) -> None:
    from jobs.reindex.reshard import SHARD, _in_order

    rows = [("k", "broker-a", offset, 1000 - offset) for offset in range(10)]
    rows += [("k", "broker-b", offset, 995 + offset) for offset in range(10)]
    frame = spark.createDataFrame(rows, [SHARD, "brokerName", "commitLogOffset", "storeTimestamp"])
    ordered = [(row[1], row[2]) for row in _in_order(frame.orderBy("storeTimestamp"), 2).collect()]
    for broker in ("broker-a", "broker-b"):
        assert [offset for name, offset in ordered if name == broker] == list(range(10))
    assert ordered[:6] == [("broker-b", each) for each in range(5)] + [("broker-a", 0)]


def test_reshard_spreads_messages_without_a_key_only_if_allowed(spark, journeys: Orders, target: str) -> None:
    names = journeys.nameservers
    with pytest.raises(KeyNotFound, match="200 of 300 messages of topic journeys have no property region"):
        reshard_topic(spark, TOPIC, target, 4, property="region", nameservers=names)
    with Admin(names) as admin:
        assert target not in admin.topics()
    receipt = reshard_topic(spark, TOPIC, target, 4, property="region", missing="spread", nameservers=names)
    assert receipt.rows == MESSAGES
    copied = rows_of(spark, journeys, target, committed=True)
    assert {bytes(row["body"]) for row in copied} == {
        bytes(row["body"]) for row in rows_of(spark, journeys, TOPIC)
    }
    without = {(row["brokerName"], row["queueId"]) for row in copied if "region" not in row["properties"]}
    assert len(without) == 8


def test_reshard_refuses_bad_input(spark, journeys: Orders) -> None:
    names = journeys.nameservers
    with pytest.raises(TopicNotEmpty, match="topic journeys had 300 messages already"):
        reshard_topic(spark, "orders", TOPIC, 2, property="KEYS", nameservers=names)
    with pytest.raises(OptionInvalid, match="give the new topic another name"):
        reshard_topic(spark, TOPIC, TOPIC, 2, property="customer", nameservers=names)
    with pytest.raises(OptionInvalid, match="queues=0 must be at least 1"):
        reshard_topic(spark, TOPIC, "other", 0, property="customer", nameservers=names)
    with pytest.raises(OptionInvalid, match="missing='drop' is unknown"):
        reshard_topic(spark, TOPIC, "other", 2, property="customer", missing="drop", nameservers=names)
    with pytest.raises(ClientError, match="nowhere"):
        reshard_topic(spark, "nowhere", "other", 2, property="customer", nameservers=names)


@pytest.mark.extended
def test_commands_index_and_reshard(
    spark, journeys: Orders, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.spark.session.local_session", lambda *_: nullcontext(spark))
    runner, more = CliRunner(), ["-n", journeys.nameservers]
    path = str(tmp_path / "index")
    indexed = runner.invoke(app, ["keys", TOPIC, path, "--field", "customer.id", *more])
    assert indexed.exit_code == 0, indexed.output
    assert f"{path}: 300 entries for 300 of 300 messages of topic {TOPIC}" in indexed.output
    again = runner.invoke(app, ["keys", TOPIC, path, "--property", "region", *more])
    assert (again.exit_code, f"{path} exists" in again.output) == (1, True)
    command = ["topic", TOPIC, target, "--queues", "2", "--json", *more]
    copied = runner.invoke(app, [*command, "--property", "customer"])
    assert copied.exit_code == 0, copied.output
    assert json.loads(copied.output)["rows"] == MESSAGES
    refused = runner.invoke(app, command)
    assert (refused.exit_code, "give one of them" in refused.output) == (2, True)
