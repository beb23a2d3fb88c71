"""Kernels that encode and stamp records give the results of their pure-Python equivalents."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.kernels.columns_to_records import (
    RowBatch,
    TextColumn,
    encode_queues,
    plan_rows,
    queues_of_keys,
)
from store.kernels.crc32 import crc32_kernel, crc32_sliced
from store.kernels.encode import encode_batch_records, measure_batch
from store.kernels.memory import find_byte
from store.kernels.stamp import Stamp, stamp_runs
from store.message.batch import encode_batch, encode_elements
from store.message.hosts import Host
from store.message.message import Message
from store.message.message_id import UniqKeyBlock
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_records, encode_record
from store.message.runs import Runs
from store.message.sys_flag import TRANSACTION_PREPARED
from store.store_errors import MessageInvalid
from tests.store.kernels.plain_check import RecordVerdict, check_record
from tests.store.kernels.plain_records import (
    encode_batch_records_plain,
    encode_rows_plain,
    queues_of_keys_plain,
    stamp_runs_plain,
)

V4 = Host("10.0.0.1", 1234).packed
V6 = Host("fd00::2", 65535).packed
LONG_TOPIC = "%RETRY%" + "g" * 140

packed_hosts = st.sampled_from([V4, V6])
topics = st.sampled_from(["T", LONG_TOPIC])
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
property_maps = st.dictionaries(texts, texts, max_size=3)


@given(st.binary(max_size=100), st.integers(0, 20))
def test_crc32_kernel_equals_zlib(data: bytes, start: int) -> None:
    buffer = np.frombuffer(bytes(start) + data + b"after", np.uint8)

    assert crc32_kernel(buffer, start, start + len(data)) == zlib.crc32(data) & 0x7FFFFFFF


@pytest.mark.parametrize("size", [*range(60, 145), 1000, 4096, 70_001])
def test_crc32_by_folding_and_by_slicing_equals_zlib(size: int) -> None:
    data = random.Random(size).randbytes(size)
    buffer = np.frombuffer(data, np.uint8)

    assert crc32_kernel(buffer, 0, size) == zlib.crc32(data) & 0x7FFFFFFF
    assert crc32_sliced(buffer, 0, size, np.uint64(0xFFFFFFFF)) ^ np.uint64(0xFFFFFFFF) == zlib.crc32(data)


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 40), st.sampled_from([0, 1, 2, 255]))
def test_find_byte_equals_bytes_find(data: bytes, start: int, end: int, byte: int) -> None:
    start, end = sorted((min(start, len(data)), min(end, len(data))))
    expected = data.find(bytes([byte]), start, end)

    assert find_byte(np.frombuffer(data, np.uint8), start, end, byte) == (end if expected < 0 else expected)


@given(
    bodies=st.lists(st.tuples(st.binary(max_size=40), property_maps, st.integers(-9, 9)), max_size=5),
    topic=topics,
    born_host=packed_hosts,
    store_host=packed_hosts,
    append_crc=st.booleans(),
    common=property_maps,
)
def test_encode_batch_records_equals_plain_python(
    bodies: list[tuple[bytes, dict[str, str], int]],
    topic: str,
    born_host: bytes,
    store_host: bytes,
    append_crc: bool,
    common: dict[str, str],
) -> None:
    batch = encode_batch([Message(topic, body, properties=own, flag=flag) for body, own, flag in bodies])
    draft = RecordDraft(
        topic, 3, b"", encode_properties(common), born_timestamp=5, born_host=born_host, reconsume_times=2
    )

    made = encode_batch_records(batch, draft, 70, 1 << 40, 999, store_host, append_crc=append_crc)
    plain = encode_batch_records_plain(batch, draft, 70, 1 << 40, 999, store_host, append_crc=append_crc)

    assert made.records == plain.records
    assert made.positions.tolist() == plain.positions.tolist()
    assert measure_batch(batch, draft, len(store_host), append_crc=append_crc) == (
        len(bodies),
        len(plain.records),
    )
    for position in made.positions.tolist():
        assert (
            check_record(made.records, position, force_crc_property=append_crc).verdict
            is RecordVerdict.RECORD
        )


def test_missing_last_separator_is_added_before_the_crc_property() -> None:
    element = bytearray(encode_batch([Message("T", b"x", properties={"k": "v"})]))
    element[3] -= 1
    element[-5] -= 1  # the low byte of propertiesLength
    batch = bytes(element[:-1])
    draft = RecordDraft("T", 0, b"")

    made = encode_batch_records(batch, draft, 0, 0, 0, V4, append_crc=True)

    assert made.records == encode_batch_records_plain(batch, draft, 0, 0, 0, V4, append_crc=True).records
    assert decode_records(made.records)[0].properties.keys() == {"k", "__CRC32#"}


@pytest.mark.parametrize("append_crc", [False, True])
def test_common_properties_of_a_batch_follow_those_of_each_message(append_crc: bool) -> None:
    batch = encode_elements([Message("T", b"b")] * 3, ["k\x01v", "k\x01v\x02", ""])
    draft = RecordDraft("T", 0, b"", b"MSG_REGION\x01R\x02")

    made = encode_batch_records(batch, draft, 0, 0, 0, V4, append_crc=append_crc)

    assert (
        made.records == encode_batch_records_plain(batch, draft, 0, 0, 0, V4, append_crc=append_crc).records
    )
    own = [{k: v for k, v in m.properties.items() if k != "__CRC32#"} for m in decode_records(made.records)]
    assert own == [{"k": "v", "MSG_REGION": "R"}] * 2 + [{"MSG_REGION": "R"}]


@pytest.mark.parametrize(("own", "fits"), [("v" * 32_763, True), ("v" * 32_764, False)])
def test_properties_without_room_for_common_ones_are_refused(own: str, fits: bool) -> None:
    batch = encode_elements([Message("T", b"body")], [own])
    draft = RecordDraft("T", 0, b"", b"k\x01\x02", born_host=V4)
    if fits:
        plain = encode_batch_records_plain(batch, draft, 0, 0, 0, V4).records
        assert encode_batch_records(batch, draft, 0, 0, 0, V4).records == plain
        return
    for encode in (encode_batch_records, encode_batch_records_plain):
        with pytest.raises(MessageInvalid, match="are over the limit"):
            encode(batch, draft, 0, 0, 0, V4)


@pytest.mark.parametrize(
    ("properties", "fits"), [("k\x01" + "v" * 32_744 + "\x02", True), ("v" * 32_747, False)]
)
def test_properties_without_room_for_the_crc_are_refused(properties: str, fits: bool) -> None:
    batch = encode_elements([Message("T", b"body")], [properties])
    draft = RecordDraft("T", 0, b"", born_host=V4)
    if fits:
        encoded = encode_batch_records(batch, draft, 0, 0, 0, V4, append_crc=True)
        assert check_record(encoded.records, force_crc_property=True).verdict == RecordVerdict.RECORD
        return
    for encode in (encode_batch_records, encode_batch_records_plain):
        with pytest.raises(MessageInvalid, match="are over the limit"):
            encode(batch, draft, 0, 0, 0, V4, append_crc=True)


@given(st.data())
def test_damaged_batch_is_refused_by_kernel_and_plain_python(data: st.DataObject) -> None:
    batch = bytearray(encode_batch([Message("T", b"body", properties={"k": "v"})] * 2))
    batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(batch[: data.draw(st.integers(0, len(batch)))])
    draft = RecordDraft("T", 0, b"")
    try:
        expected = encode_batch_records_plain(cut, draft, 0, 0, 0, V4).records
    except MessageInvalid:
        with pytest.raises(MessageInvalid, match="do not add up"):
            encode_batch_records(cut, draft, 0, 0, 0, V4)
    else:
        assert encode_batch_records(cut, draft, 0, 0, 0, V4).records == expected


def column(values: list[bytes]) -> TextColumn:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return TextColumn(offsets, np.frombuffer(b"".join(values), np.uint8))


def rows_of(rows: list[tuple[bytes, str, str, int]], topic: str = "T", born_host: bytes = V4) -> RowBatch:
    """Return a batch; each row is body, keys, tags and queue (0 to 3, whose ids are 5, 0, 7 and 1)."""
    return RowBatch(
        draft=RecordDraft(topic, 0, b"", b"WAIT\x01true\x02", born_timestamp=77, born_host=born_host),
        bodies=column([row[0] for row in rows]),
        keys=column([row[1].encode() for row in rows]),
        tags=column([row[2].encode() for row in rows]),
        queues=np.array([row[3] for row in rows], np.int32),
        queue_ids=np.array([5, 0, 7, 1], np.int32),
        uniq_keys=UniqKeyBlock("0A000001", 0xFFFF_FFFA),
        max_body_bytes=50,
    )


@given(
    rows=st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=40), texts | st.just(""), texts | st.just(""), st.integers(0, 3)
        )
    ),
    topic=topics,
    born_host=packed_hosts,
    own=st.none() | property_maps,
)
def test_plan_and_encode_rows_equal_plain_python(
    rows: list[tuple[bytes, str, str, int]], topic: str, born_host: bytes, own: dict[str, str] | None
) -> None:
    batch = rows_of(rows, topic, born_host)
    if own is not None:
        encoded = encode_properties(own)
        batch = batch._replace(properties=column([encoded * (row % 2) for row in range(len(rows))]))

    plan = plan_rows(batch)
    made = [bytes(encode_queues(batch, plan, queue, queue + 1)) for queue in range(4)]

    assert made == encode_rows_plain(batch)
    for first in range(5):
        for end in range(first, 5):
            assert bytes(encode_queues(batch, plan, first, end)) == b"".join(made[first:end])
    messages = [message for records in made for message in decode_records(records, check_crc=False)]
    assert {message.uniq_key for message in messages} == {
        batch.uniq_keys.key(row) for row in range(len(rows))
    }


@pytest.mark.parametrize(
    ("row", "remark"),
    [
        ((b"x", "", "", 4), "queue 4 is not one of the topic's 4"),
        ((b"x", "", "", -1), "queue -1"),
        ((b"x" * 51, "", "", 0), "51 bytes is over max_message_bytes 50"),
        ((b"x", "a\x02b", "", 0), "separator"),
        ((b"x", "", "\x01", 0), "separator"),
        ((b"x", "k" * 32_768, "", 0), "over the limit of 32,767"),
    ],
)
def test_invalid_row_is_refused_with_its_number(row: tuple[bytes, str, str, int], remark: str) -> None:
    batch = rows_of([(b"good", "k", "t", 1), row])

    for refuse in (plan_rows, encode_rows_plain):
        with pytest.raises(MessageInvalid, match=f"row 1: .*{remark}"):
            refuse(batch)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12)), st.integers(1, 9))
def test_queues_of_keys_equals_plain_python(keys: list[str], queue_count: int) -> None:
    keys_column = column([key.encode() for key in keys])

    assert (
        queues_of_keys(keys_column, queue_count).tolist()
        == queues_of_keys_plain(keys_column, queue_count).tolist()
    )


STAMP = Stamp(
    topic="T",
    physical_offset=1 << 33,
    store_timestamp=1234,
    born_host=Host("1.2.3.4", 5).packed,
    store_host=Host("9.8.7.6", 10911).packed,
    max_body_bytes=100,
)


def client_records(*drafts: RecordDraft, store_host: bytes = V4) -> bytearray:
    return bytearray(b"".join(encode_record(draft, 0, 0, 0, bytes(len(store_host))) for draft in drafts))


def built(body: bytes = b"body", **changes: object) -> RecordDraft:
    draft = RecordDraft("T", 3, body, encode_properties({"KEYS": "k"}), born_host=V4)
    return replace(draft, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "remark"),
    [
        (built(topic="U"), "not of the topic 'T'"),
        (built(topic="TT"), "not of the topic 'T'"),
        (built(topic=LONG_TOPIC), "not of the topic 'T'"),
        (built(queue_id=4), "not of queue 3"),
        (built(sys_flag=TRANSACTION_PREPARED), "sysFlag"),
        (built(sys_flag=0x80), "sysFlag"),
        (built(born_host=V6), "hosts of another size"),
        (built(b"x" * 101), "over max_message_bytes 100"),
    ],
)
def test_record_with_a_wrong_field_is_refused(bad: RecordDraft, remark: str) -> None:
    for stamp in (stamp_runs, stamp_runs_plain):
        run = run_of(client_records(built(), bad))
        with pytest.raises(MessageInvalid, match=f"at byte {len(client_records(built()))} .*{remark}"):
            stamp(run, STAMP, [0])


@given(data=st.data())
def test_damaged_records_are_refused_by_kernel_and_plain_python(data: st.DataObject) -> None:
    records = client_records(built(b"x"), built(b"yz"))
    records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    records = records[: data.draw(st.integers(0, len(records)))]
    run = run_of(records)

    assert outcome_of_runs(stamp_runs, copy_of(run)) == outcome_of_runs(stamp_runs_plain, run)


def run_of(records: bytearray) -> Runs:
    """Return one run of queue 3 with a header for two records."""
    return Runs([3], [2], [len(records)], memoryview(records))


def runs_of(
    *bodies_by_queue: list[bytes], topic: str = "T", born_host: bytes = V4, store_host: bytes = V4
) -> Runs:
    """Return runs of the queues 10, 11 and so on, with these bodies."""
    by_queue = [
        client_records(
            *(built(body, topic=topic, queue_id=10 + number, born_host=born_host) for body in bodies),
            store_host=store_host,
        )
        for number, bodies in enumerate(bodies_by_queue)
    ]
    records = bytearray(b"".join(by_queue))
    queue_ids = range(10, 10 + len(by_queue))
    return Runs([*queue_ids], [*map(len, bodies_by_queue)], [*map(len, by_queue)], memoryview(records))


def copy_of(runs: Runs) -> Runs:
    """Return the runs with a copy of their records."""
    return runs._replace(records=memoryview(bytearray(runs.records)))


@given(
    bodies=st.lists(st.lists(st.binary(max_size=100), min_size=1, max_size=4), max_size=5),
    topic=topics,
    born_host=packed_hosts,
    store_host=packed_hosts,
)
def test_stamp_runs_equals_plain_python_with_the_offsets_of_each_queue(
    bodies: list[list[bytes]], topic: str, born_host: bytes, store_host: bytes
) -> None:
    runs = runs_of(*bodies, topic=topic, born_host=bytes(len(born_host)), store_host=store_host)
    others = copy_of(runs)
    stamp = STAMP._replace(topic=topic, born_host=born_host, store_host=store_host)
    offsets = [1000 * number for number in range(len(bodies))]

    stamp_runs(runs, stamp, offsets)
    stamp_runs_plain(others, stamp, offsets)

    stamped, plain = bytes(runs.records), bytes(others.records)
    assert stamped == plain
    places = [(message.queue_id, message.queue_offset, message.body) for message in decode_records(stamped)]
    assert places == [
        (queue_id, offset + index, body)
        for queue_id, offset, own in zip(runs.queue_ids, offsets, bodies, strict=True)
        for index, body in enumerate(own)
    ]
    position = stamp.physical_offset
    for message in decode_records(stamped):
        assert (message.commit_log_offset, message.store_timestamp) == (position, 1234)
        assert (message.born_host.packed, message.store_host.packed) == (born_host, store_host)
        position += message.store_size


@given(data=st.data())
def test_damaged_runs_are_refused_by_kernel_and_plain_python(data: st.DataObject) -> None:
    runs = runs_of([b"x", b"yz"], [b"u"], [b"", b"v"])
    if data.draw(st.booleans()):
        runs.records[data.draw(st.integers(0, len(runs.records) - 1))] = data.draw(st.integers(0, 255))
    else:
        messages = [*runs.messages]
        messages[data.draw(st.integers(0, 2))] = data.draw(st.integers(1, 4))
        runs = runs._replace(messages=messages)

    assert outcome_of_runs(stamp_runs, copy_of(runs)) == outcome_of_runs(stamp_runs_plain, copy_of(runs))


def test_run_that_differs_from_its_header_is_refused() -> None:
    runs = runs_of([b"x", b"yz"], [b"u"])
    for stamp in (stamp_runs, stamp_runs_plain):
        with pytest.raises(MessageInvalid, match=r"of queue 10 that ends at byte 201 .* 3 records"):
            stamp(copy_of(runs)._replace(messages=[3, 1]), STAMP, [0, 0])
        with pytest.raises(MessageInvalid, match="at byte 201 of the batch is not of queue 12"):
            stamp(copy_of(runs)._replace(queue_ids=[10, 12]), STAMP, [0, 0])
        with pytest.raises(MessageInvalid, match="is truncated or malformed"):
            stamp(copy_of(runs)._replace(sizes=[200, runs.sizes[1] + 1]), STAMP, [0, 0])


def outcome_of_runs(stamp: Callable[[Runs, Stamp, list[int]], None], runs: Runs) -> bytes | str:
    """Return the stamped bytes, or the error message."""
    try:
        stamp(runs, STAMP, [7, 70, 700][: len(runs.queue_ids)])
    except MessageInvalid as error:
        return error.remark
    return bytes(runs.records)
