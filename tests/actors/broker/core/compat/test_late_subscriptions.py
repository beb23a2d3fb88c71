"""Pulls of Java clients that refer to a subscription which no heartbeat has reported yet."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from actors.broker.core.compat import late_subscriptions
from actors.broker.core.reading.pull import SUBSCRIPTION
from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import DeleteTopicHeader
from actors.wire.hot_headers import PullMessageHeader
from store.message.record import decode_records
from tests.actors.broker.brokers import A_DAY_MS, HOLD_MS, SUSPEND, Peer, settings_of, with_broker
from tests.eventually import LIMIT_S


async def report_subscription(
    peer: Peer, version: int, expression: str = "a", topic: str = "T", client: str = "c1"
) -> None:
    subscription = SubscriptionData(topic, expression, sub_version=version)
    beat = HeartbeatData(client, [ConsumerData("G", subscriptions=[subscription])])
    assert (await peer.ask(RequestCode.HEART_BEAT, body=beat.encode())).code == ResponseCode.SUCCESS


async def pull(peer: Peer, version: int, topic: str = "T", kind: str = "TAG") -> RemotingCommand:
    header = PullMessageHeader("G", topic, 0, 0, sys_flag=SUSPEND, sub_version=version, expression_type=kind)
    return await peer.ask(RequestCode.PULL_MESSAGE, header.to_ext())


def bodies(answer: RemotingCommand) -> list[bytes]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [message.body for message in decode_records(answer.body)]


async def send_a_and_b(peer: Peer, topic: str = "T") -> None:
    await peer.send(topic, b"a", properties="TAGS\x01a\x02")
    await peer.send(topic, b"b", properties="TAGS\x01b\x02")


@pytest.fixture
def long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waiting pulls wait longer than the test, so that none of them is refused."""
    monkeypatch.setattr(late_subscriptions, "WAIT_MS", A_DAY_MS)


async def start_pull(peer: Peer, version: int, topic: str = "T") -> asyncio.Task[RemotingCommand]:
    """Start a pull. The broker may process later requests of the same connection before its end."""
    pulling = asyncio.create_task(pull(peer, version, topic))
    await asyncio.sleep(0)
    return pulling


