"""Planning the batches of a stream, and the manifests, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jobs.job_errors import DataLoss, FetchFailed, OffsetsInvalid, OptionInvalid
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import QueueState, Split, StoreLocation
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets, parse_offsets
from jobs.spark.stream.plan import Batch, Limits, existing_positions, initial_positions, next_batch, share
from jobs.spark.stream.reader import StreamManifestReader
from jobs.spark.stream.stream_manifest import (
    decode_rows,
    encode_fault,
    encode_stream_batch,
    is_fault,
    positions_after,
    split_of,
)
from store.message.message_queue import MessageQueue
from tests.ports import free_port

LOCATION = StoreLocation("127.0.0.1:10911", "/stores/a", "a1", 1 << 30, 300_000)


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("orders", "broker-a", queue_id)


def state(queue_id: int, low: int, high: int) -> QueueState:
    return QueueState(queue(queue_id), low, high, LOCATION)


def test_new_query_starts_at_latest_earliest_or_listed_offsets() -> None:
    states = [state(0, 10, 50), state(1, 0, 7)]

    def start(starting: Offsets) -> list[int]:
        return list(initial_positions(states, starting, fail_on_data_loss=True)[0].values())

    assert start(Offsets(LATEST)) == [50, 7]
    assert start(Offsets(EARLIEST)) == [10, 0]
    listed = parse_offsets("startingOffsets", {"orders": {"broker-a": {0: 20}}}, EARLIEST)
    assert start(listed) == [20, 0]
    unknown = parse_offsets("startingOffsets", {"orders": {"broker-a": {7: 20}}}, EARLIEST)
    with pytest.raises(OffsetsInvalid, match="orders/broker-a/7"):
        start(unknown)


def test_queue_added_later_is_read_from_its_first_offset() -> None:
    positions, missing = existing_positions(
        [state(0, 0, 5), state(1, 0, 9)], {queue(0): 5}, fail_on_data_loss=True
    )
    assert (positions, missing) == ({queue(0): 5, queue(1): 0}, [])


def test_queue_of_an_absent_broker_keeps_its_position() -> None:
    positions, missing = existing_positions([state(0, 0, 5)], {queue(1): 3}, fail_on_data_loss=True)
    assert (positions[queue(1)], missing) == (3, [])
    batch = next_batch([state(0, 0, 5)], positions, Limits(None, 2))
    assert batch.positions == {queue(0): 5, queue(1): 3}


@pytest.mark.parametrize(
    ("position", "existing", "lost"),
    [(4, 10, "[4, 10): before the first"), (60, 50, "[50, 60): after the end")],
)
def test_offsets_that_do_not_exist_fail_or_are_skipped(position: int, existing: int, lost: str) -> None:
    states = [state(0, 10, 50)]
    with pytest.raises(DataLoss) as loss:
        existing_positions(states, {queue(0): position}, fail_on_data_loss=True)
    assert lost in str(loss.value)
    positions, missing = existing_positions(states, {queue(0): position}, fail_on_data_loss=False)
    assert positions == {queue(0): existing}
    assert lost in str(missing[0])


def test_limit_is_distributed_in_proportion_and_never_exceeded() -> None:
    available = {queue(0): 1, queue(1): 100, queue(2): 300, queue(3): 0}
    for limit in range(1, 405):
        counts = share(available, limit, turn=limit)
        assert sum(counts.values()) == min(limit, 401)
        assert all(0 <= counts[each] <= available[each] for each in available)
    assert list(share(available, 100, 0).values()) == [1, 26, 73, 0]


def test_queues_take_turns_if_there_are_more_than_messages() -> None:
    available = {queue(number): 5 for number in range(5)}
    served = {each for turn in range(5) for each, count in share(available, 2, turn).items() if count}
    assert served == set(available)


def test_batches_cover_each_offset_once_and_report_the_lag() -> None:
    states = [state(0, 0, 10), state(1, 0, 35)]
    positions, _ = initial_positions(states, Offsets(EARLIEST), fail_on_data_loss=True)
    read, lags = [], []
    batch = next_batch(states, positions, Limits(20, 3), 0)
    while batch.splits:
        read += [(each.queue, offset) for each in batch.splits for offset in range(each.begin, each.end)]
        lags.append((sum(batch.lags.values()), batch.is_limited))
        batch = next_batch(states, batch.positions, Limits(20, 3), len(lags))
    assert sorted(read) == [(each.queue, offset) for each in states for offset in range(each.max_offset)]
    assert lags == [(25, True), (5, True), (0, False)]


def test_manifest_contains_splits_positions_and_lag() -> None:
    states = [state(0, 0, 10), state(1, 0, 35), state(2, 4, 4)]
    positions, _ = initial_positions(states, Offsets(EARLIEST), fail_on_data_loss=True)
    batch = next_batch(states, positions, Limits(40, 3))
    rows = decode_rows(encode_stream_batch(7, "query", batch, {}))
    assert positions_after(rows) == batch.positions
    splits = [split_of(row) for row in rows if row["begin"] < row["end"]]
    assert sorted(splits, key=lambda each: (each.queue, each.begin)) == list(batch.splits)
    assert sum(row["lag"] for row in rows) == 5
    assert {(row["number"], row["queryId"]) for row in rows} == {(7, "query")}
    assert is_fault(decode_rows(encode_fault(8, "query", "reason")))
    assert not is_fault(rows)


def test_reader_of_a_dead_broker_names_range_and_remedy() -> None:
    address = f"127.0.0.1:{free_port()}"  # of broker and nameserver
    location = StoreLocation(address, "/no store", "a1", 1 << 30, 300_000)
    batch = Batch([Split(queue(0), 3, 9, location)], {queue(0): 9}, {})
    rows = [{**row, "fault": None} for row in decode_rows(encode_stream_batch(0, "query", batch, {}))]
    reader = StreamManifestReader(SplitsReader((), ("body",), True, True), [address], "checkpoint")
    with pytest.raises(FetchFailed, match=r"orders/broker-a/0 \[3, 9\): .* start broker broker-a"):
        list(reader(iter([pa.RecordBatch.from_pylist(rows)])))


def test_limits_below_one_are_refused_by_name() -> None:
    with pytest.raises(OptionInvalid, match="maxOffsetsPerTrigger=0"):
        Limits(0, 1)
    with pytest.raises(OptionInvalid, match="minPartitions=0"):
        Limits(None, 0)
