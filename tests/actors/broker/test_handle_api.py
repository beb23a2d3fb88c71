"""The methods of the actor handle: their encoding, their replies and their refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pyarrow as pa
import pytest

from actors.broker.service import BrokerService
from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import AppendBatchHeader, AppendBatchResponse
from store.common.clock import SystemClock
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.record import decode_records
from tests.actors.broker.brokers import HOLD_MS, Peer, hang_disk, run, settings_of, with_broker
from tests.eventually import eventually_async

# {"v": 1, "topic": "T", "queue": 0, "batch": one message "hi" in RocketMQ's batch encoding}
APPEND_REQUEST = bytes.fromhex(
    "84a17601a5746f706963a154a5717565756500a56261746368c418"
    "0000001800000000000000000000000000000002" + "6869" + "0000"
)
# {"v": 1, "topic": "T", "queue": 0, "offset": 1}
READ_REQUEST = bytes.fromhex("84a17601a5746f706963a154a5717565756500a66f666673657401")
# {"v": 1, "code": 0, "remark": "", "status": "NO_NEW_MESSAGE", "next_offset": 1, "min_offset": 0,
#  "max_offset": 1, "count": 0, "records": b""}
READ_REPLY = bytes.fromhex(
    "89a17601a4636f646500a672656d61726ba0a6737461747573ae4e4f5f4e45575f4d455353414745ab6e6578745f6f666673657401"
    "aa6d696e5f6f666673657400aa6d61785f6f666673657401a5636f756e7400a77265636f726473c400"
)
# {"v": 1, "topic": "T", "group": "G"}
OFFSETS_REQUEST = bytes.fromhex("83a17601a5746f706963a154a567726f7570a147")
# {"v": 1, "code": 0, "remark": "", "queues": [[0, 0, 1, -1], [1, 0, 0, -1]]}
OFFSETS_REPLY = bytes.fromhex("84a17601a4636f646500a672656d61726ba0a67175657565739294000001ff94010000ff")


def test_version_1_encoding_is_stable(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        stored = msgpack.unpackb(await handle.append(APPEND_REQUEST))
        assert list(stored) == ["v", "code", "remark", "queue", "offset", "count", "ids", "store_timestamp"]
        assert (stored["v"], stored["code"], stored["queue"], stored["offset"], stored["count"]) == (
            1,
            0,
            0,
            0,
            1,
        )
        assert await handle.read(READ_REQUEST) == READ_REPLY
        assert await handle.offsets(OFFSETS_REQUEST) == OFFSETS_REPLY
        (message,) = await peer.messages("T")
        assert (message.body, [message.offset_msg_id]) == (b"hi", stored["ids"])

    with_broker(story, settings_of(tmp_path, default_topic_queues=2))


async def ask(method: Any, **fields: Any) -> dict[str, Any]:
    reply: dict[str, Any] = msgpack.unpackb(await method(msgpack.packb({"v": 1, **fields})))
    return reply


WRONG_READS: list[tuple[Any, str]] = [
    ("text", "not valid msgpack"),
    (b"\xc1", "not valid msgpack"),
    (b"", "not valid msgpack"),
    (msgpack.packb([1]), "not a map"),
    (msgpack.packb({"topic": "T"}), "v is None"),
    (msgpack.packb({"v": 2}), "v is 2"),
    (msgpack.packb({"v": True}), "v is True"),
    (msgpack.packb({"v": 1, "topic": "T", "queue": 0, "offset": 0, "wait": 1}), "unknown key 'wait'"),
    (msgpack.packb({"v": 1, "topic": "T", "offset": 0}), "queue is missing"),
    (msgpack.packb({"v": 1, "topic": 7, "queue": 0, "offset": 0}), "topic is a int"),
    (msgpack.packb({"v": 1, "topic": "T", "queue": True, "offset": 0}), "queue is a bool"),
    (msgpack.packb({"v": 1, "topic": "T", "queue": 0, "offset": 1 << 63}), "more than 63 bits"),
    (b"\x81\xa1v" + b"\x91" * 100_000, "not valid msgpack"),
    (b"\xdf\xff\xff\xff\xff", "not valid msgpack"),
    (b"\x81\xa1v\xdd\x7f\xff\xff\xff", "not valid msgpack"),
    (msgpack.packb({"v": 1, "topic": "T" * 100_000, "queue": 0, "offset": 0}), "not valid msgpack"),
    (msgpack.packb({"v": 1, "x" * 60_000: 1}), "unknown key 'xxx"),
    (bytes(17 << 20), "a request of 17,825,792 bytes exceeds 16,777,216"),
]


def test_invalid_requests_are_refused_with_the_cause(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for request, words in WRONG_READS:
            reply = msgpack.unpackb(await peer.broker.handle.read(request))
            assert list(reply) == ["v", "code", "remark"]
            assert len(reply["remark"]) < 1_000
            assert (reply["code"], words in reply["remark"]) == (ResponseCode.INVALID_PARAMETER, True), words

    with_broker(story, settings_of(tmp_path))


def test_reads_filter_and_wait(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        await peer.send("T", b"0", properties="TAGS\x01a\x02")
        found = await ask(handle.read, topic="T", queue=0, offset=0)
        assert (found["status"], found["next_offset"], found["count"]) == ("FOUND", 1, 1)
        assert decode_records(found["records"])[0].body == b"0"
        waiting = asyncio.create_task(
            ask(handle.read, topic="T", queue=0, offset=1, wait_ms=HOLD_MS, tags="b")
        )
        await peer.until_held(1)
        await peer.send("T", b"1", properties="TAGS\x01b\x02")
        assert decode_records((await waiting)["records"])[0].body == b"1"
        nothing = await ask(handle.read, topic="T", queue=0, offset=0, tags="z")
        assert (nothing["status"], nothing["next_offset"]) == ("NO_MATCHED_MESSAGE", 2)
        assert (await ask(handle.read, topic="T", queue=0, offset=9))["status"] == "OFFSET_MOVED"
        assert (await ask(handle.read, topic="T", queue=0, offset=2, wait_ms=5))["status"] == "NO_NEW_MESSAGE"
        assert (await ask(handle.read, topic="U", queue=0, offset=0))["code"] == ResponseCode.TOPIC_NOT_EXIST
        assert peer.broker.describe()["held_pulls"] == 0

    with_broker(story, settings_of(tmp_path))


def test_an_arrow_batch_becomes_messages(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        table = pa.table(
            {
                "body": [b"a", b"b"],
                "tags": ["x", None],
                "properties": pa.array([[("p", "1")], None], type=pa.map_(pa.string(), pa.string())),
            }
        )
        handle = peer.broker.handle
        stored = await ask(handle.append, topic="T", queue=0, format="arrow", batch=arrow_stream(table))
        assert (stored["code"], stored["count"]) == (0, 2)
        first, second = await peer.messages("T")
        assert (first.body, first.tags, first.properties["p"]) == (b"a", "x", "1")
        assert (second.body, second.tags) == (b"b", None)
        assert first.properties["UNIQ_KEY"] != second.properties["UNIQ_KEY"]

    with_broker(story, settings_of(tmp_path))


def test_damaged_or_wrongly_typed_arrow_batches_are_refused(tmp_path: Path) -> None:
    wrong = [
        (b"no arrow", "not a valid Arrow IPC stream"),
        (arrow_stream(pa.table({"body": [b"a"]}))[:-20], "not a valid Arrow IPC stream"),
        (arrow_stream(pa.table({"text": ["a"]})), "`body` is required"),
        (arrow_stream(pa.table({"body": [1]})), "a body is a int"),
        (arrow_stream(pa.table({"body": [b"a"], "tags": [1]})), "tags are 1"),
        (arrow_stream(pa.table({"body": [b"a"], "properties": [1]})), "not iterable"),
    ]

    async def story(peer: Peer) -> None:
        for batch, words in wrong:
            refused = await ask(peer.broker.handle.append, topic="T", queue=0, format="arrow", batch=batch)
            assert (refused["code"], words in refused["remark"]) == (ResponseCode.INVALID_PARAMETER, True)
        assert peer.broker.describe()["messages_in"] == 0

    with_broker(story, settings_of(tmp_path))


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def test_invalid_appends_are_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        batch = encode_batch([Message("T", b"hi")])
        assert (await ask(handle.append, topic="T", batch=batch))["queue"] in range(8)
        for fields, code in (
            ({"topic": "a b", "batch": batch}, ResponseCode.INVALID_PARAMETER),
            ({"topic": "T", "batch": batch, "queue": 99}, ResponseCode.INVALID_PARAMETER),
            ({"topic": "T", "batch": batch[:-1]}, ResponseCode.MESSAGE_ILLEGAL),
            ({"topic": "T", "batch": b""}, ResponseCode.MESSAGE_ILLEGAL),
            ({"topic": "T", "batch": batch, "format": "json"}, ResponseCode.INVALID_PARAMETER),
        ):
            assert (await ask(handle.append, **fields))["code"] == code

    with_broker(story, settings_of(tmp_path))


def test_describe_returns_names_and_positions(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        reply = msgpack.unpackb(await peer.broker.handle.describe())
        assert (reply["v"], reply["code"], reply["broker"], reply["address"]) == (
            1, 0, "broker-a", peer.broker.address,
        )  # fmt: skip
        assert reply["written"] == reply["flushed"] == reply["confirmed"] == reply["dispatched"] > 0

    with_broker(story, settings_of(tmp_path))


HI = encode_batch([Message("T", b"hi")])


def test_appends_are_refused_like_sends_while_the_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        await peer.send("T")
        disk_resumes = hang_disk(monkeypatch)
        waiting = [asyncio.create_task(ask(handle.append, topic="T", queue=0, batch=HI)) for _ in range(3)]
        await eventually_async(lambda: peer.store.positions.waiting == 3)
        late = asyncio.create_task(ask(handle.append, topic="T", queue=0, batch=HI))
        send = await peer.send("T")  # in a later turn than the appends
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        disk_resumes.set()
        append = await late
        assert append["code"] == send.code == ResponseCode.SYSTEM_BUSY
        remark, _, period = append["remark"].rpartition(" ")
        assert remark == (send.remark or "").rpartition(" ")[0]
        assert ("3 sends wait for the disk" in remark, period.endswith("ms")) == (True, True)
        assert (table["putMessageFailedTimes"], peer.broker.describe()["requests_refused"]) == ("2", 2)
        assert [(await task)["offset"] for task in waiting] == [1, 2, 3]

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}, send_queue_capacity=3))


def test_appends_to_a_draining_broker_are_refused_like_sends(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        peer.broker.drain.close()
        append = await ask(peer.broker.handle.append, topic="T", queue=0, batch=HI)
        send = await peer.send("T")
        assert (append["code"], append["remark"]) == (send.code, send.remark)
        assert append["code"] == ResponseCode.NO_PERMISSION
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert table["putMessageFailedTimes"] == "2"

    with_broker(story, settings_of(tmp_path))


def test_waiting_reads_are_limited_and_do_not_block_other_methods(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        await peer.send("T")
        ends = {"topic": "T", "queue": 0, "offset": 1, "wait_ms": HOLD_MS}
        waiting = [asyncio.create_task(ask(handle.read, **ends)) for _ in range(2)]
        await peer.until_held(2)
        refused = await ask(handle.read, **ends)
        assert refused["code"] == ResponseCode.SYSTEM_BUSY
        assert (
            "2 requests of this connection have no response yet (max_pending_requests 2)" in refused["remark"]
        )
        assert msgpack.unpackb(await handle.describe())["held_pulls"] == 2
        assert (await ask(handle.offsets, topic="T"))["queues"][0] == [0, 0, 1, -1]
        assert (await ask(handle.append, topic="T", queue=0, batch=HI))["code"] == 0
        assert [(await task)["count"] for task in waiting] == [1, 1]

    with_broker(story, settings_of(tmp_path, max_pending_requests=2))


def test_offsets_returns_the_committed_offsets_of_the_group(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        offsets = peer.broker.handle.offsets
        await peer.send("T", queue_id=1)
        await peer.commit("G", "T", 1, queue_id=1)
        assert (await ask(offsets, topic="T", group="G"))["queues"] == [[0, 0, 0, -1], [1, 0, 1, 1]]
        assert (await ask(offsets, topic="T"))["queues"] == [[0, 0, 0, -1], [1, 0, 1, -1]]
        assert (await ask(offsets, topic="U"))["code"] == ResponseCode.TOPIC_NOT_EXIST

    with_broker(story, settings_of(tmp_path, default_topic_queues=2))


def test_calls_are_refused_when_the_broker_stops(tmp_path: Path) -> None:
    async def story() -> None:
        broker = BrokerService(settings_of(tmp_path), SystemClock())
        await broker.start()
        peer, handle = Peer(broker), broker.handle
        await peer.send("T")
        waiting = asyncio.create_task(ask(handle.read, topic="T", queue=0, offset=1, wait_ms=HOLD_MS))
        await peer.until_held(1)
        await peer.client.close()
        await broker.stop()
        for refused in (await waiting, await ask(handle.append, topic="T", queue=0, batch=HI)):
            assert refused["code"] == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "shutting down" in refused["remark"]

    run(story)


def test_append_batch_and_describe_broker_work_over_sockets(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        batch = encode_batch([Message("T", b"1"), Message("T", b"2")])
        response = await peer.ask(RayMQRequestCode.APPEND_BATCH, AppendBatchHeader("T", 1).to_ext(), batch)
        stored = AppendBatchResponse.from_ext(response.ext)
        assert (response.code, stored.queue_id, stored.queue_offset, stored.count) == (0, 1, 0, 2)
        messages = await peer.messages("T", queue_id=1)
        assert bytes(response.body).decode().split(",") == [each.offset_msg_id for each in messages]
        assert {each.store_timestamp for each in messages} == {stored.store_timestamp}
        described = orjson.loads((await peer.ask(RayMQRequestCode.DESCRIBE_BROKER)).body)
        assert (described["address"], described["messages_in"]) == (peer.broker.address, 2)

    with_broker(story, settings_of(tmp_path))
