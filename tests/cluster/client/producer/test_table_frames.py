"""Distribution of table rows over requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.client.producer import table_frames
from cluster.client.producer.table_frames import QueueList, frame_borders, frames
from store.kernels.columns_to_records import RowBatch, TextColumn
from store.message.message_id import UniqKeyBlock
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, decode_records
from store.message.runs import RUNS_MAX, decode_runs, encode_heads

QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(7)]


def rows_of(queues: list[int], ids: np.ndarray) -> RowBatch:
    """Return rows whose bodies contain the row numbers; `queues` holds the queue number of each row."""
    bodies = [b"%03d" % row * (1 + row % 30) for row in range(len(queues))]
    offsets = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum([len(body) for body in bodies], out=offsets[1:])
    absent = TextColumn.absent(len(queues))
    return RowBatch(
        RecordDraft("T", 0, b""),
        TextColumn(offsets, np.frombuffer(b"".join(bodies), np.uint8)),
        absent,
        absent,
        np.array(queues, np.int32),
        ids,
        UniqKeyBlock("0A000001", 0),
        1000,
    )


@pytest.mark.parametrize("one_go_bytes", [0, 1 << 30])
@given(queue_numbers=st.lists(st.integers(0, len(QUEUES) - 1), max_size=60), max_bytes=st.integers(1, 3_000))
def test_frames_contain_every_row_once_in_order(
    one_go_bytes: int, queue_numbers: list[int], max_bytes: int
) -> None:
    queues = QueueList(QUEUES)
    rows = rows_of(queue_numbers, queues.ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_frames, "ONE_GO_BYTES", one_go_bytes)
        made = list(frames(rows, queues, max_bytes))
    found: dict[MessageQueue, list[bytes]] = {}
    for frame in made:
        assert len({queue.broker_name for queue in frame.queues}) == 1
        runs = decode_runs(encode_heads(frame.runs) + bytes(frame.runs.records))
        assert [*runs.queue_ids] == [queue.queue_id for queue in frame.queues]
        assert len(runs.records) <= max_bytes or len(runs.queue_ids) == 1
        begin = 0
        for queue, count, size_bytes in zip(frame.queues, runs.messages, runs.sizes, strict=True):
            messages = decode_records(runs.records[begin : begin + size_bytes], check_crc=False)
            assert {message.queue_id for message in messages} == {queue.queue_id}
            assert len(messages) == count
            found.setdefault(queue, []).extend(message.body for message in messages)
            begin += size_bytes
    expected: dict[MessageQueue, list[bytes]] = {}
    for row, number in enumerate(queue_numbers):
        expected.setdefault(QUEUES[number], []).append(rows.bodies.row(row))
    assert found == expected


def test_frame_has_at_most_runs_max_queues() -> None:
    count = 2 * RUNS_MAX + 5
    starts = np.arange(count + 1)
    borders = list(frame_borders(np.arange(count), starts, np.array([count]), 1 << 20))
    assert [end - begin for begin, end in borders] == [RUNS_MAX, RUNS_MAX, 5]
