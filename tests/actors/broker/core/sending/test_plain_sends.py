"""The compiled path of sends against `Sender`: the same bytes in the log and in the responses.

Two brokers get the same bytes, one with `compiled_turn` and one without.
"""

from __future__ import annotations

import asyncio
import errno
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actors.broker.core.sending import plain_sends
from actors.broker.service import BrokerService
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.frame import decode_frames
from actors.wire.hot_headers import SendMessageHeader
from store.commitlog import mapped_file
from store.message import record
from store.message.record import MAX_PROPERTIES_BYTES, decode_records
from store.message.topic_config import TopicConfig
from tests.actors.broker.brokers import Peer, hang_disk, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async
from tests.store.kernels.plain_batch import BatchElement, encode_element

KEY = "UNIQ_KEY\x01AC11000100002A9F4E2C7B8D0001\x02"
FIELDS = {
    "a": "PG", "b": "Plain", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000123", "h": "0",
    "i": f"{KEY}WAIT\x01true\x02TAGS\x01a\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
LITE_FIELDS = {"b": "LiteT", "i": f"{KEY}__LITE_TOPIC\x01a\x02TAGS\x01a"}
BATCH_FIELDS = {"m": "true", "i": f"{KEY}WAIT\x01true\x02"}
ODD_VALUES = (
    "", "0", "1", "2", "8", "77", "007", "-1", "+1", " 1", "1_0", "2147483647", "2147483648", "9" * 18,
    "9" * 20,
    "true", "false", "True", "null", "x" * 200, "é", 'a"b', "a\\b", "a\x01b", "Other", "%RETRY%g",
    "RMQ_SYS_X",
    "SCHEDULE_TOPIC_XXXX", "TBW102",
)  # fmt: skip
PAIRS = (
    KEY, "UNIQ_KEY\x01\x02", "UNIQ_KEY\x01second\x02", "KEYS\x01k1 k2\x02", "WAIT\x01true\x02", "a\x01b\x02",
    "\x02",
    "DELAY\x013\x02", "DELAY\x010\x02", "TIMER_DELAY_MS\x011000\x02", "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01false\x02", "__x\x011\x02", "_x\x011\x02", "__\x02", "POP_CK\x01c\x02",
    "MSG_REGION\x01r\x02",
    "TRACE_ON\x01false\x02", "CLUSTER\x01c\x02", "name", "name\x01", "é\x01ü\x02", 'q\x01"quoted"\x02',
    "s\x01back\\slash\x02", "n\x01line\nbreak\x02", "X" * 300 + "\x01y\x02",
    "UNIQ_KEY\x01" + "k" * 300 + "\x02",
    "__LITE_TOPIC\x01a\x02", "__LITE_TOPIC\x01b-1\x02", "__LITE_TOPIC\x01b$1\x02", "__LITE_TOPIC\x01\x02",
    "__LITE_TOPIC\x01" + "n" * 65 + "\x02", "__LITE_TOPICS\x01a\x02", "__SHARDINGKEY\x01k\x02",
    "INNER_MULTI_DISPATCH\x01d\x02", "INNER_MULTI_QUEUE_OFFSET\x017\x02",
)  # fmt: skip


LITE_NAMES = [f"__LITE_TOPIC\x01{name}\x02" for name in ("a", "b-1", "n" * 64)]


def json_frame(code: int, fields: dict[str, str], body: bytes, opaque: int, flag: int, **more: Any) -> bytes:
    header = {"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque}
    header |= {"serializeTypeCurrentRPC": "JSON", "version": 473, **more}
    return framed(0, json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), body)


def rocketmq_frame(code: int, fields: dict[str, str], body: bytes, opaque: int, flag: int) -> bytes:
    entries = b"".join(
        struct.pack(">h", len(name)) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    header = struct.pack(">hbhiiii", code, 0, 473, opaque, flag, 0, len(entries)) + entries
    return framed(1, header, body)


def framed(kind: int, header: bytes, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


BATCH = b"".join(
    encode_element(BatchElement(flag, bytes([flag]) * 20, text.encode()))
    for flag, text in enumerate((KEY, KEY[:-1], "", "TAGS\x01a\x02", "DELAY\x013\x02__x\x011\x02", "é\x01ü"))
)
LONGEST = encode_element(BatchElement(0, b"", b"X\x01" + b"y" * (MAX_PROPERTIES_BYTES - 60)))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """The body of a batch: mostly a valid one."""
    texts = st.lists(st.sampled_from(PAIRS), max_size=3).map("".join)
    element = st.builds(
        lambda flag, body, text, cut: encode_element(
            BatchElement(flag, body, text.encode()[: -1 if cut else None])
        ),
        st.sampled_from([0, 1, -1, 2**31 - 1]),
        st.sampled_from([b"", b"x", b"hello" * 20, b"z" * 9_000]),
        texts,
        st.booleans(),
    )
    body = bytearray(b"".join(draw(st.lists(element, min_size=1, max_size=8))))
    match draw(st.integers(0, 9)):
        case 0:
            body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
        case 1:
            del body[draw(st.integers(0, len(body) - 1)) :]
    return bytes(body)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One request: mostly a plain send or batch, with up to two deviations."""
    fields, more = dict(FIELDS), {}
    code, flag, opaque = draw(st.sampled_from([310, 320])), 0, draw(st.integers(0, 2**31 - 1))
    if code == 310:
        body = draw(st.sampled_from([b"x", b"hello" * 20, bytes(range(256)), b"z" * 20_000]))
        if draw(st.booleans()):
            fields |= LITE_FIELDS | {"i": KEY + draw(st.sampled_from(LITE_NAMES))}
    else:
        body = draw(batches())
        fields |= BATCH_FIELDS
    more_pairs = st.lists(st.sampled_from(PAIRS), max_size=4).map("".join)
    fields["i"] = draw(st.one_of(st.just(fields["i"]), more_pairs, more_pairs.map(fields["i"].__add__)))
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.integers(0, 8)):
            case 0 | 1 | 2:
                fields[draw(st.sampled_from("abcdefghjklmn"))] = draw(st.sampled_from(ODD_VALUES))
            case 3:
                fields.pop(draw(st.sampled_from(sorted(fields))), None)
            case 4:
                body = b""
            case 5:
                code = draw(st.sampled_from([310, 320, 34, 9999]))
            case 6:
                flag = draw(st.sampled_from([0, 1, 2, 3, 4, 20]))
            case 7:
                more = draw(st.sampled_from([{"remark": "r"}, {"version": 0}, {"language": 'J"'}, {"x": 1}]))
            case 8:
                fields["longName"] = "v"
    if draw(st.booleans()):
        return rocketmq_frame(code, fields, body, opaque, flag)
    return json_frame(code, fields, body, opaque, flag, **more)


def sentinel() -> bytes:
    return json_frame(310, FIELDS | {"b": "Sentinel"}, b"end", 77, 0)


async def exchange(broker: BrokerService, stream: bytes, cuts: Sequence[int]) -> list[RemotingCommand]:
    """Send the stream in pieces, then a last message; return the responses to all that came before it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(broker.address.rpartition(":")[2]))
    try:
        stream += sentinel()
        for begin, end in zip((0, *cuts), (*cuts, len(stream)), strict=True):
            writer.write(stream[begin:end])
            await writer.drain()
            await asyncio.sleep(0)
        received = b""
        while True:
            part = await reader.read(1 << 20)
            received += part
            responses = whole(received)
            if not part or any(each.opaque == 77 for each in responses):
                return responses
    finally:
        writer.close()


def whole(received: bytes) -> list[RemotingCommand]:
    end = 0
    while end + 4 <= len(received) and end + 4 + struct.unpack_from(">i", received, end)[0] <= len(received):
        end += 4 + struct.unpack_from(">i", received, end)[0]
    return list(decode_frames(received[:end]))


def comparable(responses: Sequence[RemotingCommand]) -> list[tuple[Any, ...]]:
    """Return the responses without what depends on the ports of broker and client."""
    return sorted(
        (each.opaque, each.code, each.remark or "", bytes(each.body), each.serialize_type, each.language,
         [(name, ids_of(value) if name == "msgId" else value) for name, value in each.ext.items()])
        for each in responses
    )  # fmt: skip


def ids_of(text: str) -> list[str]:
    """Return the message ids without the broker's address."""
    return [each[16:] for each in text.split(",")]


def log_of(broker: BrokerService) -> bytes:
    """Return the log's bytes with the hosts of all records set to zero."""
    path = broker.settings.store_root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes()[: broker.graph.loop.store.positions.written])
    at = 0
    while at < len(data):
        for host in (record.BORN_HOST, record.STORE_HOST):
            data[at + host : at + host + 8] = bytes(8)
        at += struct.unpack_from(">i", data, at)[0]
    return bytes(data)


def taken(broker: BrokerService) -> int:
    """Return the number of messages that the compiled path has appended."""
    take = broker.graph.loop.requests.take
    return 0 if take is None else take.__self__.taken


async def started(root: Path, *, compiled_turn: bool, **store: Any) -> BrokerService:
    options = settings_of(root, {"flush": "async", **store}, compiled_turn=compiled_turn)
    broker = BrokerService(options, ClockAtRest(), rng=random.Random(7))
    await broker.start()
    broker.graph.tables.topics.table.put(TopicConfig("LiteT", attributes={"message.type": "LITE"}))
    for fields in (FIELDS, {**FIELDS, "b": "Sentinel"}, FIELDS | LITE_FIELDS):
        for queue_id in range(4):  # the compiled path knows a queue after its first message
            await exchange(broker, json_frame(310, fields | {"e": str(queue_id)}, b"first", 1, 0), ())
    return broker


def test_compiled_sends_store_and_respond_as_ordinary_ones(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        brokers = [
            runner.run(
                started(tmp_path / str(compiled), compiled_turn=compiled, commit_log_file_bytes=1 << 26)
            )
            for compiled in (True, False)
        ]

        @settings(max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(st.lists(frames(), min_size=1, max_size=12), st.lists(st.integers(0, 9999), max_size=3))
        @example([json_frame(310, FIELDS, b"x", 5, 0)] * 12, [])
        @example([rocketmq_frame(310, FIELDS, b"x", 5, 0)] * 12, [10])
        @example([rocketmq_frame(310, FIELDS, b"x", 5, 2), json_frame(310, FIELDS, b"x", 5, 2)] * 6, [])
        @example([json_frame(310, FIELDS | LITE_FIELDS, b"x", 5, 0)] * 12, [])
        @example([rocketmq_frame(310, FIELDS | LITE_FIELDS, b"x", 5, 0)] * 12, [10])
        @example([json_frame(320, FIELDS | BATCH_FIELDS, BATCH, 5, 0)] * 12, [])
        @example([rocketmq_frame(320, FIELDS | BATCH_FIELDS, BATCH, 5, 0)] * 12, [10])
        @example([json_frame(code, FIELDS | BATCH_FIELDS, BATCH, 5, 0) for code in (310, 320) * 4], [])
        @example([json_frame(320, FIELDS | BATCH_FIELDS, LONGEST, 5, 0)] * 2, [])
        @example([json_frame(320, FIELDS | BATCH_FIELDS, BATCH * 300, 5, 0)], [])
        def check(requests: list[bytes], cuts: list[int]) -> None:
            stream = b"".join(requests)
            places = sorted({cut % len(stream) for cut in cuts})
            outcomes = [runner.run(exchange(each, stream, places)) for each in brokers]
            assert comparable(outcomes[0]) == comparable(outcomes[1])

        try:
            check()
            assert log_of(brokers[0]) == log_of(brokers[1])
            for topic in ("Plain", "LiteT"):
                puts = [each.graph.loop.stats.puts[topic] for each in brokers]
                counts = [(each.messages, each.size_bytes, each.calls, each.sizes) for each in puts]
                assert counts[0] == counts[1]
            counters = [each.graph.loop.counters.responses for each in brokers]
            assert counters[0] == counters[1]
            assert taken(brokers[0]) > 100
            assert taken(brokers[1]) == 0
        finally:
            for each in brokers:
                runner.run(each.stop())


def test_plain_frames_are_split_at_every_byte(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        frame = json_frame(310, FIELDS, b"body", 9, 0)
        before, taken_before = broker.graph.loop.stats.put_total.messages, taken(broker)
        for cut in range(1, 2 * len(frame)):
            await exchange(broker, frame * 2, [cut])
        sent = broker.graph.loop.stats.put_total.messages - before
        assert sent == 3 * (2 * len(frame) - 1)
        assert taken(broker) - taken_before == sent
        await broker.stop()

    asyncio.run(story())


@pytest.mark.parametrize("frame", [json_frame, rocketmq_frame])
def test_oneway_sends_are_taken_and_get_no_response(tmp_path: Path, frame: Callable[..., bytes]) -> None:
    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        before = taken(broker)
        responses = await exchange(broker, frame(310, FIELDS, b"body", 9, 2) * 20, ())
        assert [each.opaque for each in responses] == [77]
        assert taken(broker) - before == 21
        await broker.stop()

    asyncio.run(story())


@pytest.mark.parametrize("frame", [json_frame, rocketmq_frame])
@pytest.mark.parametrize("flag", [0, 2])
def test_batches_are_taken(tmp_path: Path, frame: Callable[..., bytes], flag: int) -> None:
    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        before, messages = taken(broker), broker.graph.loop.stats.put_total.messages
        responses = await exchange(broker, frame(320, FIELDS | BATCH_FIELDS, BATCH, 9, flag) * 20, ())
        assert taken(broker) - before == 20
        assert broker.graph.loop.stats.put_total.messages - messages == 20 * 6 + 1
        assert [each.opaque for each in responses] == [9] * (20 if flag == 0 else 0) + [77]
        assert all(each.ext["msgId"].count(",") == 5 for each in responses[:-1])
        await broker.stop()

    asyncio.run(story())


def test_a_queue_is_known_after_its_first_batch(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        before, frame = taken(broker), json_frame(320, FIELDS | BATCH_FIELDS | {"b": "New"}, BATCH, 9, 0)
        for _ in range(3):
            await exchange(broker, frame, ())
        assert taken(broker) - before == 2
        await broker.stop()

    asyncio.run(story())


@pytest.mark.parametrize(("name", "limit"), [("TOPICS", 1), ("QUEUES", 4)])
def test_compiled_path_forgets_all_topics_over_its_limits(
    name: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_sends, name, replace(getattr(plain_sends, name), limit=limit))

    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        take = broker.graph.loop.requests.take
        used = {each.bound.name: each.read for each in take.__self__.bounds()}[f"plain_send_{name.lower()}"]
        before = taken(broker)
        for opaque in range(3):  # the other topic is sent to after each of them
            responses = await exchange(broker, json_frame(310, FIELDS, b"1", opaque, 0), ())
            assert [each.code for each in responses] == [0, 0]
            assert used() == limit
        assert taken(broker) == before
        await broker.stop()

    asyncio.run(story())


def test_sends_of_a_deleted_topic_are_not_taken_from_its_old_definition(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(3):
            assert (await peer.send("Plain", properties=KEY, queue_id=1)).code == 0
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Plain"})
        sent = await peer.send("Plain", properties=KEY, queue_id=1)
        assert (sent.code, sent.ext["queueOffset"]) == (0, "0")
        sent = await peer.send("Plain", properties=KEY, queue_id=1)
        assert (sent.code, sent.ext["queueOffset"]) == (0, "1")
        assert len(await peer.messages("Plain", queue_id=1)) == 2

    with_broker(story, settings_of(tmp_path))


def test_a_held_pull_gets_a_compiled_send(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(2):
            await peer.send("Plain", b"first", properties=KEY)
        pull = asyncio.create_task(peer.pull("Plain", 2, wait_ms=60_000))
        await peer.until_held(1)
        await peer.send("Plain", b"awaited", properties=KEY)
        assert [each.body for each in decode_records((await pull).body)] == [b"awaited"]

    with_broker(story, settings_of(tmp_path, {"flush": "async"}))


def test_compiled_sends_that_are_not_stored_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    async def story() -> None:
        broker = await started(tmp_path, compiled_turn=True)
        before, messages = taken(broker), broker.graph.loop.stats.put_total.messages
        with monkeypatch.context() as patch:
            patch.setattr(mapped_file, "write_all", write)
            responses = await exchange(broker, json_frame(310, FIELDS, b"z" * 5_000, 9, 0), ())
        assert taken(broker) > before
        assert (responses[0].opaque, responses[0].code) != (9, ResponseCode.SUCCESS)
        stored = sum(each.code == ResponseCode.SUCCESS for each in responses)
        assert broker.graph.loop.stats.put_total.messages - messages == stored
        await broker.stop()

    asyncio.run(story())


def test_compiled_sends_wait_for_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(2):
            await peer.send("Plain", b"first", properties=KEY)
        may_flush = hang_disk(monkeypatch)
        ext = SendMessageHeader("PG", "Plain", 0, KEY).to_ext()
        sends = [
            asyncio.create_task(peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"waiting")) for _ in range(5)
        ]
        positions = peer.store.positions
        await eventually_async(lambda: positions.waiting == 5)
        assert not any(each.done() for each in sends)
        may_flush.set()
        assert {(await each).code for each in sends} == {ResponseCode.SUCCESS}
        assert positions.waiting == 0

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}))


def test_compiled_sends_of_a_slow_disk_get_a_flush_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(2):
            await peer.send("Plain", b"first", properties=KEY)
        may_flush = hang_disk(monkeypatch)
        try:
            sent = await peer.send("Plain", b"slow", properties=KEY)
            assert (sent.code, sent.ext["queueOffset"]) == (ResponseCode.FLUSH_DISK_TIMEOUT, "2")
            assert sent.remark is not None
            assert "sync_flush_timeout_ms" in sent.remark
        finally:
            may_flush.set()

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}, sync_flush_timeout_ms=50))
