"""The values of RocketMQ's metrics after some traffic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from actors.broker.features.metrics.connection_figures import version_name
from actors.host.figures import Histogram
from actors.wire.codes import RequestCode
from actors.wire.headers import ConsumerSendMsgBackHeader
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.features.metrics.scraped import samples
from tests.actors.broker.features.timer.timers import START_MS, rounds, send_at, timer_settings
from tests.actors.broker.features.transactions.transactions import (
    COMMIT,
    HALF,
    ROLLBACK,
    TIMEOUT_MS,
    begin,
    check,
    end,
    every,
    manual,
    settled,
)
from tests.conftest import ClockAtRest

KEY = "UNIQ_KEY\x01AC11000100002A9F4E2C7B8D0001\x02"
DISK = ("local", "disk")


@pytest.mark.parametrize("compiled", [True, False])
def test_messages_in_are_counted_by_type_and_size(tmp_path: Path, compiled: bool) -> None:
    async def story(peer: Peer) -> None:
        for size in (10, 2_000, 5_000, 10, 600_000):
            assert (await peer.send("T", b"x" * size, properties=KEY)).code == 0
        await peer.send("T", properties=f"{KEY}__SHARDINGKEY\x01order-1\x02")
        await peer.send("T", properties=f"{KEY}DELAY\x013\x02")
        await begin(peer)
        of = {key[:2]: value for key, value in (await samples(peer, "rocketmq_messages_in_total")).items()}
        assert of["T", "normal"] == 5
        assert of["T", "fifo"] == 1
        assert of["SCHEDULE_TOPIC_XXXX", "delay"] == 1
        assert of[HALF, "transaction"] == 1
        sizes = (await samples(peer, "rocketmq_message_size"))["T", "normal", "false"]
        assert isinstance(sizes, Histogram)
        assert tuple(sizes.counts) == (2, 1, 1, 1, 0, 0, 0)
        size_bytes = (await samples(peer, "rocketmq_throughput_in_total"))["T", "normal", "false"]
        assert size_bytes == sizes.total > 607_020

    with_broker(story, settings_of(tmp_path, compiled_turn=compiled))


def test_topics_without_messages_have_a_counter_of_zero(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        header = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        header |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        found = await samples(peer, "rocketmq_messages_in_total")
        assert found == {("New", "normal", "false"): 0}
        times = await samples(peer, "rocketmq_topic_create_execution_time_milliseconds")
        created = times["success", "false"]
        assert isinstance(created, Histogram)
        assert sum(created.counts) == 1

    with_broker(story, settings_of(tmp_path))


def test_rpc_latency_separates_held_and_oneway_requests(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.pull("T")
        await peer.pull("Missing")
        pulled = peer.pull("T", offset=1, wait_ms=HOLD_MS)
        task = asyncio.ensure_future(pulled)
        await peer.until_held(1)
        clock.advance(50)
        await peer.send("T")
        await task
        found = await samples(peer, "rocketmq_rpc_latency_milliseconds")
        sends = found["remoting", "send_message_v2", "success", "false", "success"]
        assert isinstance(sends, Histogram)
        assert sum(sends.counts) == 2
        waited = found["remoting", "pull_message", "success", "true", "success"]
        assert isinstance(waited, Histogram)
        assert (sum(waited.counts), waited.total) == (1, 50)
        assert waited.counts[5] == 1  # above 10 ms, up to 100 ms
        assert ("remoting", "pull_message", "topic_not_exist", "false", "success") in found

    with_broker(story, settings_of(tmp_path), clock)


def test_finished_transactions_are_counted_by_topic(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        halves = [await begin(peer) for _ in range(3)]
        clock.advance(30_000)
        for half, outcome in zip(halves, (COMMIT, COMMIT, ROLLBACK), strict=True):
            assert (await end(peer, half, outcome)).code == 0
        assert await samples(peer, "rocketmq_commit_messages_total") == {("T",): 2}
        assert await samples(peer, "rocketmq_rollback_messages_total") == {("T",): 1}
        times = (await samples(peer, "rocketmq_finish_message_latency_milliseconds"))["T",]
        assert isinstance(times, Histogram)
        assert sum(times.counts) == 3

    with_broker(story, settings_of(tmp_path, transaction_check_max=100), clock)


def test_open_transactions_are_counted_by_topic(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        halves = [await begin(peer, topic=topic) for topic in ("T", "T", "U")]
        await settled(peer)
        assert await samples(peer, "rocketmq_half_messages") == {("T",): 2, ("U",): 1}
        assert (await end(peer, halves[0], COMMIT)).code == 0
        assert (await end(peer, halves[2], ROLLBACK)).code == 0
        await begin(peer)
        await settled(peer)
        assert await samples(peer, "rocketmq_half_messages") == {("T",): 2, ("U",): 0}

    with_broker(story, manual(tmp_path))


def test_copies_of_half_messages_are_counted_once(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await begin(peer)
        await settled(peer)
        assert await samples(peer, "rocketmq_half_messages") == {("T",): 1}
        clock.advance(TIMEOUT_MS)
        await check(peer)
        assert len(await every(peer, HALF)) == 2
        await settled(peer)
        assert await samples(peer, "rocketmq_half_messages") == {("T",): 1}

    with_broker(story, manual(tmp_path), clock)


def test_dead_letters_are_counted_by_their_own_topic_and_group(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        (message,) = await peer.messages("T")
        group = orjson.dumps({"groupName": "G"})
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        back = ConsumerSendMsgBackHeader(message.commit_log_offset, "G", 0, max_reconsume_times=0).to_ext()
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        retry = {"properties": "RETRY_TOPIC\x01T\x02", "reconsume_times": 17, "max_reconsume_times": 16}
        assert (await peer.send("%RETRY%G", **retry)).code == 0
        assert await samples(peer, "rocketmq_send_to_dlq_messages_total") == {("T", "G", "false"): 2}

    with_broker(story, settings_of(tmp_path))


def test_timer_messages_are_counted_by_topic_and_time(tmp_path: Path) -> None:
    clock = ClockAtRest(START_MS)

    async def story(peer: Peer) -> None:
        await peer.send("T")
        for delay_s in (2, 100, 100, 7_000):
            await send_at(peer, START_MS + delay_s * 1000, born_timestamp=START_MS)
        await rounds(peer)
        of_topic = (*DISK, "T")
        assert (await samples(peer, "rocketmq_timer_enqueue_total"))[of_topic] == 4
        assert (await samples(peer, "rocketmq_timing_messages"))[of_topic] == 4
        snapshot = await samples(peer, "rocketmq_timer_message_snapshot")
        assert {labels[2]: count for labels, count in snapshot.items() if count} == {
            "5": 1,
            "300": 2,
            "14400": 1,
        }
        delays = (await samples(peer, "rocketmq_delay_message_latency_seconds"))[of_topic]
        assert isinstance(delays, Histogram)
        assert tuple(delays.counts) == (1, 2, 0, 1, 0, 0, 0)
        assert (await samples(peer, "rocketmq_timer_enqueue_latency_milliseconds"))[DISK] == 0
        clock.advance(101_000)
        await rounds(peer)
        assert (await samples(peer, "rocketmq_timer_dequeue_total"))[of_topic] == 3
        assert (await samples(peer, "rocketmq_timing_messages"))[of_topic] == 1

    with_broker(story, timer_settings(tmp_path), clock)


def test_connections_are_counted_by_group_and_client(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.heartbeat("client", "CG", T="*")
        client = next(iter(await samples(peer, "rocketmq_producer_connections")))
        assert client[2] == "remoting"
        consumers = await samples(peer, "rocketmq_consumer_connections")
        assert consumers == {(*client, "CG", "push", "false"): 1}

    with_broker(story, settings_of(tmp_path))


def test_versions_have_rocketmqs_names() -> None:
    names = {479: "v5_3_3", 478: "v5_3_3_snapshot", 413: "v5_0_0", 401: "v4_9_4", 395: "v4_9_1", 50: "50"}
    assert {number: version_name(number) for number in names} == names


def test_storage_has_size_backlog_and_age(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        assert await samples(peer, "rocketmq_storage_message_reserve_time_milliseconds") == {}
        await peer.send("T")
        clock.advance(500)
        assert await samples(peer, "rocketmq_storage_message_reserve_time_milliseconds") == {DISK: 500}
        size = (await samples(peer, "rocketmq_storage_size_bytes"))[DISK]
        assert isinstance(size, int)
        assert size > 1 << 20
        assert (await samples(peer, "rocketmq_storage_flush_behind_bytes"))[DISK] in range(2000)
        assert await samples(peer, "rocketmq_processor_watermark") == dict.fromkeys(
            [
                (name,)
                for name in (
                    "send", "async_put", "pull", "lite_pull", "query_message", "ack", "client_manager",
                    "heartbeat", "transaction", "consumer_manager", "admin", "reply",
                )
            ],
            0,
        )  # fmt: skip

    with_broker(story, settings_of(tmp_path), clock)
