"""A read request sees every message acknowledged before it; the event loop does not block meanwhile."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgpack
import orjson
import pytest

from actors.broker.core.loop import end_of_turn
from actors.broker.service import BrokerService
from actors.wire.admin_headers import (
    ConsumeQueueHeader,
    ConsumeStatsHeader,
    GroupTopicHeader,
    ResetOffsetHeader,
)
from actors.wire.bodies.broker import ConsumeQueueUnits
from actors.wire.bodies.progress import (
    ConsumeStats,
    TopicStatsTable,
    decode_consume_stats_list,
    decode_progress_offsets,
    decode_time_spans,
)
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.headers import (
    QueryConsumerOffsetHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicHeader,
    TopicQueueHeader,
)
from actors.wire.raymq_requests import SplitsBody
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from store.message.record import decode_records
from tests.actors.broker.brokers import A_DAY_MS, HOLD_MS, Peer, run, settings_of, with_broker
from tests.actors.broker.core.loop.slow_writes import (
    QUEUES,
    SlowWrites,
    dispatch_for_readers_only,
    send_to_all,
    settings,
)
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async

Read = Callable[[Peer], Awaitable[object]]
QUEUE = 3
Q3 = MessageQueue("T", "broker-a", QUEUE)
FAR_MS = 10**15


async def ask(peer: Peer, code: int, header: object | None = None) -> RemotingCommand:
    response = await peer.ask(code, header.to_ext() if header is not None else {})  # type: ignore[attr-defined]
    assert response.code == ResponseCode.SUCCESS, response.remark
    return response


async def max_offset(peer: Peer) -> int:
    return int((await ask(peer, RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", QUEUE))).ext["offset"])


def ask_max_offset(peer: Peer) -> asyncio.Task[RemotingCommand]:
    """Start a read that waits for dispatch and may be refused."""
    return asyncio.create_task(peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", QUEUE).to_ext()))


async def pull(peer: Peer) -> int:
    return len(await peer.messages("T", queue_id=QUEUE))


async def pull_that_may_wait(peer: Peer) -> int:
    return len(decode_records((await peer.pull("T", queue_id=QUEUE, wait_ms=HOLD_MS)).body))


async def pull_records(peer: Peer) -> int:
    found = await peer.pull_records("T", queue_id=QUEUE, max_messages=9, max_bytes=9_999)
    return len(decode_records(found.body))


async def search_offset(peer: Peer) -> bool:
    header = SearchOffsetHeader("T", QUEUE, FAR_MS)
    return int((await ask(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).ext["offset"]) == 1


async def earliest_time(peer: Peer) -> bool:
    header = TopicQueueHeader("T", QUEUE)
    return int((await ask(peer, RequestCode.GET_EARLIEST_MSG_STORETIME, header)).ext["timestamp"]) > 0


async def by_key(peer: Peer) -> int:
    header = QueryMessageHeader("T", "all", QUEUES, 0, FAR_MS)
    return len(decode_records((await ask(peer, RequestCode.QUERY_MESSAGE, header)).body)) // QUEUES


async def splits(peer: Peer) -> int:
    body = (await ask(peer, RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T"))).body
    return SplitsBody.decode(body).queues[QUEUE].max_offset


async def topic_stats(peer: Peer) -> int:
    body = (await ask(peer, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T"))).body
    return TopicStatsTable.decode(body).offsets[Q3].max_offset


async def consume_stats(peer: Peer) -> int:
    body = (await ask(peer, RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG", "T"))).body
    return ConsumeStats.decode(body).offsets[Q3].broker_offset


async def all_consume_stats(peer: Peer) -> int:
    await peer.commit("CG", "T", 0, QUEUE)
    body = (await ask(peer, RequestCode.GET_BROKER_CONSUME_STATS)).body
    return decode_consume_stats_list(body)["CG"][0].offsets[Q3].broker_offset


async def time_span(peer: Peer) -> bool:
    body = (await ask(peer, RequestCode.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader("CG", "T"))).body
    return all(span.max_timestamp > 0 for span in decode_time_spans(body))


async def consume_queue(peer: Peer) -> int:
    body = (await ask(peer, RequestCode.QUERY_CONSUME_QUEUE, ConsumeQueueHeader("T", QUEUE, 0, 9))).body
    return ConsumeQueueUnits.decode(body).max_offset


async def reset_to_end(peer: Peer) -> int:
    group = orjson.dumps({"groupName": "CG"})
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    header = ResetOffsetHeader("T", "CG", queue_id=QUEUE)
    return decode_progress_offsets((await ask(peer, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).body)[
        Q3
    ]


async def offset_of_new_topic(peer: Peer) -> bool:
    header = QueryConsumerOffsetHeader("CG", "T", QUEUE)
    return (await ask(peer, RequestCode.QUERY_CONSUMER_OFFSET, header)).ext["offset"] == "0"


async def read_by_handle(peer: Peer) -> int:
    request = msgpack.packb({"v": 1, "topic": "T", "queue": QUEUE, "offset": 0})
    return int(msgpack.unpackb(await peer.broker.handle.read(request))["count"])


async def offsets_by_handle(peer: Peer) -> int:
    reply = msgpack.unpackb(await peer.broker.handle.offsets(msgpack.packb({"v": 1, "topic": "T"})))
    return int(reply["queues"][QUEUE][2])


async def unread_of_drain(peer: Peer) -> int:
    await peer.heartbeat("client", "CG", T="*")
    (group,) = (await peer.broker.drain.progress())["groups"]
    return int(group["unread"]) // QUEUES


READS: list[Read] = [
    max_offset,
    pull,
    pull_that_may_wait,
    pull_records,
    search_offset,
    earliest_time,
    by_key,
    splits,
    topic_stats,
    consume_stats,
    all_consume_stats,
    time_span,
    consume_queue,
    reset_to_end,
    offset_of_new_topic,
    read_by_handle,
    offsets_by_handle,
    unread_of_drain,
]


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
def test_a_read_waits_for_units_being_written_while_others_are_served(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("U")
        assert len(await peer.messages("U")) == 1
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1", properties="KEYS\x01all\x02")
            reading = asyncio.ensure_future(read(peer))
            await disk.until_blocked()
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            described = peer.broker.describe()
            assert described["dispatched"] < described["confirmed"]  # type: ignore[operator]
            assert not reading.done()
            disk.resume()
            assert await reading == 1

    with_broker(story, settings(tmp_path))


def test_reads_of_many_connections_wait_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        peers = [Peer(peer.broker) for _ in range(5)]
        await peer.send("U")
        assert len(await peer.messages("U")) == 1
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            first = asyncio.gather(*(max_offset(each) for each in peers))
            await disk.until_blocked()
            await send_to_all(peer, b"2")  # their units need another dispatch step
            second = asyncio.gather(*(max_offset(each) for each in peers), pull(peer))
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert not first.done()
            assert not second.done()
            disk.resume()
            assert set(await first) <= {1, 2}
            assert set(await second) == {2}
            for each in peers:
                await each.client.close()

    with_broker(story, settings(tmp_path))


def test_a_pull_of_dispatched_messages_does_not_wait_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        for body in (b"1", b"2"):  # the first creates the files, the second opens as many as allowed
            await send_to_all(peer, body)
            await max_offset(peer)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"3")
            reading = asyncio.create_task(max_offset(peer))
            await disk.until_blocked()
            assert await pull(peer) == 2
            assert await read_by_handle(peer) == 2
            assert not reading.done()
            disk.resume()
            assert await reading == 3

    with_broker(story, settings(tmp_path))


def test_a_read_after_sends_across_log_files_sees_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        code = RequestCode.GET_MAX_OFFSET
        await peer.send("T", b"x" * 40_000)
        assert await peer.offset(code, "T") == 1
        dispatch_for_readers_only(monkeypatch)
        for _ in range(3):  # each in a new log file
            assert (await peer.send("T", b"x" * 40_000)).code == ResponseCode.SUCCESS
        assert await peer.offset(code, "T") == 4
        for _ in range(3):
            assert (await peer.send("T", b"x" * 40_000)).code == ResponseCode.SUCCESS
        offset = 4
        while offset < 7:  # a pull returns what one turn dispatched, which is not nothing
            found = [message.queue_offset for message in await peer.messages("T", offset)]
            assert found
            assert found == list(range(offset, offset + len(found)))
            offset += len(found)

    with_broker(story, settings_of(tmp_path, {"commit_log_file_bytes": 1 << 16, "max_message_bytes": 50_000}))


def test_reads_are_refused_while_dispatch_fails_except_of_dispatched_messages(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.send("U", b"dispatched")).code == ResponseCode.SUCCESS
        assert len(await peer.messages("U")) == 1
        queues = tmp_path / "store" / "consumequeue"
        (queues / "T").touch()  # where the store needs a directory
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        for refused in (
            await peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", 0).to_ext()),
            await peer.ask(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T").to_ext()),
            await peer.pull("T", wait_ms=HOLD_MS),
        ):
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be read yet: consume queues or index cannot be written" in (refused.remark or "")
        assert [message.body for message in await peer.messages("U")] == [b"dispatched"]
        (queues / "T").unlink()
        clock.advance(1_000)
        await eventually_async(lambda: not peer.broker.describe()["write_refusal"])
        assert await peer.offset(RequestCode.GET_MAX_OFFSET, "T") == 1
        assert len(await peer.messages("T")) == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_a_read_that_waits_gets_an_error_if_the_units_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        queues = tmp_path / "store" / "consumequeue"
        await peer.send("U")
        assert len(await peer.messages("U")) == 1
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            reading = ask_max_offset(peer)
            splitting = asyncio.create_task(
                peer.ask(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader("T").to_ext())
            )
            await disk.until_blocked()
            shutil.rmtree(queues / "T", ignore_errors=True)
            (queues / "T").touch()
            disk.resume()
            for refused in (await reading, await splitting):
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert "consume queues or index cannot be written" in (refused.remark or "")
            (queues / "T").unlink()
            monkeypatch.setattr(end_of_turn, "DISPATCH_LATER_NS", 0)
            clock.advance(1_000)
            await eventually_async(lambda: not peer.broker.describe()["write_refusal"])
            assert await max_offset(peer) == 1

    with_broker(story, settings(tmp_path), clock)


def test_a_read_that_waits_too_long_is_refused_and_the_next_one_sees_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("U")
        assert len(await peer.messages("U")) == 1
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            reading = ask_max_offset(peer)
            await disk.until_blocked()
            await eventually_async(lambda: peer.loop.end_of_turn.waiting == 1)
            clock.advance(5_000)
            refused = await reading
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "period in queue: 5000ms, size of queue: 1: " in (refused.remark or "")
            assert "(wait_in_pull_queue_ms 5000)" in (refused.remark or "")
            reading = ask_max_offset(peer)
            disk.resume()
            assert (await reading).ext["offset"] == "1"

    # Without the timer service, which reads periodically: it would wait, and count in the queue, too.
    with_broker(story, settings(tmp_path, wait_in_pull_queue_ms=5_000, timer_wheel_enable=False), clock)


def test_waiting_reads_are_refused_before_the_broker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk: list[SlowWrites] = []

    def read(address: str) -> bytes:
        """Read in another thread, because the event loop blocks when the broker closes the store."""
        host, _, port = address.rpartition(":")
        header = TopicQueueHeader("T", QUEUE).to_ext()
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as peer:
            peer.sendall(encode_command(RemotingCommand(RequestCode.GET_MAX_OFFSET, header)))
            response = peer.recv(65_536)
        disk[0].resume()
        return response

    async def story() -> None:
        broker = BrokerService(settings(tmp_path), SystemClock())
        await broker.start()
        peer = Peer(broker)
        await peer.send("U")
        assert len(await peer.messages("U")) == 1
        disk.append(SlowWrites(monkeypatch))
        await send_to_all(peer, b"1")
        reading = asyncio.create_task(asyncio.to_thread(read, broker.address))
        await disk[0].until_blocked()
        # The first turn dispatches without a reader, so the thread may not have sent its request yet.
        await eventually_async(lambda: broker.graph.loop.end_of_turn.waiting == 1)
        await peer.client.close()
        await broker.stop()
        assert b"this broker is shutting down" in await reading

    run(story)


def test_read_is_served_while_the_broker_still_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        registers, may_continue = asyncio.Event(), asyncio.Event()

        async def never_respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            registers.set()
            await may_continue.wait()
            writer.close()

        nameserver = await asyncio.start_server(never_respond, "127.0.0.1", 0)
        host, port = nameserver.sockets[0].getsockname()
        broker = BrokerService(settings(tmp_path, nameservers=f"{host}:{port}"), SystemClock())
        starting = asyncio.create_task(broker.start())
        await registers.wait()
        peer = Peer(broker)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            reading = asyncio.create_task(max_offset(peer))
            await disk.until_blocked()
            disk.resume()
            assert await reading == 1
            assert not starting.done()
            may_continue.set()
            nameserver.close()
            await starting
            await peer.client.close()
            await broker.stop()

    monkeypatch.setattr("actors.broker.core.registration.REGISTER_TIMEOUT_MS", A_DAY_MS)
    # Sends that create the topic do not wait for the registration.
    monkeypatch.setattr("actors.broker.core.registration.SETTLE_TIMEOUT_MS", 1)
    run(story)
