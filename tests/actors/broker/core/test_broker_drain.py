"""Draining a broker: routes, refusals, lease and progress; stopping it acknowledges stored messages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.broker import service
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.drain import LEASE_MS, QUIET_MS
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, Story, run, settings_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async
from tests.ports import free_port

READ_WRITE, READ = 6, 4


async def permission(peer: Peer, nameserver: str, wanted: int) -> None:
    """Wait until the nameserver's route of topic T has the permission."""
    fields = {"topic": "T", "acceptStandardJsonOnly": "true"}

    async def has_permission() -> bool:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, dict(fields))
        response = await peer.client.invoke(nameserver, command, TIMEOUT_MS)
        return response.code == 0 and TopicRouteData.decode(response.body).queue_datas[0].perm == wanted

    await eventually_async(has_permission)


def test_drain_removes_write_permission_before_refusing_sends(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        nameserver = build_nameserver(NameserverSettings(listen_port=port), SystemClock())
        await nameserver.start()
        await peer.send("T")
        await permission(peer, nameserver.address, READ_WRITE)
        drain = peer.broker.drain

        drain.start()
        await permission(peer, nameserver.address, READ)
        assert (await peer.send("T", b"late")).code == 0

        drain.close()
        refused = await peer.send("T")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "broker-a is being drained" in (refused.remark or "")
        assert len(await peer.messages("T")) == 2
        assert peer.broker.describe()["drain_state"] == "closed"

        drain.cancel()
        await permission(peer, nameserver.address, READ_WRITE)
        assert (await peer.send("T")).code == 0
        await nameserver.stop()

    port = free_port()
    with_broker(story, settings_of(tmp_path, nameservers=f"127.0.0.1:{port}"))


def test_drain_does_not_change_saved_topic_permissions(tmp_path: Path) -> None:
    async def first(peer: Peer) -> None:
        await peer.send("T")
        peer.broker.drain.close()

    async def second(peer: Peer) -> None:
        assert (await peer.send("T")).code == 0

    with_broker(first, settings_of(tmp_path))
    with_broker(second, settings_of(tmp_path))


def test_drain_is_cancelled_when_its_lease_expires(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        drain = peer.broker.drain
        drain.close()
        clock.advance(LEASE_MS)
        drain.sweep()
        assert drain.state == "closed"
        drain.close()
        await peer.broker.drain.progress()  # only looks
        clock.advance(LEASE_MS)
        drain.sweep()
        assert drain.state == "closed"
        clock.advance(1)
        drain.sweep()
        assert drain.state == "active"
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path), clock)


def test_held_drain_refuses_sends_when_none_arrives_and_has_no_lease(
    tmp_path: Path, clock: ClockAtRest
) -> None:
    async def story(peer: Peer) -> None:
        drain = peer.broker.drain
        drain.hold()
        assert (await peer.send("T")).code == 0
        drain.sweep()  # the broker's own sweep may come before the clock advances, or not
        clock.advance(QUIET_MS - 1)
        drain.sweep()
        assert drain.state == "draining"
        clock.advance(1)
        drain.sweep()
        assert drain.state == "closed"
        assert (await peer.send("T")).code == ResponseCode.NO_PERMISSION
        clock.advance(10 * LEASE_MS)
        drain.sweep()
        assert drain.state == "closed"
        drain.cancel()
        clock.advance(QUIET_MS)
        drain.sweep()
        assert drain.state == "active"
        assert (await peer.send("T")).code == 0

    with_broker(story, settings_of(tmp_path), clock)


def test_progress_lists_unread_messages_of_online_and_offline_groups(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for queue_id in (0, 0, 0, 1):
            await peer.send("T", queue_id=queue_id)
        await peer.heartbeat("c1", "reads", T="*")
        await peer.commit("reads", "T", 1)
        await peer.commit("left", "T", 2)
        await peer.commit("done", "T", 3)
        progress = await peer.broker.drain.progress()
        assert progress["messages_in"] == 4
        assert progress["producers"] == 1
        # A group gets the message of queue 1 too, where it has not committed yet.
        assert progress["groups"] == [
            {"group": "done", "members": 0, "unread": 1, "topics": {"T": 1}},
            {"group": "left", "members": 0, "unread": 2, "topics": {"T": 2}},
            {"group": "reads", "members": 1, "unread": 3, "topics": {"T": 3}},
        ]
        await peer.commit("done", "T", 1, queue_id=1)
        await peer.commit("reads", "T", 3)
        await peer.commit("reads", "T", 1, queue_id=1)
        progress = await peer.broker.drain.progress()
        assert [(group["group"], group["unread"]) for group in progress["groups"]] == [
            ("left", 2),
            ("reads", 0),
        ]

    with_broker(story, settings_of(tmp_path))


def test_progress_counts_messages_not_dispatched_yet(tmp_path: Path, clock: ClockAtRest) -> None:
    """While the clock does not advance, the broker dispatches only for readers."""

    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.heartbeat("c1", "reads", T="*")
        await peer.commit("reads", "T", 1)
        await peer.commit("left", "T", 1)
        for queue_id in (0, 0, 1):
            assert (await peer.send("T", queue_id=queue_id)).code == ResponseCode.SUCCESS
        progress = await peer.broker.drain.progress()
        assert progress["groups"] == [
            {"group": "left", "members": 0, "unread": 3, "topics": {"T": 3}},
            {"group": "reads", "members": 1, "unread": 3, "topics": {"T": 3}},
        ]

    with_broker(story, settings_of(tmp_path), clock)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_every_message_stored_before_a_stop_is_acknowledged(
    tmp_path: Path, flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RESPONSE_TIMEOUT_MS", TIMEOUT_MS)
    acknowledged: list[bytes] = []
    settings = settings_of(tmp_path, {"flush": flush})

    async def first(peer: Peer) -> None:
        async def send(body: bytes) -> None:
            try:
                if (await peer.send("T", body)).code == 0:
                    acknowledged.append(body)
            except RemotingError:
                return

        sends = [asyncio.create_task(send(b"%d" % number)) for number in range(400)]
        await eventually_async(lambda: len(acknowledged) >= 20)
        await peer.broker.stop()
        await asyncio.gather(*sends)

    async def second(peer: Peer) -> None:
        stored: list[bytes] = []
        while found := await peer.messages("T", len(stored)):
            stored += [message.body for message in found]
        assert sorted(stored) == sorted(acknowledged)

    with_broker_that_stops(first, settings)
    with_broker(second, settings)


def with_broker_that_stops(story: Story, settings: BrokerSettings) -> None:
    async def scenario() -> None:
        broker = BrokerService(settings, SystemClock())
        await broker.start()
        peer = Peer(broker)
        await story(peer)
        await peer.client.close()

    run(scenario)
