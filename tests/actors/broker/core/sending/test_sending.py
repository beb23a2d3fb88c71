"""Sends over a socket: stored records, responses and refusals."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from actors.wire.bodies.locks import LockRequest
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CreateTopicHeader, SendRunsHeader
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from store.common.clock import SystemClock
from store.message.batch import encode_batch
from store.message.hosts import Host
from store.message.message import Message
from store.message.message_id import UniqKeyGenerator, decode_message_id
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, decode_records, encode_record
from store.message.runs import Runs, decode_offsets, encode_heads
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker

SYNC_AND_ASYNC = pytest.mark.parametrize("flush", ["sync", "async"])


@SYNC_AND_ASYNC
def test_a_message_is_stored_as_rocketmq_stores_it(tmp_path: Path, flush: str) -> None:
    async def story(peer: Peer) -> None:
        properties = "KEYS\x01k1 k2\x02UNIQ_KEY\x01ABCD\x02TAGS\x01t"
        sent = await peer.send("T", b"hello", 3, properties, flag=7, born_timestamp=5, sys_flag=0x301)
        assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "3", "0")
        assert sent.ext["transactionId"] == "ABCD"
        assert (sent.ext["MSG_REGION"], sent.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        host, _, port = peer.broker.address.partition(":")
        assert decode_message_id(sent.ext["msgId"]) == (Host(host, int(port)), 0)
        pulled = await peer.pull("T", queue_id=3)
        (message,) = decode_records(pulled.body)
        assert message.offset_msg_id == sent.ext["msgId"]
        assert (message.flag, message.born_timestamp, message.sys_flag) == (7, 5, 0x301)
        assert message.born_host.ip == "127.0.0.1"
        assert message.properties == {
            "KEYS": "k1 k2",
            "UNIQ_KEY": "ABCD",
            "TAGS": "t",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


def test_offsets_are_consecutive_in_each_queue(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        offsets = [(await peer.send("T", queue_id=queue)).ext["queueOffset"] for queue in (0, 1, 0, 1, 1)]
        assert offsets == ["0", "0", "1", "1", "2"]
        assert len(await peer.messages("T", queue_id=1)) == 3

    with_broker(story, settings_of(tmp_path))


def test_a_message_without_a_unique_key_gets_one(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("T", properties="X_UNIQ_KEY\x01no\x02")
        (message,) = await peer.messages("T")
        assert message.properties["UNIQ_KEY"] == sent.ext["transactionId"]
        assert len(sent.ext["transactionId"]) == 32
        assert message.properties["X_UNIQ_KEY"] == "no"

    with_broker(story, settings_of(tmp_path))


def test_transient_and_pop_properties_are_not_stored(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="__RMQ.TRANSIENT.x\x011\x02POP_CK\x01c\x02MY_DELAY\x012\x02")
        (message,) = await peer.messages("T")
        assert "MY_DELAY" in message.properties
        assert not {"__RMQ.TRANSIENT.x", "POP_CK"} & message.properties.keys()

    with_broker(story, settings_of(tmp_path))


def test_forwarded_message_gets_broker_properties_once(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        received = "a\x011\x02MSG_REGION\x01elsewhere\x02TRACE_ON\x01false\x02CLUSTER\x01other\x02b\x012\x02"
        await peer.send("T", properties=received)
        stored = (await peer.pull("T")).body
        assert [stored.count(name) for name in (b"MSG_REGION", b"TRACE_ON", b"CLUSTER")] == [1, 1, 1]
        (message,) = await peer.messages("T")
        assert message.properties["CLUSTER"] == "DefaultCluster"
        assert message.properties["MSG_REGION"] == "DefaultRegion"
        assert (message.properties["a"], message.properties["b"]) == ("1", "2")

    with_broker(story, settings_of(tmp_path))


def test_v1_sends_and_oneway_sends_are_stored(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        old = SendMessageHeaderV1("PG", "T", 0, "TAGS\x01old\x02").to_ext()
        assert (await peer.ask(RequestCode.SEND_MESSAGE, old, b"1")).code == 0
        connection = peer.client.connection(peer.broker.address)
        assert connection is not None
        connection.oneway(
            RemotingCommand(RequestCode.SEND_MESSAGE_V2, SendMessageHeader("PG", "T", 0).to_ext(), b"2")
        )
        assert (await peer.send("T", b"3")).ext["queueOffset"] == "2"
        assert [message.body for message in await peer.messages("T")] == [b"1", b"2", b"3"]

    with_broker(story, settings_of(tmp_path))


def test_negative_queue_id_chooses_a_random_queue(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        queues = {(await peer.send("T", queue_id=-1)).ext["queueId"] for _ in range(64)}
        assert queues == {"0", "1", "2", "3"}

    with_broker(story, settings_of(tmp_path))


def test_a_batch_is_stored_whole_in_one_queue(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        messages = [Message("T", b"%d" % n, keys=f"k{n}") for n in range(5)]
        ext = SendMessageHeader("PG", "T", 1, "UNIQ_KEY\x01BATCH\x02", batch=True).to_ext()
        sent = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages))
        assert (sent.code, sent.ext["queueOffset"], sent.ext["transactionId"]) == (0, "0", "BATCH")
        assert "batchUniqId" not in sent.ext  # clients would use it as the id of all messages
        stored = await peer.messages("T", queue_id=1)
        assert [message.body for message in stored] == [b"0", b"1", b"2", b"3", b"4"]
        # A Java consumer writes no trace without a region; the key of the batch is not stored.
        added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
        assert [message.properties for message in stored] == [{"KEYS": f"k{n}", **added} for n in range(5)]
        assert ",".join(message.offset_msg_id for message in stored) == sent.ext["msgId"]
        broken = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages)[:-1])
        assert broken.code == ResponseCode.MESSAGE_ILLEGAL
        assert len(await peer.messages("T", queue_id=1)) == 5

    with_broker(story, settings_of(tmp_path))


OF_HEADER = (
    "UNIQ_KEY\x01B\x02WAIT\x01true\x02sw8\x01id\x02INSTANCE_ID\x01ns\x02TAGS\x01t\x02KEYS\x01k\x02"
    "CLUSTER\x01x\x02"
)
BATCH_SENDS: list[tuple[RequestCode, type[SendMessageHeader] | type[SendMessageHeaderV1]]] = [
    (RequestCode.SEND_BATCH_MESSAGE, SendMessageHeader),
    (RequestCode.SEND_MESSAGE_V2, SendMessageHeader),
    (RequestCode.SEND_MESSAGE, SendMessageHeaderV1),
]


@pytest.mark.parametrize(("code", "header"), BATCH_SENDS)
def test_properties_of_a_batchs_header_are_on_each_message(
    tmp_path: Path, code: RequestCode, header: type[SendMessageHeader]
) -> None:
    async def story(peer: Peer) -> None:
        batch = encode_batch([Message("T", b"1", tags="own"), Message("T", b"2", keys="k2")])
        ext = header("PG", "T", 0, OF_HEADER, batch=True).to_ext()
        sent = await peer.ask(code, ext, batch)
        assert (sent.code, sent.ext["transactionId"]) == (0, "B")
        added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
        assert [message.properties for message in await peer.messages("T")] == [
            {"TAGS": "own", "KEYS": "k", "sw8": "id", "INSTANCE_ID": "ns", **added},
            {"TAGS": "t", "KEYS": "k2", "sw8": "id", "INSTANCE_ID": "ns", **added},
        ]
        assert [each.body for each in decode_records((await peer.pull("T", tags="t")).body)] == [b"2"]

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(("code", "header"), BATCH_SENDS)
@pytest.mark.parametrize(
    "properties",
    [
        "DELAY\x013\x02",
        "DELAY\x01x\x02",
        "TIMER_DELAY_SEC\x0110\x02",
        "TIMER_DELAY_MS\x0110\x02",
        "TIMER_DELIVER_MS\x019999999999999\x02",
        "TRAN_MSG\x01true\x02",
        "".join(f"{n}\x01v\x02" for n in range(17)),
        f"long\x01{'x' * 32_760}\x02",
    ],
)
def test_batch_with_a_delay_or_too_many_properties_is_refused(
    tmp_path: Path, code: RequestCode, header: type[SendMessageHeader], properties: str
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", b"before")
        ext = header("PG", "T", 0, f"UNIQ_KEY\x01B\x02{properties}", batch=True).to_ext()
        sent = await peer.ask(code, ext, encode_batch([Message("T", b"1"), Message("T", b"2")]))
        assert sent.code == ResponseCode.MESSAGE_ILLEGAL, sent.remark
        empty = header("PG", "T", 0, "UNIQ_KEY\x01B\x02DELAY\x010\x02TIMER_DELAY_MS\x01\x02", batch=True)
        assert (await peer.ask(code, empty.to_ext(), encode_batch([Message("T", b"ok")]))).code == 0
        assert [message.body for message in await peer.messages("T")] == [b"before", b"ok"]

    with_broker(story, settings_of(tmp_path))


def some_records(topic: str, queue_id: int, count: int) -> bytes:
    keys = UniqKeyGenerator("127.0.0.1", 1, SystemClock(), random.Random(1))
    return b"".join(
        encode_record(
            RecordDraft(topic, queue_id, b"%d" % n, f"UNIQ_KEY\x01{keys.next()}\x02".encode()),
            0,
            0,
            0,
            bytes(8),
        )
        for n in range(count)
    )


@pytest.mark.parametrize("count", [1, 1000])
def test_records_encoded_by_a_client_are_stamped_and_stored(tmp_path: Path, count: int) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        sent = await send_runs(peer, some_runs("T", {0: count}))
        assert (sent.code, decode_offsets(sent.body, 1), sent.ext["count"]) == (0, (1,), str(count))
        pulled = await peer.pull_records("T", 1)
        assert (pulled.ext["nextBeginOffset"], pulled.ext["count"]) == (str(count + 1), str(count))
        stored = decode_records(pulled.body)
        assert [message.body for message in stored] == [b"%d" % n for n in range(count)]
        assert [message.queue_offset for message in stored] == list(range(1, count + 1))
        assert str(stored[0].commit_log_offset) == sent.ext["physicalOffset"]

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(
    "records",
    [b"", b"no records", some_records("U", 0, 2), some_records("T", 1, 2), some_records("T", 0, 2)[:-1]],
)
def test_invalid_or_misdirected_records_are_refused_as_a_whole(tmp_path: Path, records: bytes) -> None:
    async def story(peer: Peer) -> None:
        head = encode_heads(Runs([0], [2], [len(records)], memoryview(records)))
        sent = await send_runs(peer, head + records)
        assert sent.code == ResponseCode.MESSAGE_ILLEGAL
        assert sent.remark
        assert await peer.messages("T") == []

    with_broker(story, settings_of(tmp_path))


def some_runs(topic: str, counts: dict[int, int]) -> bytes:
    """Return a body of runs with `counts[queue_id]` records of each queue."""
    records = [some_records(topic, queue_id, count) for queue_id, count in counts.items()]
    together = b"".join(records)
    runs = Runs([*counts], [*counts.values()], [*map(len, records)], memoryview(together))
    return encode_heads(runs) + together


async def send_runs(peer: Peer, body: bytes, topic: str = "T") -> RemotingCommand:
    return await peer.ask(RayMQRequestCode.SEND_RUNS, SendRunsHeader(topic).to_ext(), body)


@SYNC_AND_ASYNC
def test_runs_of_several_queues_are_stored_by_one_request(tmp_path: Path, flush: str) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=2)
        sent = await send_runs(peer, some_runs("T", {0: 3, 2: 200, 3: 1}))
        assert (sent.code, sent.ext["count"]) == (0, "204")
        assert decode_offsets(sent.body, 3) == (0, 1, 0)
        again = await send_runs(peer, some_runs("T", {2: 1, 3: 1}))
        assert decode_offsets(again.body, 2) == (201, 1)
        first, second = {0: 3, 2: 200, 3: 1}, {0: 0, 2: 1, 3: 1}
        for queue_id, before in ((0, 0), (2, 1), (3, 0)):
            pulled = await peer.pull_records("T", before, queue_id=queue_id)
            stored = decode_records(pulled.body)
            numbers = [*range(first[queue_id]), *range(second[queue_id])]
            assert [message.body for message in stored] == [b"%d" % n for n in numbers]
            assert [message.queue_offset for message in stored] == [before + n for n in range(len(stored))]
        assert (await peer.pull_records("T", 0, queue_id=0)).ext["maxOffset"] == "3"
        assert peer.broker.describe()["messages_in"] == 1 + 204 + 2

    with_broker(story, settings_of(tmp_path, {"flush": flush}))


@pytest.mark.parametrize(
    ("body", "topic", "code", "words"),
    [
        (b"", "T", ResponseCode.MESSAGE_ILLEGAL, "too short for the number of runs"),
        (pack(">i", 0), "T", ResponseCode.MESSAGE_ILLEGAL, "body of 0 runs"),
        (some_runs("T", {1: 2, 0: 1}), "T", ResponseCode.MESSAGE_ILLEGAL, "queue ids must be in ascending"),
        (some_runs("T", {0: 1, 1: 2})[:-1], "T", ResponseCode.MESSAGE_ILLEGAL, "bytes of records"),
        (some_runs("U", {0: 1, 1: 1}), "T", ResponseCode.MESSAGE_ILLEGAL, "not of the topic 'T'"),
        (some_runs("T", {0: 1, 4: 1}), "T", ResponseCode.INVALID_PARAMETER, "queue 4 of topic 'T'"),
        (some_runs("a b", {0: 1, 1: 1}), "a b", ResponseCode.INVALID_PARAMETER, "a b"),
    ],
)
def test_invalid_runs_are_refused_as_a_whole(
    tmp_path: Path, body: bytes, topic: str, code: ResponseCode, words: str
) -> None:
    async def story(peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", 4, 4, 6).to_ext())
        sent = await send_runs(peer, body, topic)
        assert (sent.code, words in (sent.remark or "")) == (code, True), sent.remark
        assert await peer.messages("T") == []

    with_broker(story, settings_of(tmp_path))


def test_runs_wake_held_pulls_of_their_queues(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=0)
        waiting = asyncio.ensure_future(peer.pull_records("T", 0, queue_id=2, wait_ms=HOLD_MS))
        await peer.until_held(1)
        await peer.send("T", queue_id=0)
        assert peer.broker.describe()["held_pulls"] == 1
        await send_runs(peer, some_runs("T", {0: 1, 2: 2}))
        assert (await waiting).ext["count"] == "2"

    with_broker(story, settings_of(tmp_path))


NUMBERS = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "TRANSACTION_CHECK_TIMES", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "TTL", "REAL_QID", "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES", "INNER_NUM")  # fmt: skip


@pytest.mark.parametrize("end", ["\x02", ""])
def test_empty_number_in_a_property_is_absent(tmp_path: Path, end: str) -> None:
    async def story(peer: Peer) -> None:
        for name in NUMBERS:
            sent = await peer.send("T", name.encode(), properties=f"DELAY\x010\x02{name}\x01{end}")
            assert (sent.code, sent.remark) == (0, None), name
        assert (await peer.send("T", b"all", properties="\x01\x02".join((*NUMBERS, "")))).code == 0
        found = await peer.messages("T")
        assert [message.body for message in found] == [*map(str.encode, NUMBERS), b"all"]
        assert all((each.delay_level, each.delay_ms, each.deliver_at_ms) == (0, 0, 0) for each in found)
        # An empty DELAY does not hide a time.
        timed = await peer.send("T", properties="DELAY\x01\x02TIMER_DELAY_MS\x01600000\x02")
        assert "recallHandle" in timed.ext

    with_broker(story, settings_of(tmp_path))


REFUSED: list[tuple[dict[str, Any], ResponseCode, str]] = [
    ({"topic": "T", "body": b""}, ResponseCode.MESSAGE_ILLEGAL, "the body is empty"),
    ({"topic": "a b"}, ResponseCode.INVALID_PARAMETER, "a b"),
    ({"topic": "x" * 128}, ResponseCode.INVALID_PARAMETER, "127"),
    ({"topic": "T", "queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queues 0 to 3"),
    ({"topic": "T", "body": b"x" * 1001}, ResponseCode.MESSAGE_ILLEGAL, "1,001 bytes exceeds max"),
    ({"topic": "T", "properties": f"a\x01{'x' * 32_767}\x02"}, ResponseCode.MESSAGE_ILLEGAL, "32,767"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
    ({"topic": "T", "sys_flag": 4}, ResponseCode.NO_PERMISSION, "transaction"),
    ({"topic": "T", "properties": "TRAN_MSG\x01TRUE\x02DELAY\x011"}, ResponseCode.MESSAGE_ILLEGAL, "delayed"),
    ({"topic": "T", "properties": "DELAY\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "DELAY"),
    ({"topic": "T", "properties": "TIMER_DELAY_MS\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL, "TIMER_DELAY"),
    ({"topic": "UNKNOWN", "default_topic": "NOT_THERE"}, ResponseCode.TOPIC_NOT_EXIST, "UNKNOWN"),
]  # fmt: skip


def test_invalid_sends_are_refused_with_value_and_limit(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        for given, code, words in REFUSED:
            response = await peer.send(**given)
            assert (response.code, words in (response.remark or "")) == (code, True), (
                given,
                response.code,
                response.remark,
            )
        assert len(await peer.messages("T")) == 1
        # Not transactions: a property with a similar name, and the retry of an old consumer.
        assert (await peer.send("T", properties="MY_TRAN_MSG\x01true\x02TRAN_MSG\x01false\x02")).code == 0
        again = "TRAN_MSG\x01true\x02DELAY\x013\x02"
        assert (await peer.send("T", properties=again, reconsume_times=1)).code == 0
        assert len(await peer.messages("T")) == 2  # the other one is delayed

    with_broker(story, settings_of(tmp_path, {"max_message_bytes": 1000}))


def test_unknown_topic_is_refused_without_auto_create(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await peer.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", 1, 1, 6).to_ext())
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path, auto_create_topics=False))


def test_retry_beyond_the_limit_goes_to_the_dlq(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.send("%RETRY%G", reconsume_times=16)).code == 0
        assert (await peer.send("%RETRY%G", reconsume_times=17)).code == 0
        assert (await peer.send("%RETRY%G", reconsume_times=3, max_reconsume_times=2)).code == 0
        assert len(await peer.messages("%RETRY%G")) == 1
        assert len(await peer.messages("%DLQ%G")) == 2

    with_broker(story, settings_of(tmp_path))


def test_retry_of_an_orderly_consumer_goes_to_the_dlq_immediately(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        queue = MessageQueue("T", "broker-a", 0)
        await peer.ask(RequestCode.LOCK_BATCH_MQ, body=LockRequest("G", "one", [queue]).encode())
        orderly_retry = "KEYS\x01k\x02DELAY\x015\x02MSG_REGION\x01Elsewhere\x02"
        assert (await peer.send("%RETRY%G", properties=orderly_retry, reconsume_times=1)).code == 0
        [dead] = await peer.messages("%DLQ%G")
        assert (dead.properties["DELAY"], dead.properties["KEYS"]) == ("-1", "k")
        assert dead.properties["MSG_REGION"] == "DefaultRegion"
        await peer.send("T", properties="KEYS\x01k\x02")
        await peer.send("T", properties="MSG_REGION\x01Elsewhere\x02TRACE_ON\x01false\x02KEYS\x01k\x02")
        plain, again = await peer.messages("T")
        assert plain.store_size == again.store_size

    with_broker(story, settings_of(tmp_path))


def test_invalid_header_is_refused_with_the_field_name(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        ext = SendMessageHeader("PG", "T", 0).to_ext()
        for field, value in (("e", "x"), ("b", None)):
            bad = {key: text for key, text in ({**ext, field: value}).items() if text is not None}
            response = await peer.ask(RequestCode.SEND_MESSAGE_V2, bad, b"hello")
            assert (response.code, f"`{field}`" in (response.remark or "")) == (
                ResponseCode.SYSTEM_ERROR,
                True,
            )
        assert (await peer.ask(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path))
