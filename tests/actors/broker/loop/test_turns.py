"""Units for many queues are written by another thread: meanwhile the loop serves other requests.

`test_catch_up` has the requests that ask for the messages.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from actors.broker.loop import turns
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand, encode_command
from actors.remoting.headers import DeleteTopicHeader, TopicQueueHeader
from actors.remoting.hot_headers import SendMessageHeader
from store.dispatch.dispatcher import Dispatcher
from tests.actors.broker.brokers import HOLD_MS, Peer, with_broker
from tests.actors.broker.loop.slow_writes import QUEUES, SlowWrites, send_to_all, settings
from tests.eventually import LIMIT_S


async def max_offset(peer: Peer, queue_id: int) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", queue_id).to_ext())
    return int(answer.ext["offset"])


async def fill(peer: Peer) -> None:
    """Two messages in each queue: the first makes the files, the second opens as many as may be open."""
    for end in (1, 2):
        await send_to_all(peer, b"before")
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [end] * QUEUES


def test_all_are_served_while_units_are_written_and_held_pulls_get_them_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        last = QUEUES - 1  # its message is the one for which all are dispatched
        held = asyncio.create_task(peer.pull("T", 2, last, wait_ms=HOLD_MS))
        await peer.until_held(1)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")  # acknowledged: that they are in the log is what counts
            await disk.until_asked()
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert not held.done()
            disk.go_on()
            assert (await held).code == ResponseCode.SUCCESS
            assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [3] * QUEUES

    with_broker(story, settings(tmp_path))


def test_a_topic_deleted_while_its_units_are_written_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        with SlowWrites(monkeypatch) as disk:
            await send_to_all(peer, b"1")
            delete = asyncio.create_task(
                peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
            )
            await disk.until_asked()
            assert (await peer.send("U")).code == ResponseCode.SUCCESS
            assert not delete.done()
            disk.go_on()
            assert (await delete).code == ResponseCode.SUCCESS
            assert list((tmp_path / "store").glob("*/consumequeue/T")) == []
            await send_to_all(peer, b"2")
            assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [1] * QUEUES

    with_broker(story, settings(tmp_path))


def test_answers_are_written_before_what_was_sent_is_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_answered = threading.Event()
    waits: list[bool] = []
    step = Dispatcher.step

    def wait_then_step(*arguments):
        waits.append(is_answered.wait(LIMIT_S))
        return step(*arguments)

    def send(address: str) -> bytes:
        """A client with a processor of its own: the loop is held while it waits for the answer."""
        host, _, port = address.rpartition(":")
        header = SendMessageHeader("PG", "T", 0, "").to_ext()
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as peer:
            peer.sendall(encode_command(RemotingCommand(RequestCode.SEND_MESSAGE_V2, header, b"hello")))
            answer = peer.recv(65_536)
        is_answered.set()
        return answer

    async def story(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS
        assert await max_offset(peer, 0) == 1
        monkeypatch.setattr(Dispatcher, "step", wait_then_step)
        monkeypatch.setattr(turns, "DISPATCH_LATER_NS", 0)  # in the turn of the send
        assert b'"queueOffset":"1"' in await asyncio.to_thread(send, peer.broker.address)
        assert waits == [True]

    with_broker(story, settings(tmp_path))
