"""The metrics of lite topics: RocketMQ's count them in their topic, RayMQ's say how far groups are behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.broker.features.lite.lite_lags import KEPT_MS
from store.commitlog.positions import Positions
from tests.actors.broker.brokers import Peer
from tests.actors.broker.features.lite.lite_peers import (
    GROUP,
    TOPIC,
    ack,
    create_group,
    pop,
    send,
    sync,
    with_lite_broker,
)
from tests.actors.broker.features.metrics.scraped import samples
from tests.conftest import ClockAtRest

LABELS = (TOPIC, GROUP, "false", "false")


def test_lag_of_lite_topics_is_summed_by_group(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await create_group(peer, "Never")
        assert await samples(peer, "raymq_lite_lag_messages") == {}
        await send(peer, "a", "0", "1", "2")
        clock.advance(5_000)
        await send(peer, "b", "0")
        await send(peer, "other", "0")  # no group has consumed it
        await sync(peer, "PARTIAL_ADD", "a", "b")
        messages = await pop(peer)
        clock.advance(KEPT_MS)
        assert await samples(peer, "raymq_lite_topics") == {(): 3}
        assert await samples(peer, "raymq_lite_lag_messages") == {LABELS: 4}
        assert await samples(peer, "rocketmq_consumer_lag_messages") == {}  # no series for each lite topic
        age_ms = (await samples(peer, "raymq_lite_lag_latency_seconds"))[LABELS]
        assert isinstance(age_ms, int)
        assert 15_000 <= age_ms < 16_000  # store times are to the second
        for each in messages:
            await ack(peer, each)
        assert await samples(peer, "raymq_lite_lag_messages") == {LABELS: 4}  # kept for a while
        clock.advance(KEPT_MS)
        assert await samples(peer, "raymq_lite_lag_messages") == {LABELS: 0}
        assert await samples(peer, "raymq_lite_lag_latency_seconds") == {LABELS: 0}

    with_lite_broker(story, tmp_path, clock)


def test_lag_of_lite_topics_is_unknown_while_the_end_of_the_log_is(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "a", "0", "1")
        await sync(peer, "PARTIAL_ADD", "a")
        await pop(peer)
        assert await samples(peer, "raymq_lite_lag_messages") == {LABELS: 2}
        monkeypatch.setattr(Positions, "is_end_known", False)
        clock.advance(KEPT_MS)
        assert await samples(peer, "raymq_lite_lag_messages") == {}
        assert await samples(peer, "raymq_lite_lag_latency_seconds") == {}

    with_lite_broker(story, tmp_path, clock)


def test_lite_messages_count_as_normal_ones_of_their_topic(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await send(peer, "a", "0", "1")
        await sync(peer, "PARTIAL_ADD", "a")
        await pop(peer)
        assert await samples(peer, "rocketmq_messages_in_total") == {(TOPIC, "normal", "false"): 2}
        assert (await samples(peer, "rocketmq_messages_out_total"))[LABELS] == 2

    with_lite_broker(story, tmp_path)
