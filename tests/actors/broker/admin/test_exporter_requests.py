"""The requests of RocketMQ's older exporter for Prometheus (apache/rocketmq-exporter, MetricsCollectTask).

It sends them once a minute with RocketMQ's admin client, and converts most values of the responses to numbers
without checking that they exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, registered_broker, run
from tests.eventually import eventually_async

NUMBERS = """msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning msgGetTotalTodayMorning
    msgGetTotalTodayNow msgGetTotalYesterdayMorning commitLogMinOffset commitLogMaxOffset
    dispatchBehindBytes putMessageSizeTotal putMessageTimesTotal putMessageEntireTimeMax
    getMessageEntireTimeMax earliestMessageTimeStamp startAcceptSendRequestTimeStamp bootTimestamp
    pageCacheLockTimeMills remainTransientStoreBufferNumbs sendThreadPoolQueueSize
    sendThreadPoolQueueCapacity sendThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize
    pullThreadPoolQueueCapacity pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
    queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills brokerVersion"""
FRACTIONS = "putMessageAverageSize commitLogDiskRatio consumeQueueDiskRatio putLatency99 putLatency999"
RATES = "putTps getFoundTps getMissTps getTotalTps getTransferredTps"
COUNTERS = (
    ("TOPIC_PUT_NUMS", "T"), ("TOPIC_PUT_SIZE", "T"), ("GROUP_GET_NUMS", "T@CG"), ("GROUP_GET_SIZE", "T@CG"),
    ("SNDBCK_PUT_NUMS", "T@CG"), ("BROKER_PUT_NUMS", "DefaultCluster"), ("BROKER_GET_NUMS", "DefaultCluster"),
)  # fmt: skip


def test_requests_of_the_exporter_get_complete_responses(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            await _traffic(peer)

            async def asked(code: int, **fields: str) -> RemotingCommand:
                return await peer.client.invoke(nameserver.address, RemotingCommand(code, fields), TIMEOUT_MS)

            async def has_route() -> bool:
                return (await asked(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0

            await eventually_async(has_route)
            for code in (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, RequestCode.GET_BROKER_CLUSTER_INFO):
                response = await asked(code)
                assert response.code == 0
                assert b"T" in response.body
            await _check_progress(peer)
            await _check_broker(peer)

    run(story)


async def _traffic(peer: Peer) -> None:
    await peer.heartbeat("client", "CG", T="*")
    for _ in range(3):
        await peer.send("T")
    (message, *_) = await peer.messages("T")
    back = ConsumerSendMsgBackHeader(message.commit_log_offset, "CG", 0).to_ext()
    assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
    await peer.commit("CG", "T", 1)


async def _check_progress(peer: Peer) -> None:
    """Check the requests of `collectTopicOffset`, `collectConsumerOffset` and `collectProducer`."""

    async def body(code: int, **fields: str) -> dict[str, Any]:
        response = await peer.ask(code, fields)
        assert response.code == 0, (code, response.remark)
        return orjson.loads(_as_json(response.body))  # type: ignore[no-any-return]

    assert (await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})).code == 0
    assert "CG" in (await body(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T"))["groupList"]
    connections = await body(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="CG")
    assert connections["messageModel"] == "CLUSTERING"
    assert connections["connectionSet"][0]["clientAddr"].startswith("127.0.0.1:")
    for group, topic in (("CG", "T"), ("CG", "%RETRY%CG")):
        stats = await peer.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, "topic": topic})
        assert stats.code == 0
    offline = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "Other"})
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert b"PG" in (await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body


async def _check_broker(peer: Peer) -> None:
    """Check the requests of `collectBrokerStats`, its variant by topic, and `collectBrokerRuntimeStats`."""
    for name, key in COUNTERS:
        response = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert response.code == 0, (name, response.remark)
        assert set(orjson.loads(response.body)) >= {"statsMinute", "statsHour", "statsDay"}
    table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert all(int(table[name]) >= -1 for name in NUMBERS.split())
    assert all(float(table[name]) >= 0 for name in FRACTIONS.split())
    assert all(len([float(rate) for rate in table[name].split()]) == 3 for name in RATES.split())
    total, free = table["commitLogDirCapacity"].rstrip(".").split(", ")
    assert total.startswith("Total : ")
    assert free.startswith("Free : ")


def _as_json(body: bytes | memoryview) -> bytes:
    return bytes(body)
