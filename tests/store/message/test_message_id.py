"""offsetMsgId encodes where a message is stored; UNIQ_KEYs of a producer never repeat."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message.hosts import Host
from store.message.message_id import (
    UniqKeyBlock,
    UniqKeyGenerator,
    UniqKeySequence,
    decode_message_id,
    first_sequence,
    offset_message_id,
    offset_message_ids,
)
from store.store_errors import MessageInvalid
from tests.conftest import ClockAtRest


def generator(clock: ClockAtRest, ip: str = "10.0.0.1") -> UniqKeyGenerator:
    return UniqKeyGenerator(ip, 0x12345, clock, random.Random(7))


def test_offset_msg_id_equals_rocketmqs() -> None:
    assert offset_message_id(Host("10.0.0.2", 10911), 1000) == "0A00000200002A9F00000000000003E8"


@given(
    host=st.sampled_from([Host("1.2.3.4", 5), Host("fd00::1", 10911)]), offset=st.integers(0, (1 << 63) - 1)
)
def test_decoded_offset_msg_id_has_host_and_offset(host: Host, offset: int) -> None:
    assert decode_message_id(offset_message_id(host, offset)) == (host, offset)


@given(
    host=st.sampled_from([Host("1.2.3.4", 5), Host("fd00::1", 10911)]),
    offsets=st.lists(st.integers(0, (1 << 63) - 1), min_size=1),
)
def test_offset_msg_ids_of_a_batch_equal_those_of_its_records(host: Host, offsets: list[int]) -> None:
    expected = ",".join(offset_message_id(host, offset) for offset in offsets)
    assert offset_message_ids(host.packed, offsets) == expected


@given(first=st.integers(0, (1 << 48) - 10_000), count=st.integers(0, 9_999))
def test_uniq_key_block_keys_equal_single_keys(first: int, count: int) -> None:
    block = UniqKeyBlock("0A", first)
    assert block.keys(count) == [block.key(index) for index in range(count)]


@pytest.mark.parametrize(
    "text", ["", "0A", "no hex at all, but 32 letters..", "0A" * 17, "0A 00000200002A9F00000000000003E8"]
)
def test_invalid_offset_msg_id_is_refused(text: str) -> None:
    with pytest.raises(MessageInvalid, match="32 or 56 hex digits"):
        decode_message_id(text)


@pytest.mark.parametrize(("ip", "length"), [("10.0.0.1", 32), ("fd00::1", 56)])
def test_uniq_key_has_rocketmqs_layout(clock: ClockAtRest, ip: str, length: int) -> None:
    key = generator(clock, ip).next()
    local = time.localtime(clock.wall_ms() / 1000)
    month_start = time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))

    assert len(key) == length
    assert key == key.upper()
    assert bytes.fromhex(key)[-12:-10] == b"\x23\x45"  # the low 16 bits of the pid
    assert int(key[-12:-4], 16) == clock.wall_ms() - month_start * 1000
    assert key[-4:] == "0000"


def test_uniq_keys_do_not_repeat_if_the_clock_is_set_back(clock: ClockAtRest) -> None:
    keys = generator(clock)
    seen = [keys.next() for _ in range(10)]
    block = keys.next_block(200_000)
    seen += [block.key(0), block.key(199_999)]
    clock.set_wall_ms(clock.wall_ms() - 40 * 24 * 3600 * 1000)
    seen.append(keys.next())

    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


def test_uniq_keys_do_not_repeat_across_threads(clock: ClockAtRest) -> None:
    keys = generator(clock)
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: keys.next(), range(2000)))

    assert len(set(seen)) == 2000


def test_uniq_key_time_restarts_with_each_month(clock: ClockAtRest) -> None:
    keys = generator(clock)
    keys.next()
    clock.set_wall_ms(int(time.mktime((2024, 3, 1, 0, 0, 1, 0, 0, -1)) * 1000))

    assert int(keys.next()[-12:-4], 16) == 1000


def test_fixed_sequence_continues_like_the_generator(clock: ClockAtRest) -> None:
    block = generator(clock).next_block(1)
    first = UniqKeyBlock(block.prefix, first_sequence(clock.wall_ms()))
    sequence = UniqKeySequence(first)

    assert sequence.next_block(3) == block
    assert sequence.next_block(2).keys(2) == [first.key(3), first.key(4)]
