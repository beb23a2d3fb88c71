"""Where a group resumes that has not committed an offset: as its members say, or unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.admin_headers import ConsumeStatsHeader
from actors.wire.bodies.groups import CONSUME_POP, ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.bodies.progress import ConsumeStats
from actors.wire.codes import RequestCode
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.metrics.scraped import samples

FIRST, LAST, TIME = "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_TIMESTAMP"
COUNT = 5


async def online(peer: Peer, where: str, consume_type: str = "CONSUME_PASSIVELY") -> None:
    data = ConsumerData(
        "CG", consume_type, consume_from_where=where, subscriptions=[SubscriptionData("T", "*")]
    )
    await peer.ask(RequestCode.HEART_BEAT, body=HeartbeatData("client", [data]).encode())


async def lags(peer: Peer) -> tuple[int | None, object]:
    """Return the lag in the first queue as tools and as an alert see it; None if it is unknown."""
    response = await peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG", "T").to_ext())
    stats = ConsumeStats.decode(response.body)
    scraped = await samples(peer, "rocketmq_consumer_lag_messages")
    return stats.lag, scraped.get(("T", "CG", "false", "false"))


@pytest.mark.parametrize(
    ("where", "consume_type", "of_young", "of_old"),
    [
        (FIRST, "CONSUME_PASSIVELY", COUNT, COUNT),
        (LAST, "CONSUME_PASSIVELY", COUNT, 0),
        (TIME, "CONSUME_PASSIVELY", COUNT, None),
        (LAST, CONSUME_POP, COUNT, 1),
        (FIRST, CONSUME_POP, COUNT, COUNT),
    ],
)
def test_group_without_an_offset_lags_by_what_it_would_get(
    tmp_path: Path, where: str, consume_type: str, of_young: int, of_old: int | None
) -> None:
    for is_young, expected in ((True, of_young), (False, of_old)):

        async def story(peer: Peer, expected: int | None = expected) -> None:
            for _ in range(COUNT):
                await peer.send("T")
            await peer.messages("T")
            await online(peer, where, consume_type)
            assert await lags(peer) == (expected, expected)

        settings = settings_of(tmp_path / str(is_young), consume_new_topics_from_start=is_young)
        with_broker(story, settings)


def test_start_of_a_member_counts_once_it_has_pulled(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T")
        await online(peer, TIME)
        assert await lags(peer) == (None, None)
        await peer.committed("CG", "T")
        await peer.pull("T", offset=1)
        await peer.pull("T", offset=2)  # a later pull is not the start
        assert (await lags(peer))[0] == 1
        await peer.commit("CG", "T", 2)
        assert (await lags(peer))[0] == 0

    with_broker(story, settings_of(tmp_path, consume_new_topics_from_start=False))


def test_lag_of_a_queue_is_unknown_if_no_member_says_where_it_starts(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", queue_id=0)
        await peer.send("T", queue_id=1)
        await peer.messages("T", queue_id=1)
        await peer.commit("CG", "T", 1, queue_id=0)
        assert await lags(peer) == (None, None)
        response = await peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG", "T").to_ext())
        rows = sorted(ConsumeStats.decode(response.body).offsets.items())
        known = [(each.committed, each.lag, each.in_flight) for _, each in rows[:2]]
        assert known == [(1, 0, 0), (None, None, None)]
        # RocketMQ's tools see the number that RocketMQ's broker sends.
        assert rows[1][1].consumer_offset == 0
        await peer.commit("CG", "T", 0, queue_id=1)
        assert (await lags(peer))[0] == 1

    with_broker(story, settings_of(tmp_path, consume_new_topics_from_start=False))
