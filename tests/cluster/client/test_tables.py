"""Sending tables: content and order of the stored rows, also if a broker fails during the send."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from actors.wire.codes import RayMQRequestCode
from cluster.client import Admin, MessageQueue, Producer, ProducerConfig, PullConsumer, TableReceipt
from cluster.client.errors import ConfigInvalid, MessageRejected, TableSendFailed, TopicNotFound
from store.message.message_id import UniqKeyBlock, UniqKeySequence
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, NEVER_S, eventually

from .conftest import Cluster, ResponseDroppingProxy

SMALL_BATCHES = 16 * 1024


def flights(rows: int, aircraft: int = 37) -> pa.Table:
    """Return a table whose bodies are the row numbers, keyed by aircraft and tagged by carrier."""
    return pa.table(
        {
            "n": [f"{n}".encode() for n in range(rows)],
            "tail": [f"N{n * 7 % aircraft}" for n in range(rows)],
            "carrier": pa.array(
                [None if n % 5 == 0 else f"C{n % 5}" for n in range(rows)]
            ).dictionary_encode(),
        }
    )


def send(producer: Producer, topic: str, table: pa.Table) -> TableReceipt:
    return producer.send_table(topic, table, body="n", keys="tail", tags="carrier", sharding_key="tail")


def stored(cluster: Cluster, topic: str) -> pa.Table:
    """Return all rows of a topic as a consumer reads them, in the order of each queue."""
    with Admin(cluster.address) as admin:
        missing = sum(admin.end_offsets(topic).values())
    batches: list[pa.RecordBatch] = []
    with PullConsumer(cluster.address, "reads-all") as consumer:
        consumer.assign(consumer.queues(topic))
        consumer.seek_to_beginning()
        while sum(batch.num_rows for batch in batches) < missing:
            batches.append(consumer.poll_arrow(timeout_ms=60_000))
            assert batches[-1].num_rows
    return pa.Table.from_batches(batches)


def first_occurrences(rows: pa.Table) -> dict[tuple[str, int], list[int]]:
    """Return the row numbers in each queue in the order of offsets, without duplicate UNIQ_KEYs."""
    seen: set[str] = set()
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows.select(["brokerName", "queueId", "queueOffset", "body", "uniqKey"]).to_pylist():
        if row["uniqKey"] not in seen:
            seen.add(row["uniqKey"])
            queues[row["brokerName"], row["queueId"]].append(int(row["body"]))
    return queues


def assert_complete_and_ordered(rows: pa.Table, count: int) -> None:
    queues = first_occurrences(rows)
    assert sorted(n for numbers in queues.values() for n in numbers) == list(range(count))
    for queue, numbers in queues.items():
        assert numbers == sorted(numbers), queue


def test_table_rows_keep_keys_and_tags_with_one_queue_per_key(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "tables") as producer:
        receipt = send(producer, topic, flights(1_000))
    rows = stored(cluster, topic)
    assert_complete_and_ordered(rows, 1_000)
    assert receipt.rows == rows.num_rows == 1_000
    by_number = {int(row["body"]): row for row in rows.to_pylist()}
    sent = flights(1_000).to_pylist()
    for number, row in by_number.items():
        assert (row["keys"], row["tags"]) == (sent[number]["tail"], sent[number]["carrier"])
        assert len(row["uniqKey"]) == 32
        assert row["topic"] == topic
    places = {(row["keys"], row["brokerName"], row["queueId"]) for row in by_number.values()}
    assert len(places) == 37
    with Admin(cluster.address) as admin:
        ends = {queue: end for queue, end in admin.end_offsets(topic).items() if end}
        assert {queue: part.last_offset + 1 for queue, part in receipt.queues.items()} == ends
        assert {message.keys for message in admin.messages_by_key(topic, "N3")} == {"N3"}


def test_keyed_rows_and_keyed_sends_use_the_same_queue(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "tables") as producer:
        one = producer.send(topic, b"1", sharding_key="日本-42")
        many = producer.send_many(
            topic, [b"2", b"3"], sharding_keys=["日本-42"] * 2, keys=["a", None], tags="t"
        )
    assert list(many.queues) == [one.queue]
    assert many.queues[one.queue].first_offset == one.queue_offset + 1


def test_unkeyed_rows_are_spread_unless_a_queue_is_given(cluster: Cluster) -> None:
    topic = cluster.topic()
    table = pa.table({"body": [f"{n}" for n in range(3_000)]})
    config = ProducerConfig(table_batch_bytes=SMALL_BATCHES)
    last = MessageQueue(topic, "b", 3)
    with Producer(cluster.address, "tables", config=config) as producer:
        dealt = producer.send_table(topic, table)
        given = producer.send_table(topic, table.slice(0, 10), queue=last)
        empty = producer.send_table(topic, table.slice(0, 0))
    assert len(dealt.queues) == 8
    assert list(given.queues) == [last]
    assert (empty.rows, empty.batches) == (0, 0)


def test_table_rows_keep_their_properties(cluster: Cluster) -> None:
    topic = cluster.topic()
    maps = [
        {"color": "blå", "empty": "", "none": None, "": "nameless"},
        None,
        {"TAGS": "reserved", "UNIQ_KEY": "reserved", "a": "1", "b": "2"},
        {},
    ]
    kind = pa.map_(pa.string(), pa.string())
    column = pa.array([None if each is None else list(each.items()) for each in [{"x": "y"}, *maps]], kind)
    table = pa.table({"body": [b"-1", b"0", b"1", b"2", b"3"], "more": column}).slice(1)
    with Producer(cluster.address, "tables") as producer:
        producer.send_table(topic, table, properties="more")
        for bad, error in (("a\x01b", "0x01"), ("a\x02b", "0x02")):
            refused = pa.table({"body": [b"x"], "more": pa.array([[("name", bad)]], kind)})
            with pytest.raises(MessageRejected, match=error):
                producer.send_table(topic, refused, properties="more")
        with pytest.raises(ConfigInvalid, match="'body' has type binary: properties must have type map"):
            producer.send_table(topic, table, properties="body")
    rows = sorted(stored(cluster, topic).to_pylist(), key=lambda row: int(row["body"]))
    own = [
        {name: value for name, value in row["properties"] if name not in ("UNIQ_KEY", "MIN_OFFSET")}
        for row in rows
    ]
    assert own == [{"color": "blå"}, {}, {"a": "1", "b": "2"}, {}]
    assert all(len(row["uniqKey"]) == 32 and row["tags"] is None for row in rows)


def test_table_sent_twice_from_one_key_sequence_has_equal_keys(cluster: Cluster) -> None:
    topic = cluster.topic()
    config = ProducerConfig(table_batch_bytes=SMALL_BATCHES)
    block = UniqKeyBlock("FF0102030405" + "00000007", 99)
    with Producer(cluster.address, "tables", config=config) as producer:
        receipts = [
            producer.send_table(topic, flights(500), body="n", uniq_keys=UniqKeySequence(block))
            for _ in range(2)
        ]
    rows = stored(cluster, topic).to_pylist()
    assert sorted((int(row["body"]), row["uniqKey"]) for row in rows) == sorted(
        2 * [(number, block.key(number)) for number in range(500)]
    )
    places = {(row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows}
    runs = [run for receipt in receipts for run in receipt.queues.runs()]
    assert {(*queue[1:], offset) for queue, begin, end in runs for offset in range(begin, end)} == places


def test_batch_is_resent_before_its_successors_if_the_response_is_lost(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(brokers=1)
    proxy = ResponseDroppingProxy(
        cluster, "a", lambda code, number: code == RayMQRequestCode.SEND_RUNS and number in (3, 9)
    )
    cluster.stop_broker("a")
    cluster.start_broker("a", advertised_port=proxy.port)
    topic = cluster.topic()
    with Producer(
        cluster.address, "tables", config=ProducerConfig(table_batch_bytes=SMALL_BATCHES)
    ) as producer:
        receipt = send(producer, topic, flights(2_000))
    rows = stored(cluster, topic)
    assert proxy.dropped_count == 2
    assert_complete_and_ordered(rows, 2_000)
    duplicates = rows.num_rows - 2_000
    assert 0 < duplicates <= receipt.resent_rows
    assert receipt.rows == 2_000
    proxy.stop()


def test_rows_of_many_queues_share_requests(cluster: Cluster) -> None:
    topic = cluster.topic(queues=300)
    config = ProducerConfig(table_batch_bytes=SMALL_BATCHES)
    with Producer(cluster.address, "tables", config=config) as producer:
        receipts = [send(producer, topic, flights(4_000, aircraft=1_000)) for _ in range(2)]
    assert all(
        receipt.batches < 100 for receipt in receipts
    )  # requests of about 16 KiB; there are more than 400 queues
    assert len(receipts[0].queues) > 400
    rows = stored(cluster, topic)
    by_place = {
        (row["brokerName"], row["queueId"], row["queueOffset"]): int(row["body"]) for row in rows.to_pylist()
    }
    assert len(by_place) == rows.num_rows == 8_000
    before: dict[tuple[str, int], list[int]] = {}
    for receipt in receipts:
        found = []
        for (_, broker_name, queue_id), part in receipt.queues.items():
            numbers = [
                by_place[broker_name, queue_id, offset]
                for offset in range(part.first_offset, part.last_offset + 1)
            ]
            assert len(numbers) == part.rows
            assert numbers == sorted(numbers)
            assert before.setdefault((broker_name, queue_id), numbers) == numbers
            found += numbers
        assert sorted(found) == list(range(4_000))


def test_lost_response_to_many_queues_keeps_rows_and_order(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters(brokers=1)
    proxy = ResponseDroppingProxy(
        cluster, "a", lambda code, number: code == RayMQRequestCode.SEND_RUNS and number in (3, 32)
    )
    cluster.stop_broker("a")
    cluster.start_broker("a", advertised_port=proxy.port)
    topic = cluster.topic(queues=40)
    config = ProducerConfig(table_batch_bytes=SMALL_BATCHES)
    with Producer(cluster.address, "tables", config=config) as producer:
        receipts = [send(producer, topic, flights(1_000, aircraft=500)) for _ in range(3)]
    rows = stored(cluster, topic)
    assert proxy.dropped_count == 2
    duplicates = rows.num_rows - 3_000
    assert 0 < duplicates <= sum(receipt.resent_rows for receipt in receipts)
    for numbers in first_occurrences(rows).values():
        thirds = [numbers[n : n + len(numbers) // 3] for n in range(0, len(numbers), len(numbers) // 3)]
        assert thirds == [sorted(thirds[0])] * 3
    proxy.stop()


def test_rows_of_other_queues_are_stored_if_a_queue_was_removed(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=8)
    table = flights(400, aircraft=100)
    with Producer(cluster.address, "tables") as producer:
        whole = send(producer, topic, table)
        with Admin(cluster.address) as admin:
            admin.create_topic(topic, queues=6)
        with pytest.raises(TableSendFailed, match="has queues 0 to 5") as failed:
            send(producer, topic, table)
    gone = [queue for queue in whole.queues if queue.queue_id >= 6]
    assert sorted(failed.value.failures) == sorted(gone)
    assert failed.value.acknowledged_rows == 400 - sum(whole.queues[queue].rows for queue in gone)


def test_broker_restart_during_a_table_send_keeps_rows_and_order(
    clusters: Callable[..., Cluster],
) -> None:
    cluster = clusters()
    topic = cluster.topic()
    config = ProducerConfig(
        table_batch_bytes=SMALL_BATCHES,
        table_buffer_bytes=4 * SMALL_BATCHES,
        delivery_timeout_ms=int(NEVER_S * 1000),
    )
    receipts: list[TableReceipt] = []
    with Producer(cluster.address, "tables", config=config) as producer:
        send(producer, topic, flights(0))
        sending = threading.Thread(target=lambda: receipts.append(send(producer, topic, flights(20_000))))
        broker = cluster.brokers["a"]
        sending.start()
        eventually(lambda: broker.describe()["messages_in"])
        cluster.stop_broker("a")
        cluster.start_broker("a")
        sending.join(LIMIT_S)
    assert receipts
    assert receipts[0].rows == 20_000
    assert_complete_and_ordered(stored(cluster, topic), 20_000)


def test_table_send_failed_names_the_unacknowledged_queues(
    clusters: Callable[..., Cluster], clock: ClockAtRest
) -> None:
    cluster = clusters()
    topic = cluster.topic()
    config = ProducerConfig()
    with Producer(cluster.address, "tables", config=config, clock=clock) as producer:
        whole = send(producer, topic, flights(1_000))
        of_b = sum(part.rows for queue, part in whole.queues.items() if queue.broker_name == "b")
        cluster.stop_broker("a")
        with ThreadPoolExecutor(1) as other:
            sending = other.submit(send, producer, topic, flights(1_000))
            broker = cluster.brokers["b"]
            eventually(lambda: broker.describe()["messages_in"] >= 2 * of_b)
            clock.advance(config.delivery_timeout_ms)
            with pytest.raises(TableSendFailed) as failed:
                sending.result(LIMIT_S)
    error = failed.value
    assert {queue.broker_name for queue in error.failures} == {"a"}
    assert 0 < error.acknowledged_rows < error.rows == 1_000
    assert error.retriable


def test_invalid_table_is_rejected_with_the_column_or_row(cluster: Cluster) -> None:
    topic = cluster.topic()
    with Producer(cluster.address, "tables") as producer:
        with pytest.raises(ConfigInvalid, match="no column 'nothing'; it has n, tail"):
            producer.send_table(topic, flights(1), body="nothing")
        with pytest.raises(ConfigInvalid, match="'x' has type double"):
            producer.send_table(topic, pa.table({"x": [1.5]}), body="x")
        with pytest.raises(MessageRejected, match="row 0: body of 5,242,880 bytes is over"):
            producer.send_table(topic, pa.table({"body": [bytes(5 << 20), b"x"]}))
        with pytest.raises(ConfigInvalid, match="2 bodies but 1 keys"):
            producer.send_many(topic, [b"a", b"b"], keys=["k"])
        with pytest.raises(MessageRejected, match="row 1: the body is missing or empty"):
            producer.send_table(topic, pa.table({"body": [b"a", None]}))
        with pytest.raises(MessageRejected, match="row 0: the body is missing or empty"):
            producer.send_many(topic, [b"", b"b"])
        for no_list in (b"ab", "ab", (body for body in [b"a"])):
            with pytest.raises(
                ConfigInvalid, match=r"bodies is .*: give a list with one element for each message"
            ):
                producer.send_many(topic, no_list)  # type: ignore[arg-type]
        with pytest.raises(ConfigInvalid, match="bodies cannot be read as a column of binary"):
            producer.send_many(topic, [1, 2])  # type: ignore[list-item]
        with pytest.raises(ConfigInvalid, match=r"queue is 5: give one of Producer\.queues"):
            producer.send_many(topic, [b"a"], queue=5)  # type: ignore[arg-type]
        other = MessageQueue("another", "a", 0)
        with pytest.raises(
            ConfigInvalid, match=f"a message of topic '{topic}' cannot be sent to .*topic=another"
        ):
            producer.send_many(topic, [b"a"], queue=other)
    with Admin(cluster.address) as admin:
        assert not sum(admin.end_offsets(topic).values())


def test_table_send_to_unknown_topic_raises_topic_not_found(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1, auto_create_topics=False)
    with Producer(cluster.address, "tables") as producer, pytest.raises(TopicNotFound):
        send(producer, "unknown-topic", flights(1))


def test_columns_of_any_text_kind_and_frames_are_sent(cluster: Cluster) -> None:
    topic = cluster.topic()
    views = pa.table(
        {
            "body": pa.array([b"a" * 40, b"b"], pa.binary_view()),
            "keys": pa.array(["k" * 40, None], pa.string_view()),
        }
    )
    frame = views.set_column(0, "body", views["body"].cast(pa.binary())).to_pandas()
    with Producer(cluster.address) as producer:
        producer.send_table(topic, views, keys="keys")
        producer.send_table(topic, frame, keys="keys")
    rows = stored(cluster, topic).select(["body", "keys"]).to_pylist()
    bodies = sorted((row["body"], row["keys"] or None) for row in rows)
    assert bodies == [(b"a" * 40, "k" * 40)] * 2 + [(b"b", None)] * 2


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (
            pa.Table.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["body", "body"]),
            "several columns 'body'",
        ),
        (pa.table({"body": pa.array([[1]])}), "type list<item: int64>"),
        (pa.table({"body": pa.RunEndEncodedArray.from_arrays([2], ["a"])}), "run_end_encoded"),
        (pa.table({"text": [b"a"]}), "no column 'body'"),
        ([b"a"], "table is a list: give a pyarrow.Table"),
        (None, "table is a NoneType"),
    ],
)
def test_table_that_cannot_be_sent_names_the_reason(cluster: Cluster, table: Any, reason: str) -> None:
    with Producer(cluster.address) as producer, pytest.raises(ConfigInvalid, match=reason):
        producer.send_table(cluster.topic(), table)
