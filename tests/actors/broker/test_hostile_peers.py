"""Hostile and broken clients get an error or are disconnected, without effect on other clients."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from actors.transport.limits import KEPT_BYTES
from actors.wire.bodies.progress import decode_consume_stats_list
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.headers import PullRecordsHeader
from actors.wire.hot_headers import PullMessageHeader
from store.message.batch import encode_batch
from store.message.message import Message
from tests.actors.broker.brokers import HOLD_MS, SUBSCRIPTION, TIMEOUT_MS, Peer, settings_of, with_broker
from tests.actors.header_names import least_fields
from tests.eventually import eventually_async

CORPUS = sorted((Path(__file__).parents[2] / "fixtures" / "frames").glob("*.bin"))
FIELDS = (
    "topic", "queueId", "offset", "queueOffset", "consumerGroup", "group", "key", "timestamp", "a", "b", "c",
    "d", "e", "f", "g", "h", "i", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subVersion", "subscription", "expressionType", "clientID", "brokerName", "statsName", "statsKey",
    "count", "index", "isForce", "maxNum", "beginTimestamp", "endTimestamp", "producerGroup", "perm",
    "readQueueNums", "writeQueueNums", "defaultTopic", "topicFilterType", "delayLevel", "groupName",
)  # fmt: skip
VALUES = (
    "", "T", "0", "-1", "7", "4294967296", "9223372036854775807", "true", "%RETRY%G", "G", "a || b", "\x00",
    "x" * 300, "TAG", "SQL92", "a > 1", "SCHEDULE_TOPIC_XXXX", "1e9", "ü",
)  # fmt: skip
BODIES = (b"", b"{}", b"[]", b"null", b'{"clientID":5}', b'{"offsets":[[1]]}', b"\xff" * 40, b"x" * 5000)


@asynccontextmanager
async def socket_to(peer: Peer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = peer.broker.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def until_alone(peer: Peer) -> None:
    """Wait until only the client `peer` is connected."""
    await eventually_async(lambda: len(peer.loop.server.connections) == 1)


def test_random_fields_and_bodies_get_a_response_and_reveal_no_bug(tmp_path: Path) -> None:
    rng = random.Random(11)

    async def story(peer: Peer) -> None:
        await peer.send("T")
        table = peer.loop.server.chain.table
        for entry in list(table):
            least = least_fields(entry.header_type) if entry.header_type is not None else {}
            for _ in range(12):
                ext = least | {name: rng.choice(VALUES) for name in least if rng.random() < 0.3}
                ext |= {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.randrange(4))}
                ext |= {"suspendTimeoutMillis": "0", "waitMs": "0", "pollTime": "0"}  # no request is held
                response = await peer.ask(entry.code, ext, rng.choice(BODIES))
                remark = response.remark or ""
                bug = [name for name in ("TypeError", "AttributeError", "KeyError", "IndexError", "Overflow")
                       if remark.startswith(name)]  # fmt: skip
                assert not bug, (entry.code, ext, remark)
        assert (await peer.send("Later")).code == ResponseCode.SUCCESS

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


def test_corpus_of_frames_changes_nothing(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        for path in CORPUS:
            async with socket_to(peer) as (reader, writer):
                writer.write(path.read_bytes())
                writer.write_eof()
                while await reader.read(65536):
                    pass
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        await until_alone(peer)
        hub = peer.loop.server.hub
        assert (hub.memory.assembly_bytes, hub.unread_bytes) == (0, 0)

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


def test_hundreds_of_closed_connections_leave_no_state(tmp_path: Path) -> None:
    pull = encode_command(
        RemotingCommand(
            RayMQRequestCode.PULL_RECORDS, PullRecordsHeader("T", 0, 1, "CG", wait_ms=HOLD_MS).to_ext()
        )
    )

    async def one(peer: Peer, number: int) -> None:
        async with socket_to(peer) as (_, writer):
            if number % 3:
                writer.write(pull if number % 3 == 1 else pull[: number % len(pull)])
                await writer.drain()
            if number % 5 == 0:
                writer.transport.abort()

    async def story(peer: Peer) -> None:
        await peer.send("T")
        for _ in range(3):
            await asyncio.gather(*(one(peer, number) for number in range(100)))
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
        await until_alone(peer)
        assert peer.broker.describe()["held_pulls"] == 0
        assert not peer.loop.held.keys

    with structlog.testing.capture_logs():
        with_broker(story, settings_of(tmp_path))


def test_consumer_that_never_reads_does_not_exhaust_memory(tmp_path: Path) -> None:
    pull = encode_command(
        RemotingCommand(RayMQRequestCode.PULL_RECORDS, PullRecordsHeader("T", 0, 0, "CG").to_ext())
    )

    async def story(peer: Peer) -> None:
        for _ in range(16):
            await peer.send("T", b"x" * 50_000)
        async with socket_to(peer) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(pull * 500)
            hub = peer.loop.server.hub
            await eventually_async(lambda: hub.unread_bytes >= 4 * 1024 * 1024)
            for _ in range(20):
                assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert hub.unread_bytes < 6 * 1024 * 1024
            refused = await peer.pull_records("T")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "bytes of responses wait for clients that do not read them" in (refused.remark or "")
        await until_alone(peer)
        assert hub.unread_bytes == 0
        assert (await peer.pull_records("T")).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path, max_unread_bytes=4_000_000))


def test_limit_of_unread_bytes_follows_the_live_setting(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        peer.broker.live.update({"max_unread_bytes": 5_000_000})
        hub = peer.loop.server.hub
        assert (hub.limits.max_unread_bytes, hub.account.limit_bytes) == (10_000_000, KEPT_BYTES)
        peer.broker.live.update({"max_unread_bytes": 2 * KEPT_BYTES})
        assert hub.account.limit_bytes == hub.limits.max_unread_bytes == 4 * KEPT_BYTES

    with_broker(story, settings_of(tmp_path, max_unread_bytes=4_000_000))


def test_listener_binds_to_loopback_by_default(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert peer.broker.address.startswith("127.0.0.1:")
        assert (await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))


HUGE = "1" + "0" * 40


def test_oversized_numbers_are_refused_and_tables_can_be_saved(tmp_path: Path) -> None:
    """One commit of more than 64 bits would prevent the offsets of all groups from being saved."""
    pull = PullMessageHeader("CG", "T", 0, 0, sys_flag=SUBSCRIPTION | 1, subscription="*").to_ext()
    commit = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"}
    query = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "generation": HUGE}
    body = b'{"group":"CG","clientId":"c","offsets":[["T",0,"%s",0]]}' % HUGE.encode()
    requests: list[tuple[int, dict[str, str], bytes]] = [
        (RequestCode.PULL_MESSAGE, pull | {"commitOffset": HUGE}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": HUGE}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": str(2**63)}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"queueId": HUGE}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"queueId": str(2**31)}, b""),
        (RequestCode.UPDATE_CONSUMER_OFFSET, commit | {"queueId": "-1"}, b""),
        (RequestCode.QUERY_CONSUMER_OFFSET, query, b""),
        (RayMQRequestCode.COMMIT_OFFSETS, {}, body),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields() | {"readQueueNums": HUGE}, b""),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields() | {"readQueueNums": "65536"}, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"D","x":%s}' % nested(200)),
    ]

    async def story(peer: Peer) -> None:
        await peer.send("T")
        for code, ext, content in requests:
            response = await peer.ask(code, ext, content)
            assert response.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR), (
                code,
                response,
            )
            assert "Error:" not in (response.remark or ""), response.remark
        await peer.commit("CG", "T", 1)
        await peer.tables.save_offsets()
        await peer.tables.save_definitions()
        assert (await peer.committed("CG", "T")).ext["offset"] == "1"

    with_broker(story, settings_of(tmp_path))


def test_statistics_are_readable_with_the_largest_offsets(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        for queue_id in range(3):
            assert (await peer.commit("CG", "T", 2**63 - 1, queue_id)).code == ResponseCode.SUCCESS
        response = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert response.code == ResponseCode.SUCCESS, response.remark
        assert "CG" in decode_consume_stats_list(response.body)

    with_broker(story, settings_of(tmp_path))


def topic_fields() -> dict[str, str]:
    """Return the required fields of UPDATE_AND_CREATE_TOPIC."""
    return {
        "topic": "U",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }


def nested(depth: int) -> bytes:
    """Return nested JSON lists."""
    return b"[" * depth + b"]" * depth


def test_send_with_oversized_numbers_is_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for wrong in ({"sys_flag": 2**31}, {"flag": -(2**40)}, {"born_timestamp": 2**63}, {"batch": True}):
            body = encode_batch([Message("T", b"x")])
            header = {"reconsume_times": 2**40} if "batch" in wrong else {}
            response = await peer.send("T", body, **wrong, **header)
            assert response.code == ResponseCode.SYSTEM_ERROR
            assert "must be 32-bit integers" in (response.remark or "")
        assert (await peer.send("T")).ext["queueOffset"] == "0"

    with structlog.testing.capture_logs() as logs:
        with_broker(story, settings_of(tmp_path))
    assert not [line for line in logs if line["event"] == "request_failed"]


def test_remark_about_a_name_of_megabytes_is_short(tmp_path: Path) -> None:
    name = "\x00" * (5 * 1024 * 1024)  # three times as long in a remark: more than the largest frame

    async def story(peer: Peer) -> None:
        ext = PullMessageHeader("CG", "T", 0, 0, subscription="*").to_ext() | {"topic": name}
        request = RemotingCommand(RequestCode.PULL_MESSAGE, ext, serialize_type=1)
        response = await peer.client.invoke(peer.broker.address, request, TIMEOUT_MS)
        assert response.code == ResponseCode.TOPIC_NOT_EXIST
        assert len(response.remark or "") <= 4096
        response = await peer.ask(
            RequestCode.SET_MESSAGE_REQUEST_MODE, body=b'{"x":"%s"}' % (b"y" * 9_000_000)
        )
        assert response.code == ResponseCode.INVALID_PARAMETER
        assert len(response.remark or "") <= 4096

    with_broker(story, settings_of(tmp_path))
