"""A message whose body cannot be decompressed reaches its consumers as stored and stops no queue."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from cluster.client import (
    Admin,
    LocalTransactionState,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    aio,
)
from store.common.clock import SystemClock
from store.message.compression import compress
from store.message.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    TRANSACTION_PREPARED,
)
from tests.eventually import LIMIT_S, eventually

from .conftest import Cluster
from .test_pull_consumer import poll_messages

POLL_MS = int(LIMIT_S * 1000)
LAST = b"the last message"
# sysFlag, body and properties of messages that no consumer can read as their sender meant them
BAD: dict[str, tuple[int, bytes, str]] = {
    "old zlib": (COMPRESSED, b"not zlib", ""),
    "zlib": (COMPRESSED | COMPRESSION_ZLIB, b"not zlib", ""),
    "lz4": (COMPRESSED | COMPRESSION_LZ4, b"not lz4", ""),
    "zstd": (COMPRESSED | COMPRESSION_ZSTD, b"not zstd", ""),
    "unknown codec": (COMPRESSED | 0x700, b"unknown", ""),
    "another codec": (COMPRESSED | COMPRESSION_LZ4, compress(b"long " * 99)[0], ""),
    "truncated": (COMPRESSED | COMPRESSION_ZSTD, compress(b"long " * 99, COMPRESSION_ZSTD)[0][:-9], ""),
    "bomb": (COMPRESSED | COMPRESSION_ZLIB, zlib.compress(bytes((64 << 20) + 1)), ""),
}
STRANGE: dict[str, tuple[int, bytes, str]] = {
    "no separators": (0, b"plain", "TAGS"),
    "empty pairs": (0, b"plain", "\x01\x02\x02\x01v\x02n\x01\x02"),
    "no numbers": (0, b"plain", "MAX_RECONSUME_TIMES\x01x\x02CONSUME_START_TIME\x01-\x02TTL\x01\x02"),
    "retry topic": (0, b"plain", "RETRY_TOPIC\x01\ufffd\x02"),
}


def send_raw(cluster: Cluster, topic: str, messages: Sequence[tuple[int, bytes, str]]) -> None:
    """Send messages with these sysFlags, bodies and properties to queue 0 on broker a, then LAST."""

    async def send() -> None:
        client = RemotingClient(SystemClock())
        for sys_flag, body, properties in [*messages, (0, LAST, "")]:
            header = SendMessageHeader("raw", topic, 0, properties, sys_flag, 1)
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
            response = await client.invoke(cluster.brokers["a"].address, command, POLL_MS)
            assert response.code == ResponseCode.SUCCESS, response.remark
        await client.close()

    asyncio.run(send())


def check_bad(messages: Sequence[MessageExt]) -> None:
    """Check that `messages` are those of BAD as stored, then LAST."""
    by_offset = sorted({message.queue_offset: message for message in messages}.items())
    *bad, last = [message for _, message in by_offset]
    assert [message.body for message in bad] == [body for _, body, _ in BAD.values()]
    assert all(message.body_error for message in bad)
    assert (last.body, last.body_error) == (LAST, None)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ordered": True},
        {"consume_batch": 32},
        {"message_model": "broadcasting", "consume_from": "earliest"},
        {"retry": "broker"},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_async", [False, True])
def test_push_consumer_receives_undecodable_bodies_and_continues(
    cluster: Cluster, group: str, tmp_path: Path, settings: dict[str, object], is_async: bool
) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, list(BAD.values()))
    found: list[MessageExt] = []

    async def extend(messages: list[MessageExt]) -> None:
        found.extend(messages)

    config = PushConfig(**settings, local_offset_dir=str(tmp_path))  # type: ignore[arg-type]
    with PushConsumer(cluster.address, group, extend if is_async else found.extend, config=config) as each:
        each.subscribe(topic)
        eventually(lambda: any(message.body == LAST for message in found) and len(found) > len(BAD))
    check_bad(found)


def test_pull_consumer_returns_undecodable_bodies_and_continues(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, list(BAD.values()))
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        check_bad(poll_messages(consumer, len(BAD) + 1))
        consumer.seek_to_beginning()
        iterated = iter(consumer)
        check_bad([next(iterated) for _ in range(len(BAD) + 1)])
        consumer.seek_to_beginning()
        rows = consumer.poll_arrow(timeout_ms=POLL_MS, columns=["body", "bodyError"])
        assert rows.column("body").to_pylist() == [*(body for _, body, _ in BAD.values()), LAST]
        assert rows.column("bodyError").is_null().to_pylist() == [False] * len(BAD) + [True]

    async def poll() -> list[MessageExt]:
        async with aio.PullConsumer(cluster.address, group) as consumer:
            await consumer.assign(await consumer.queues(topic))
            await consumer.seek_to_beginning()
            found: list[MessageExt] = []
            while len(found) <= len(BAD):
                found += await consumer.poll(timeout_ms=POLL_MS)
            return found

    check_bad(asyncio.run(poll()))


def test_strange_properties_stop_no_consumer(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, list(STRANGE.values()))
    found: list[MessageExt] = []
    with PushConsumer(cluster.address, group, found.extend) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: len(found) == len(STRANGE) + 1)
    with PullConsumer(cluster.address, f"{group}-pull") as puller:
        puller.assign(puller.queues(topic))
        puller.seek_to_beginning()
        assert len(poll_messages(puller, len(STRANGE) + 1)) == len(STRANGE) + 1
        puller.seek_to_beginning()
        assert puller.poll_arrow(timeout_ms=POLL_MS).num_rows == len(STRANGE) + 1


def test_admin_returns_undecodable_bodies_as_stored(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, list(BAD.values()))
    with Admin(cluster.address) as admin:
        queue = max(admin.end_offsets(topic).items(), key=lambda each: each[1])[0]
        found = admin.messages_at(queue, 0, len(BAD) + 1)
        check_bad(found)
        assert admin.message_by_id(found[0].offset_msg_id).body_error


def test_listener_is_called_directly_with_an_undecodable_body(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, [BAD["zlib"]])
    found: list[MessageExt] = []
    with PushConsumer(cluster.address, group, found.extend) as consumer, Admin(cluster.address) as admin:
        consumer.subscribe(topic)
        eventually(lambda: len(found) == 2)
        connected = admin.group_connection(group)
        assert connected is not None
        client_id = connected.connections[0].client_id
        ext = {"consumerGroup": group, "clientId": client_id, "msgId": found[0].offset_msg_id}

        async def consume_directly() -> RemotingCommand:
            client = RemotingClient(SystemClock())
            command = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            response = await client.invoke(cluster.brokers["a"].address, command, POLL_MS)
            await client.close()
            return response

        assert asyncio.run(consume_directly()).code == ResponseCode.SUCCESS
        assert found[2].body_error == found[0].body_error


def test_transaction_with_an_undecodable_body_is_checked(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters(brokers=1, transaction_check_interval_ms=20, transaction_timeout_ms=0)
    topic = cluster.topic(queues=1)
    checked: list[MessageExt] = []

    def check(message: MessageExt) -> LocalTransactionState:
        checked.append(message)
        return LocalTransactionState.ROLLBACK

    with TransactionProducer(cluster.address, "raw", check, topics=[topic]):
        eventually(lambda: list(cluster.brokers["a"].graph.groups.clients.producers("raw")))
        half = "TRAN_MSG\x01true\x02PGROUP\x01raw\x02UNIQ_KEY\x01k\x02"
        send_raw(cluster, topic, [(COMPRESSED | TRANSACTION_PREPARED, b"not zlib", half)])
        eventually(lambda: cluster.brokers["a"].describe()["open_transactions"] == 0 and checked)
    assert (checked[0].body, bool(checked[0].body_error)) == (b"not zlib", True)


def test_undecodable_dead_letter_is_resent_as_stored(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    send_raw(cluster, topic, [BAD["zlib"]])
    found: list[MessageExt] = []

    def refuse(messages: list[MessageExt]) -> None:
        found.extend(messages)
        if len(found) < 3 and messages[0].body_error:
            raise ValueError(messages[0].body_error)

    config = PushConfig(max_reconsume_times=0)
    with (
        PushConsumer(cluster.address, group, refuse, config=config) as consumer,
        Admin(cluster.address) as admin,
        Producer(cluster.address),
    ):
        consumer.subscribe(topic)
        eventually(lambda: admin.dead_letter_counts().get(group) == 1)
        admin.resend_dead_letters(group)
        eventually(lambda: len(found) >= 3)
    first, again = [message for message in found if message.body != LAST]
    assert (again.body, again.body_error) == (first.body, first.body_error)
