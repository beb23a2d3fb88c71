"""Held requests of another kind than pulls wait for the messages of a topic, whatever their queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from actors.broker.core.loop import end_of_turn
from actors.broker.core.loop.wait_registry import HeldRequest, WaitRegistry
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from actors.wire.targets import Action, on_topic
from store.message_store import Arrival
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker

AWAIT_TOPIC = 65_000


class TopicWait(HeldRequest[Arrival]):
    def is_satisfied(self, arrival: Arrival) -> bool:
        return True

    def resume(self) -> None:
        self.context.reply(RemotingCommand.response(ext={"hasMsg": "true"}))


class TopicWaits:
    def __init__(self, held: WaitRegistry[Arrival]) -> None:
        self._held = held

    def rows(self) -> Iterable[RequestRow]:
        return (RequestRow(AWAIT_TOPIC, self.wait, TopicHeader, on_topic(Action.SUB), Cost.PULL),)

    def wait(self, context: RequestContext) -> None:
        self._held.hold(TopicWait(context, context.header.topic), HOLD_MS)
        context.release_request()


def awaits_topic(peer: Peer, topic: str) -> asyncio.Task[RemotingCommand]:
    return asyncio.create_task(peer.ask(AWAIT_TOPIC, TopicHeader(topic).to_ext()))


def test_send_to_any_queue_wakes_a_wait_on_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The broker dispatches at once only what a held request waits for.
    monkeypatch.setattr(end_of_turn, "DISPATCH_LATER_NS", 10**12)

    async def story(peer: Peer) -> None:
        loop = peer.loop
        loop.requests.add_rows(TopicWaits(loop.held).rows())
        for topic in ("T", "Other"):
            await peer.send(topic)
            assert (await peer.pull(topic)).code == ResponseCode.SUCCESS  # dispatches the message
        waiting, other = awaits_topic(peer, "T"), awaits_topic(peer, "Other")
        pull = asyncio.create_task(peer.pull("T", 0, queue_id=2, wait_ms=HOLD_MS))
        await peer.until_held(3)
        await peer.send("T", queue_id=3)
        assert (await waiting).ext["hasMsg"] == "true"
        await peer.until_held(2)
        again = awaits_topic(peer, "T")
        await peer.until_held(3)
        await peer.send("T", queue_id=2)
        assert (await again).ext["hasMsg"] == "true"
        assert (await pull).code == ResponseCode.SUCCESS
        assert not other.done()
        other.cancel()

    # the timer's rounds dispatch too
    with_broker(story, settings_of(tmp_path, timer_wheel_enable=False))


def test_new_subscription_completes_only_pulls(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        loop = peer.loop
        loop.requests.add_rows(TopicWaits(loop.held).rows())
        await peer.send("T")
        await peer.heartbeat("one", "CG", T="old")
        waiting = awaits_topic(peer, "T")
        await peer.until_held(1)
        await peer.heartbeat("one", "CG", T="new")
        assert len(loop.held) == 1
        await peer.send("T")
        assert (await waiting).ext["hasMsg"] == "true"

    with_broker(story, settings_of(tmp_path))
