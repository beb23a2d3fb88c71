"""Topics that only the broker writes are refused for senders, on every path and for every such topic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest

from actors.broker.core.metadata.topics import is_broker_only
from actors.transport.request import Cost
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    AppendBatchHeader,
    ConsumerSendMsgBackHeader,
    RecallMessageHeader,
    SendRunsHeader,
)
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.recall_handle import RecallHandle
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.actors.broker.core.auth.access_peers import DENIED
from tests.actors.broker.core.sending.test_replies import requester
from tests.actors.broker.core.sending.test_sending import some_runs
from tests.actors.broker.features.transactions.transactions import every, settled

BROKER_ONLY = (
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
    "rmq_sys_wheel_timer",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
    "rmq_sys_raymq_undelivered",
    "rmq_sys_new",
)
REPLY = "REPLY_TO_CLIENT\x01requester\x02CORRELATION_ID\x01c1\x02"
BATCH = encode_batch([Message("T", b"forged")])
SENT_BACK = RequestCode.CONSUMER_SEND_MSG_BACK  # has no topic; see its own test

# A request of each row that sends, to the topic.
SENDS: dict[int, Callable[[str], tuple[dict[str, str], bytes]]] = {
    RequestCode.SEND_MESSAGE: lambda topic: (SendMessageHeaderV1("PG", topic, 0, "").to_ext(), b"forged"),
    RequestCode.SEND_MESSAGE_V2: lambda topic: (SendMessageHeader("PG", topic, 0, "").to_ext(), b"forged"),
    RequestCode.SEND_BATCH_MESSAGE: lambda topic: (
        SendMessageHeader("PG", topic, 0, "", batch=True).to_ext(),
        BATCH,
    ),
    RequestCode.SEND_REPLY_MESSAGE: lambda topic: (
        SendMessageHeaderV1("PG", topic, 0, REPLY).to_ext(),
        b"forged",
    ),
    RequestCode.SEND_REPLY_MESSAGE_V2: lambda topic: (
        SendMessageHeader("PG", topic, 0, REPLY).to_ext(),
        b"forged",
    ),
    RequestCode.RECALL_MESSAGE: lambda topic: (
        RecallMessageHeader(
            producer_group="PG",
            topic=topic,
            recall_handle=RecallHandle(topic, "broker-a", 2**42, "ID").encode(),
        ).to_ext(),
        b"",
    ),
    RayMQRequestCode.SEND_RUNS: lambda topic: (SendRunsHeader(topic).to_ext(), some_runs(topic, {0: 1})),
    RayMQRequestCode.APPEND_BATCH: lambda topic: (AppendBatchHeader(topic, 0).to_ext(), BATCH),
}


@pytest.mark.parametrize("topic", BROKER_ONLY)
def test_no_request_sends_to_a_topic_of_the_broker(tmp_path: Path, topic: str) -> None:
    async def story(peer: Peer) -> None:
        rows, store = peer.loop.requests.rows, peer.store
        senders = {row.code for row in rows.values() if row.cost is Cost.SEND} - {SENT_BACK}
        assert senders == set(SENDS), "give a request of the new row in SENDS"
        pushed: list[RemotingCommand] = []
        waiting = requester(peer, 0, pushed)
        await waiting.heartbeat("requester", "G")
        before = store.positions.written
        topics = set(peer.tables.topics.table.topics)
        for code, request in SENDS.items():
            response = await peer.ask(code, *request(topic))
            remark = response.remark or ""
            assert (response.code, remark.startswith(f"Sending message to topic[{topic}] is forbidden")) == (
                DENIED,
                True,
            ), (code, remark)
        for properties in (
            "TRAN_MSG\x01true\x02PGROUP\x01PG\x02",
            "DELAY\x011\x02",
            "TIMER_DELAY_SEC\x015\x02",
        ):
            assert (await peer.send(topic, properties=properties)).code == DENIED
        appended = msgpack.packb({"v": 1, "topic": topic, "queue": 0, "batch": BATCH})
        assert msgpack.unpackb(await peer.broker.handle.append(appended))["code"] == DENIED
        assert store.positions.written == before
        assert set(peer.tables.topics.table.topics) == topics
        assert pushed == []
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))


def test_traces_and_replies_of_clients_are_accepted(tmp_path: Path) -> None:
    """As in RocketMQ, whose clients send them."""

    async def story(peer: Peer) -> None:
        for topic in ("RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC", "TBW102", "BenchmarkTest"):
            assert not is_broker_only(topic)
            assert (await peer.send(topic)).code == 0

    with_broker(story, settings_of(tmp_path))


REDIRECTING = (
    "REAL_TOPIC\x01{}\x02REAL_QID\x017\x02",
    "REAL_TOPIC\x01{}\x02REAL_QID\x017\x02TIMER_OUT_MS\x011000\x02TIMER_DELIVER_MS\x012000\x02",
    "TIMER_ENQUEUE_MS\x011\x02TIMER_DEQUEUE_MS\x011\x02TIMER_ROLL_TIMES\x019\x02REAL_TOPIC\x01{}\x02",
    "DELAY\x011\x02REAL_TOPIC\x01{}\x02REAL_QID\x017\x02",
    "TIMER_DELAY_MS\x011\x02REAL_TOPIC\x01{}\x02REAL_QID\x017\x02",
    "RETRY_TOPIC\x01{}\x02",
    "TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0199\x02REAL_TOPIC\x01{}\x02",
)


@pytest.mark.parametrize("properties", REDIRECTING)
def test_properties_of_a_client_redirect_no_message(tmp_path: Path, clock, properties: str) -> None:
    async def story(peer: Peer) -> None:
        for topic in ("secret", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            assert (await peer.send("T", b"own", properties=properties.format(topic))).code == 0
        await settled(peer)
        clock.advance(1_000)
        for offset in range(2):
            assert (await peer.pull("T", offset, wait_ms=HOLD_MS)).code == 0
        assert [message.body for message in await every(peer, "T")] == [b"own"] * 2
        assert await every(peer, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == []
        assert "secret" not in peer.tables.topics.table.topics
        assert ("secret", 7) not in set(peer.store.queues())

    with_broker(story, settings_of(tmp_path), clock)


def test_send_back_names_no_topic_of_the_broker_by_its_group(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.heartbeat("client-1", "G", T="*")
        (message,) = await peer.messages("T")
        for group in ("", "../x", "a b"):
            ext = ConsumerSendMsgBackHeader(message.commit_log_offset, group, 1, origin_topic="T").to_ext()
            assert (await peer.ask(SENT_BACK, ext)).code != 0
        ext = ConsumerSendMsgBackHeader(message.commit_log_offset, "G", -1, origin_topic="rmq_sys_x").to_ext()
        assert (await peer.ask(SENT_BACK, ext)).code == 0
        assert len(await every(peer, "%DLQ%G")) == 1

    with_broker(story, settings_of(tmp_path))
