"""Deliveries: order, positions, pauses, seeks, damaged records and released queues of a pull consumer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cluster.client.consumer.deliveries import Deliveries, PulledQueue
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.errors import DataDamaged
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record

ONE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
BODY_POSITION = 88


class TwoQueues:
    """Deliveries with two queues at offset 0. `taken_bytes` records the calls of `on_taken`."""

    def __init__(self) -> None:
        self.taken_bytes: list[int] = []
        self.deliveries = Deliveries(lambda _fetcher, size_bytes: self.taken_bytes.append(size_bytes))
        self.states = {queue: PulledQueue(queue, 1) for queue in (ONE, OTHER)}
        for queue, state in self.states.items():
            self.deliveries.states[queue] = state
            self.seek(queue, 0)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        fetcher = cast("Fetcher", SimpleNamespace(queue=queue, stop=lambda: None))
        with self.deliveries.lock:
            self.deliveries.restart(self.states[queue], fetcher, offset)

    def arrive(self, queue: MessageQueue, begin: int, count: int, *, damaged: bool = False) -> int:
        records = bytearray()
        for offset in range(begin, begin + count):
            draft = RecordDraft("T", queue.queue_id, b"%d" % offset, b"")
            records += encode_record(draft, offset, offset, 1, bytes(8))
        if damaged:
            records[BODY_POSITION] ^= 0xFF
        fetcher = self.states[queue].fetcher
        assert fetcher is not None
        self.deliveries.arrived(Chunk(fetcher, begin, begin + count, count, bytes(records)))
        return len(records)

    def take(self, count: int = 100) -> list[tuple[int, int]]:
        return [(each.queue_id, each.queue_offset) for each in self.deliveries.take_messages(count)]

    def pause(self, queue: MessageQueue, *, paused: bool) -> None:
        with self.deliveries.lock:
            self.states[queue].is_paused = paused
            if not paused:
                self.deliveries.resumed()


def test_messages_of_resumed_queue_precede_later_arrivals() -> None:
    queues = TwoQueues()
    queues.arrive(ONE, 0, 3)
    assert queues.take(1) == [(0, 0)]
    queues.pause(ONE, paused=True)
    queues.arrive(ONE, 3, 2)
    queues.arrive(OTHER, 0, 2)
    assert queues.take() == [(1, 0), (1, 1)]
    queues.arrive(ONE, 5, 1)
    queues.arrive(OTHER, 2, 1)
    queues.pause(ONE, paused=False)
    assert queues.take(2) == [(0, 1), (0, 2)]
    assert queues.take() == [(0, 3), (0, 4), (0, 5), (1, 2)]


def test_on_taken_is_called_after_whole_chunk_is_taken() -> None:
    queues = TwoQueues()
    size_bytes = queues.arrive(ONE, 0, 4)
    queues.take(3)
    assert queues.taken_bytes == []
    queues.take(1)
    assert queues.taken_bytes == [size_bytes]


def test_damaged_queue_does_not_lose_messages_of_another() -> None:
    queues = TwoQueues()
    queues.arrive(ONE, 0, 3)
    queues.arrive(OTHER, 0, 1, damaged=True)
    assert queues.take() == [(0, 0), (0, 1), (0, 2)]
    for _ in range(2):  # raised until a seek skips the damaged record
        queues.deliveries.acknowledge()
        with pytest.raises(DataDamaged, match="queueId=1"):
            queues.take()
    assert (queues.states[ONE].consumed, queues.states[OTHER].consumed) == (3, 0)
    queues.seek(OTHER, 1)
    queues.arrive(OTHER, 1, 1)
    assert queues.take() == [(1, 1)]


def test_seek_drops_fetched_and_unacknowledged_messages() -> None:
    queues = TwoQueues()
    queues.arrive(ONE, 0, 3)
    queues.take(2)
    queues.seek(ONE, 7)
    assert queues.take() == []
    queues.deliveries.acknowledge()
    assert (queues.states[ONE].position, queues.states[ONE].consumed) == (7, 7)


def test_leaving_queue_is_returned_after_its_last_acknowledgement() -> None:
    queues = TwoQueues()
    queues.arrive(ONE, 0, 3)
    queues.take(1)
    queues.states[ONE].is_leaving = True
    assert queues.states[ONE].has_unacknowledged
    assert queues.take() == []
    assert queues.deliveries.acknowledge() == [queues.states[ONE]]
    assert queues.deliveries.acknowledge() == []
    assert queues.states[ONE].consumed == 1


def test_suspended_deliveries_return_no_messages() -> None:
    queues = TwoQueues()
    queues.arrive(ONE, 0, 1)
    queues.deliveries.is_suspended = True
    assert queues.take() == []
    assert not queues.deliveries.has_messages
    queues.deliveries.is_suspended = False
    assert queues.deliveries.has_messages
    assert queues.take() == [(0, 0)]
