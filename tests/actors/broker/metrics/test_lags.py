"""Figures by topic and group: lag with and without connected members, and counts of delivered messages."""

from __future__ import annotations

from pathlib import Path

from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.eventually import eventually_async


def samples(peer: Peer, metric: str) -> dict[tuple[str, ...], object]:
    figure = next(each for each in peer.broker.graph.figures if each.metric == metric)
    return {sample.labels: sample.value for sample in figure.samples()}


def test_lag_is_split_into_ready_and_in_flight_messages(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(5):
            await peer.send("T")
        await peer.heartbeat("client", "CG", T="*")
        await peer.commit("CG", "T", 1)
        await peer.pull("T", offset=1, max_msg_nums=2)
        of_group = ("T", "CG", "false", "false")
        assert samples(peer, "rocketmq_consumer_lag_messages")[of_group] == 4
        assert samples(peer, "rocketmq_consumer_inflight_messages")[of_group] == 2
        assert samples(peer, "rocketmq_consumer_ready_messages")[of_group] == 2
        assert samples(peer, "rocketmq_messages_out_total")[of_group] == 2

    with_broker(story, settings_of(tmp_path))


def test_lag_of_a_group_without_members_is_visible(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T")
        await peer.commit("CG", "T", 1)
        await peer.send("T")
        of_group = ("T", "CG", "false", "false")
        # The last message counts when it is dispatched, and lags are kept for a second.
        await eventually_async(lambda: samples(peer, "rocketmq_consumer_lag_messages")[of_group] == 2)

    with_broker(story, settings_of(tmp_path))


def test_lag_is_never_negative(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.commit("CG", "T", 99)
        for metric in ("lag", "ready", "inflight"):
            found = samples(peer, f"rocketmq_consumer_{metric}_messages")
            assert found["T", "CG", "false", "false"] == 0

    with_broker(story, settings_of(tmp_path))
