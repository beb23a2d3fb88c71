"""Limits of topics, groups, bodies and properties, and compression of bodies."""

from __future__ import annotations

import zlib

import pytest

from store.message.compression import compress, decompress
from store.message.sys_flag import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from store.message.validate import check_body, check_group, check_properties, check_topic
from store.store_errors import MessageInvalid

PLAIN = b"all work and no play " * 1000


@pytest.mark.parametrize(
    "name", ["T", "%RETRY%group", "a|b-c_9", "x" * 127, "%RETRY%" + "x" * 248, "%DLQ%" + "x" * 250]
)
def test_topic_valid_in_rocketmq_is_accepted(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "empty"),
        ("a b", "characters other than"),
        ("T\n", "characters other than"),
        ("тема", "characters other than"),
        ("x" * 128, "128 characters, the limit is 127"),
        ("%RETRY%" + "x" * 249, "256 characters, the limit is 255"),
    ],
)
def test_topic_invalid_in_rocketmq_is_refused(name: str, remark: str) -> None:
    with pytest.raises(MessageInvalid, match=remark):
        check_topic(name)


def test_group_name_limit_is_255_characters_as_in_rocketmq() -> None:
    check_group("g" * 255)
    with pytest.raises(MessageInvalid, match="256 characters, the limit is 255"):
        check_group("g" * 256)


def test_empty_or_too_long_body_is_refused() -> None:
    check_body(b"x" * 10, 10)
    with pytest.raises(MessageInvalid, match="empty"):
        check_body(b"")
    with pytest.raises(MessageInvalid, match="5,242,880 bytes is over max_message_bytes 4,194,304"):
        check_body(bytes(5 << 20))


def test_properties_limit_leaves_the_reserved_bytes_free() -> None:
    check_properties(bytes(32_767))
    with pytest.raises(MessageInvalid, match="over the limit of 32,747"):
        check_properties(bytes(32_748), reserved_bytes=20)


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_body_is_decompressed_with_the_codec_in_sys_flag(compression: int) -> None:
    body, flags = compress(PLAIN, compression)

    assert len(body) < len(PLAIN)
    assert flags == COMPRESSED | compression
    assert decompress(body, flags) == PLAIN


def test_compression_type_0_is_zlib_and_a_plain_body_is_unchanged() -> None:
    assert decompress(zlib.compress(PLAIN), COMPRESSED) == PLAIN
    assert decompress(PLAIN, COMPRESSION_ZSTD) == PLAIN


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_body_that_decompresses_beyond_the_limit_is_refused(compression: int) -> None:
    body, flags = compress(bytes(1 << 20), compression)

    assert len(decompress(body, flags, 1 << 20)) == 1 << 20
    with pytest.raises(MessageInvalid, match="more than the limit of 1,048,575 bytes"):
        decompress(body, flags, (1 << 20) - 1)


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD, 0x700])
def test_body_not_compressed_with_the_codec_in_sys_flag_is_refused(compression: int) -> None:
    with pytest.raises(MessageInvalid):
        decompress(b"not compressed at all", COMPRESSED | compression)


@pytest.mark.parametrize("compression", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_truncated_compressed_body_is_refused(compression: int) -> None:
    body, flags = compress(PLAIN, compression)

    with pytest.raises(MessageInvalid, match="cannot be decompressed"):
        decompress(body[: len(body) // 2], flags)