@pytest.mark.usefixtures("long_wait")
def test_pull_before_its_heartbeat_waits_for_it(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        first = await start_pull(peer, 1)
        await report_subscription(peer, 1, "a")
        assert bodies(await first) == [b"a"]

        newer = await start_pull(peer, 2)
        await report_subscription(peer, 1, "a", client="c2")
        assert not newer.done()
        await report_subscription(peer, 2, "b")
        assert bodies(await newer) == [b"b"]

    with_broker(story, settings_of(tmp_path))


@pytest.mark.usefixtures("long_wait")
def test_each_waiting_pull_gets_its_own_result(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        await peer.send("Gone")
        gone, kept = await start_pull(peer, 1, "Gone"), await start_pull(peer, 1)
        lost = Peer(peer.broker)
        unconfirmed = await start_pull(lost, 1)
        await report_subscription(lost, 0, topic="Other")
        await lost.client.close()
        await asyncio.gather(unconfirmed, return_exceptions=True)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicHeader("Gone").to_ext())
        subscriptions = [SubscriptionData(topic, "*", sub_version=1) for topic in ("Gone", "T")]
        beat = HeartbeatData("c1", [ConsumerData("G", subscriptions=subscriptions)])
        await peer.ask(RequestCode.HEART_BEAT, body=beat.encode())
        assert (await gone).code == ResponseCode.TOPIC_NOT_EXIST
        assert bodies(await kept) == [b"a", b"b"]

    with_broker(story, settings_of(tmp_path))


def test_repeated_pull_is_served_without_a_heartbeat(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        await report_subscription(peer, 1, "a")
        assert bodies(await pull(peer, 1)) == [b"a"]
        assert (await pull(peer, 2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        assert bodies(await pull(peer, 2)) == [b"a", b"b"]  # the client filters the messages itself
        stranger = Peer(peer.broker)
        assert (await pull(stranger, 2)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await stranger.client.close()
        await report_subscription(peer, 2, "b")
        assert bodies(await pull(peer, 2)) == [b"b"]

    with_broker(story, settings_of(tmp_path))


def test_repeated_pull_with_a_sql_filter_is_refused_without_a_heartbeat(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        for _ in range(3):  # unlike tags, the client does not evaluate the expression itself
            refused = await pull(peer, 1, kind="SQL92")
            assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_member_is_served_before_its_heartbeat_to_a_restarted_broker(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        assert (await pull(peer, 1)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert bodies(await pull(peer, 1)) == [b"a", b"b"]
        await report_subscription(peer, 1, "a")
        assert bodies(await pull(peer, 1)) == [b"a"]

    with_broker(story, settings_of(tmp_path))


def test_pull_of_an_unsubscribed_topic_stays_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        for _ in range(2):  # version 0: the client has reported no subscription
            assert (await pull(peer, 0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await report_subscription(peer, 1, topic="Other")
        for _ in range(2):
            assert (await pull(peer, 1)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


@pytest.mark.usefixtures("long_wait")
def test_pulls_over_the_waiting_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_subscriptions, "WAITING", replace(late_subscriptions.WAITING, limit=1))

    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        waiting = await start_pull(peer, 1)
        assert (await pull(peer, 1)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await report_subscription(peer, 1, "a")
        assert bodies(await waiting) == [b"a"]

    with_broker(story, settings_of(tmp_path))


def test_oldest_refused_subscription_is_forgotten_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_subscriptions, "REFUSED", replace(late_subscriptions.REFUSED, limit=2))

    async def story(peer: Peer) -> None:
        for topic in "ABC":
            await send_a_and_b(peer, topic)
            assert (await pull(peer, 1, topic)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        (used,) = (each for each in peer.metrics.figures if each.name == "bound_used")
        assert dict(used.samples())["refused_subscriptions",] == 2
        assert bodies(await pull(peer, 1, "C")) == bodies(await pull(peer, 1, "B")) == [b"a", b"b"]
        assert (await pull(peer, 1, "A")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_held_pull_completes_when_its_groups_tags_change(tmp_path: Path) -> None:
    """The client then pulls again at the same offset with the new tags, so no message is skipped."""

    async def story(peer: Peer) -> None:
        await send_a_and_b(peer)
        await report_subscription(peer, 1, "c")
        held = await start_pull_at(peer, 2, version=1)
        await peer.until_held(1)
        # A newer version with the same tags does not complete the pull.
        await report_subscription(peer, 2, "c")
        await peer.send("T", b"b2", properties="TAGS\x01b\x02")
        # The message is dispatched, so it would have woken a pull with matching tags.
        assert len(await peer.messages("T", 2)) == 1
        assert not held.done()

        await report_subscription(peer, 3, "b")
        answer = await asyncio.wait_for(held, LIMIT_S)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")
        again = await start_pull_at(peer, 2, version=3)
        assert bodies(await again) == [b"b2"]

    with_broker(story, settings_of(tmp_path))


def test_held_pull_of_an_unsubscribed_topic_completes(
    tmp_path: Path,
) -> None:
    """A held pull that contains its own expression stays held."""

    async def story(peer: Peer) -> None:
        await peer.send("T", b"x")
        await peer.send("U", b"x")
        await report_subscription(peer, 1, "c")
        subscribed = await start_pull_at(peer, 1, version=1)
        own = await start_pull_at(peer, 1, version=0, sys_flag=SUSPEND | SUBSCRIPTION, subscription="c")
        await peer.until_held(2)
        await report_subscription(peer, 2, "*", topic="U")
        assert (await asyncio.wait_for(subscribed, LIMIT_S)).code == ResponseCode.PULL_NOT_FOUND
        assert not own.done()
        own.cancel()

    with_broker(story, settings_of(tmp_path))


async def start_pull_at(
    peer: Peer, offset: int, *, version: int, sys_flag: int = SUSPEND, subscription: str | None = None
) -> asyncio.Task[RemotingCommand]:
    header = PullMessageHeader(
        "G", "T", 0, offset, sys_flag=sys_flag, sub_version=version, suspend_timeout_millis=HOLD_MS,
        subscription=subscription,
    )  # fmt: skip
    pulling = asyncio.create_task(peer.ask(RequestCode.PULL_MESSAGE, header.to_ext()))
    await asyncio.sleep(0)
    return pulling
