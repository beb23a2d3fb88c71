"""The event loop serves other requests while a thread writes consume-queue units of many queues.

`test_catch_up` tests the requests that read these messages.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from actors.broker.core.loop import end_of_turn
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.headers import DeleteTopicHeader, TopicQueueHeader
from actors.wire.hot_headers import SendMessageHeader
from store.commitlog.flush import FlushJob
from store.dispatch.dispatcher import Dispatcher
from store.message_store import MessageStore
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.core.loop.slow_writes import QUEUES, SlowWrites, send_to_all, settings
from tests.eventually import LIMIT_S, eventually_async


async def max_offset(peer: Peer, queue_id: int) -> int:
    response = await peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", queue_id).to_ext())
    assert response.code == ResponseCode.SUCCESS, response.remark
    return int(response.ext["offset"])


async def fill(peer: Peer) -> None:
    """Send two messages to each queue: the first creates the files, the second opens as many as allowed."""
    for end in (1, 2):
        await send_to_all(peer, b"before")
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [end] * QUEUES


def test_requests_are_served_while_units_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        last = QUEUES - 1  # all messages are dispatched for the pull of this queue
        held = asyncio.create_task(peer.pull("T", 2, last, wait_ms=HOLD_MS))
        await peer.until_held(1)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")  # acknowledged when they are in the log
            await disk.until_blocked()
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert not held.done()
            disk.resume()
            assert (await held).code == ResponseCode.SUCCESS
            assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [3] * QUEUES

    with_broker(story, settings(tmp_path))


def test_topic_deleted_while_its_units_are_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            delete = asyncio.create_task(
                peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
            )
            await disk.until_blocked()
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert not delete.done()
            disk.resume()
            assert (await delete).code == ResponseCode.SUCCESS
            assert list((tmp_path / "store").glob("*/consumequeue/T")) == []
            await send_to_all(peer, b"2")
            assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [1] * QUEUES

    with_broker(story, settings(tmp_path))


def test_responses_are_written_before_dispatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_response = threading.Event()
    waits: list[bool] = []
    step = Dispatcher.step

    def wait_then_step(*arguments):
        waits.append(has_response.wait(LIMIT_S))
        return step(*arguments)

    def send(address: str) -> bytes:
        """Send in another thread: the event loop is blocked until this client has the response."""
        host, _, port = address.rpartition(":")
        header = SendMessageHeader("PG", "T", 0, "").to_ext()
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as peer:
            peer.sendall(encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, header, b"hello")))
            response = peer.recv(65_536)
        has_response.set()
        return response

    async def story(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert await max_offset(peer, 0) == 1
        monkeypatch.setattr(Dispatcher, "step", wait_then_step)
        monkeypatch.setattr(end_of_turn, "DISPATCH_LATER_NS", 0)  # dispatch in the turn of the send
        assert b'"queueOffset":"1"' in await asyncio.to_thread(send, peer.broker.address)
        assert waits == [True]

    with_broker(story, settings(tmp_path))


def test_turn_with_unconfirmed_sends_only_leaves_the_rest_to_the_end_of_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_flush, steps = threading.Event(), []
    run, step = FlushJob.run, MessageStore.step
    may_flush.set()

    def wait_then_run(job: FlushJob) -> None:
        assert may_flush.wait(LIMIT_S)
        run(job)

    def counted_step(store: MessageStore):
        steps.append(store)
        return step(store)

    monkeypatch.setattr(FlushJob, "run", wait_then_run)
    monkeypatch.setattr(MessageStore, "step", counted_step)

    async def story(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert await max_offset(peer, 0) == 1
        may_flush.clear()
        sends = [asyncio.create_task(peer.send("T")) for _ in range(2)]
        await eventually_async(lambda: peer.broker.describe()["sends_waiting"] == 2)
        turns, steps_before = peer.broker.describe()["turns"], len(steps)
        sends.append(asyncio.create_task(peer.send("T")))
        await eventually_async(lambda: peer.broker.describe()["sends_waiting"] == 3)
        await eventually_async(lambda: peer.broker.describe()["turns"] > turns)
        assert len(steps) == steps_before
        may_flush.set()
        assert {each.code for each in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}
        assert await max_offset(peer, 0) == 4
        assert len(steps) > steps_before

    with_broker(story, settings_of(tmp_path, {"flush": "sync"}))
