"""Compression of message bodies: codecs, thresholds and limits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cluster.client import Admin, Producer, ProducerConfig, PullConsumer
from cluster.client.errors import ConfigInvalid, MessageRejected
from store.message.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

from .conftest import Cluster

LONG = b"so long " * 1_000
NOISE = random.Random(1).randbytes(5 << 20)


def send(cluster: Cluster, topic: str, body: bytes, **settings: Any) -> str:
    with Producer(cluster.address, "compresses", config=ProducerConfig(**settings)) as producer:
        return producer.send(topic, body).offset_msg_id


@pytest.mark.parametrize(
    ("compression", "flag"),
    [("zlib", COMPRESSION_ZLIB), ("lz4", COMPRESSION_LZ4), ("zstd", COMPRESSION_ZSTD)],
)
def test_long_body_is_stored_compressed_and_read_decompressed(
    cluster: Cluster, group: str, compression: str, flag: int
) -> None:
    topic = cluster.topic(queues=1)
    message_id = send(cluster, topic, LONG, compression=compression, compression_level=3)
    with Admin(cluster.address) as admin:
        stored = admin.message_by_id(message_id)
    assert stored.store_size < 1_000
    assert stored.sys_flag & COMPRESSED
    assert stored.sys_flag & COMPRESSION_MASK == flag
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        assert [message.body for message in consumer.poll(timeout_ms=60_000)] == [LONG]
        consumer.seek_to_beginning()
        assert consumer.poll_arrow(timeout_ms=60_000).column("body").to_pylist() == [LONG]


def test_short_and_incompressible_bodies_are_sent_uncompressed(cluster: Cluster) -> None:
    topic = cluster.topic(queues=1)
    plain = [
        send(cluster, topic, LONG[:4095]),
        send(cluster, topic, NOISE[:10_000]),
        send(cluster, topic, LONG, compression=None),
        send(cluster, topic, LONG, compress_over_bytes=len(LONG) + 1),
    ]
    packed = [send(cluster, topic, LONG[:4096]), send(cluster, topic, LONG[:100], compress_over_bytes=100)]
    with Admin(cluster.address) as admin:
        assert [bool(admin.message_by_id(each).sys_flag & COMPRESSED) for each in plain] == [False] * 4
        assert [bool(admin.message_by_id(each).sys_flag & COMPRESSED) for each in packed] == [True] * 2


def test_max_message_bytes_limits_the_compressed_body(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    body = bytes(8 << 20)
    send(cluster, topic, body)
    with PullConsumer(cluster.address, group) as consumer:
        consumer.assign(consumer.queues(topic))
        assert consumer.poll(timeout_ms=60_000)[0].body == body
    with pytest.raises(MessageRejected, match=r"bytes is over max_message_bytes 4,194,304"):
        send(cluster, topic, NOISE)
    with pytest.raises(MessageRejected, match=r"67,108,865 bytes exceeds 67,108,864 bytes, the maximum"):
        send(cluster, topic, bytes((64 << 20) + 1))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"compression": "gzip"}, "'gzip': give one of zlib, lz4, zstd, or None"),
        ({"compression_level": 10}, "compression_level is 10: zlib accepts 0 to 9"),
        ({"compression": "zstd", "compression_level": 0}, "zstd accepts 1 to 22"),
        ({"compress_over_bytes": 0}, "compress_over_bytes is 0"),
    ],
)
def test_invalid_compression_setting_is_named_in_the_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigInvalid, match=words):
        ProducerConfig(**settings)
