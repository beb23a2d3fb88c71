"""Units for many queues are written by another thread: meanwhile all others are served, and those who wait
for these messages get them then.

With a clock at rest the broker dispatches for readers only, at no time by itself.
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
from store.kernels import unit_files
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async

QUEUES = 20


class SlowWrites:
    """Lets the units of many queues be written only after `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked, self._gate = threading.Event(), threading.Event()
        self._holds_loop = False
        write_units = unit_files.write_units

        def wait_then_write(*arguments: object) -> int:
            self._holds_loop = threading.current_thread() is threading.main_thread()
            self._asked.set()
            assert self._holds_loop or self._gate.wait(LIMIT_S)
            return int(write_units(*arguments))

        monkeypatch.setattr(unit_files, "write_units", wait_then_write)

    def go_on(self) -> None:
        self._gate.set()

    async def until_asked(self) -> None:
        await eventually_async(self._asked.is_set)
        assert not self._holds_loop, "the loop's own thread writes the units"


async def max_offset(peer: Peer, queue_id: int) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, TopicQueueHeader("T", queue_id).to_ext())
    return int(answer.ext["offset"])


async def fill(peer: Peer) -> None:
    """Two messages in each queue: the first makes the files, the second opens as many as may be open."""
    for end in (1, 2):
        await send_to_all(peer, b"before")
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [end] * QUEUES


async def send_to_all(peer: Peer, body: bytes, queues: int = QUEUES) -> None:
    header = {"default_topic_queue_nums": QUEUES}
    answers = await asyncio.gather(*(peer.send("T", body, queue_id, **header) for queue_id in range(queues)))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


def settings(tmp_path: Path):
    return settings_of(tmp_path, {"max_open_files": 4}, default_topic_queues=QUEUES)


def test_all_are_served_while_units_are_written_and_held_pulls_get_them_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        disk = SlowWrites(monkeypatch)
        monkeypatch.setattr(turns, "CATCH_UP_S", 0.001)
        await send_to_all(peer, b"1")  # acknowledged: that they are in the log is what counts
        assert await max_offset(peer, 3) == 2
        await disk.until_asked()
        held = asyncio.create_task(peer.pull("T", 2, 3, wait_ms=HOLD_MS))
        assert (await peer.send("U")).code == ResponseCode.SUCCESS
        assert not held.done()
        disk.go_on()
        monkeypatch.setattr(turns, "CATCH_UP_S", LIMIT_S)
        assert (await held).code == ResponseCode.SUCCESS
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [3] * QUEUES

    with_broker(story, settings(tmp_path), clock)


def test_units_that_a_held_pull_waits_for_are_written_by_the_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        last = QUEUES - 1
        held = asyncio.create_task(peer.pull("T", 2, last, wait_ms=HOLD_MS))
        await peer.until_held(1)
        disk = SlowWrites(monkeypatch)
        await send_to_all(peer, b"1", QUEUES - 1)  # not dispatched: the pull waits for none of them
        assert (await peer.send("T", b"1", last)).code == ResponseCode.SUCCESS
        await disk.until_asked()
        assert (await peer.send("U")).code == ResponseCode.SUCCESS
        assert not held.done()
        disk.go_on()
        assert (await held).code == ResponseCode.SUCCESS

    with_broker(story, settings(tmp_path), clock)


def test_who_reads_what_has_just_been_acknowledged_waits_a_little_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        disk = SlowWrites(monkeypatch)
        await send_to_all(peer, b"1")
        asyncio.get_running_loop().call_soon(disk.go_on)
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [3] * QUEUES

    with_broker(story, settings(tmp_path), clock)


def test_a_topic_deleted_while_its_units_are_written_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer)
        disk = SlowWrites(monkeypatch)
        await send_to_all(peer, b"1")
        monkeypatch.setattr(turns, "CATCH_UP_S", 0.001)
        delete = asyncio.create_task(
            peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("T").to_ext())
        )
        await disk.until_asked()
        assert (await peer.send("U")).code == ResponseCode.SUCCESS
        assert not delete.done()
        disk.go_on()
        monkeypatch.setattr(turns, "CATCH_UP_S", LIMIT_S)
        assert (await delete).code == ResponseCode.SUCCESS
        assert list((tmp_path / "store").glob("*/consumequeue/T")) == []
        await send_to_all(peer, b"2")
        assert [await max_offset(peer, queue_id) for queue_id in range(QUEUES)] == [1] * QUEUES

    with_broker(story, settings(tmp_path), clock)


def test_answers_are_written_before_what_was_sent_is_dispatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_answered = threading.Event()
    waits: list[bool] = []
    start = Dispatcher.start

    def wait_then_start(*arguments):
        waits.append(is_answered.wait(LIMIT_S))
        return start(*arguments)

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
        monkeypatch.setattr(Dispatcher, "start", wait_then_start)
        monkeypatch.setattr(turns, "DISPATCH_LATER_NS", 0)  # in the turn of the send
        assert b'"queueOffset":"1"' in await asyncio.to_thread(send, peer.broker.address)
        assert waits == [True]

    with_broker(story, settings(tmp_path))
