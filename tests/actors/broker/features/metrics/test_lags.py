"""The lag of groups: messages in flight and ready, ages, and groups without connected members."""

from __future__ import annotations

from pathlib import Path

from actors.broker.features.metrics.lags import LAGS_KEPT_MAX_NS, LAGS_KEPT_NS, Lags
from store.common.clock import NS_PER_MS
from tests.actors.broker.brokers import A_DAY_MS, Peer, settings_of, with_broker
from tests.actors.broker.features.metrics.scraped import samples
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

OF_GROUP = ("T", "CG", "false", "false")
LAG = "rocketmq_consumer_lag_latency_milliseconds"
QUEUEING = "rocketmq_consumer_queueing_latency_milliseconds"


async def sent(peer: Peer, topic: str, count: int, queue_id: int = 0) -> None:
    """Send messages and wait until they can be read."""
    for _ in range(count):
        await peer.send(topic, queue_id=queue_id)
    await peer.pull(topic, queue_id=queue_id, offset=0)


def test_lag_is_split_into_ready_and_in_flight_messages(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sent(peer, "T", 5)
        await peer.heartbeat("client", "CG", T="*")
        await peer.commit("CG", "T", 1)
        await peer.pull("T", offset=1, max_msg_nums=2)
        assert (await samples(peer, "rocketmq_consumer_lag_messages"))[OF_GROUP] == 4
        assert (await samples(peer, "rocketmq_consumer_inflight_messages"))[OF_GROUP] == 2
        assert (await samples(peer, "rocketmq_consumer_ready_messages"))[OF_GROUP] == 2
        assert (await samples(peer, "rocketmq_messages_out_total"))[OF_GROUP] == 7

    with_broker(story, settings_of(tmp_path))


def test_lag_of_a_group_without_members_is_visible(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.send("T")
        await peer.commit("CG", "T", 1)
        await peer.send("T")

        # The last message counts when it is dispatched, and lags are kept for a second.
        await eventually_async(lambda: lag_is(peer, 2))

    with_broker(story, settings_of(tmp_path))


class TickingClock(ClockAtRest):
    """A clock on which 20 ms pass between two looks at it."""

    def monotonic_ns(self) -> int:
        self.advance(20)
        return super().monotonic_ns()


def test_lags_are_kept_longer_the_longer_they_take(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await sent(peer, "T", 5)
        await peer.commit("CG", "T", 1)
        graph, clock = peer.broker.graph, TickingClock()
        lags = Lags(graph.loop.store, graph.loop.reads, graph.tables, graph.groups.progress, clock)
        await lags.refresh()
        assert [lag.in_flight + lag.ready for lag in lags] == [4]
        await peer.commit("CG", "T", 3)
        clock.advance(LAGS_KEPT_NS // NS_PER_MS)
        await lags.refresh()
        assert [lag.in_flight + lag.ready for lag in lags] == [4]
        clock.advance(LAGS_KEPT_MAX_NS // NS_PER_MS)
        await lags.refresh()
        assert [lag.in_flight + lag.ready for lag in lags] == [2]

    with_broker(story, settings_of(tmp_path))


async def lag_is(peer: Peer, messages: int) -> bool:
    return (await samples(peer, "rocketmq_consumer_lag_messages"))[OF_GROUP] == messages


def test_lag_is_never_negative(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.commit("CG", "T", 99)
        for metric in ("lag", "ready", "inflight"):
            found = await samples(peer, f"rocketmq_consumer_{metric}_messages")
            assert found[OF_GROUP] == 0
        assert (await samples(peer, LAG))[OF_GROUP] == 0

    with_broker(story, settings_of(tmp_path))


def test_ages_are_those_of_the_oldest_messages_of_all_queues(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await sent(peer, "T", 1, queue_id=1)
        clock.advance(1_000)
        await sent(peer, "T", 2, queue_id=0)
        clock.advance(2_000)
        await peer.heartbeat("client", "CG", T="*")
        await peer.commit("CG", "T", 0)
        await peer.pull("T", queue_id=1, offset=1)
        await peer.pull("T", queue_id=0, offset=0, max_msg_nums=1)
        assert (await samples(peer, LAG))[OF_GROUP] == 3_000  # of queue 1, in flight
        assert (await samples(peer, QUEUEING))[OF_GROUP] == 2_000  # the second message of queue 0
        clock.advance(1_000)
        await peer.commit("CG", "T", 1, queue_id=1)
        assert (await samples(peer, LAG))[OF_GROUP] == 3_000  # queue 0 stands still
        await peer.commit("CG", "T", 2, queue_id=0)
        clock.advance(1_000)
        assert (await samples(peer, LAG))[OF_GROUP] == 0
        assert (await samples(peer, QUEUEING))[OF_GROUP] == 0

    with_broker(story, settings_of(tmp_path, client_expiry_ms=A_DAY_MS), clock)


def test_lag_of_a_deleted_topic_is_not_shown(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await sent(peer, "T", 1)
        await peer.commit("CG", "T", 0)
        assert OF_GROUP in await samples(peer, LAG)
        await peer.ask(215, {"topic": "T"})  # DELETE_TOPIC_IN_BROKER
        clock.advance(1_000)
        assert OF_GROUP not in await samples(peer, LAG)

    with_broker(story, settings_of(tmp_path), clock)
