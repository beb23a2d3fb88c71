"""What a pull consumer hands out, and how far it says it has come: pauses, seeks, damage and farewells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cluster.client.consumer.deliveries import Deliveries, QueueState
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.errors import DataDamaged
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record

ONE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
BODY_POSITION = 88


class Held:
    """Two queues of one consumer, both at offset 0, and what is told of room."""

    def __init__(self) -> None:
        self.room: list[int] = []
        self.deliveries = Deliveries(lambda _fetcher, size_bytes: self.room.append(size_bytes))
        self.states = {queue: QueueState(queue, 1) for queue in (ONE, OTHER)}
        for queue, state in self.states.items():
            self.deliveries.states[queue] = state
            self.sought(queue, 0)

    def sought(self, queue: MessageQueue, offset: int) -> None:
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


def test_what_was_set_aside_comes_before_what_arrived_later_and_in_its_order() -> None:
    held = Held()
    held.arrive(ONE, 0, 3)
    assert held.take(1) == [(0, 0)]
    held.pause(ONE, paused=True)
    held.arrive(ONE, 3, 2)
    held.arrive(OTHER, 0, 2)
    assert held.take() == [(1, 0), (1, 1)]
    held.arrive(ONE, 5, 1)
    held.arrive(OTHER, 2, 1)
    held.pause(ONE, paused=False)
    assert held.take(2) == [(0, 1), (0, 2)]
    assert held.take() == [(0, 3), (0, 4), (0, 5), (1, 2)]


def test_room_is_given_back_when_a_chunk_has_been_taken_whole() -> None:
    held = Held()
    size_bytes = held.arrive(ONE, 0, 4)
    held.take(3)
    assert held.room == []
    held.take(1)
    assert held.room == [size_bytes]


def test_damage_of_one_queue_loses_nothing_of_another() -> None:
    held = Held()
    held.arrive(ONE, 0, 3)
    held.arrive(OTHER, 0, 1, damaged=True)
    assert held.take() == [(0, 0), (0, 1), (0, 2)]
    for _ in range(2):  # told until somebody seeks past it
        held.deliveries.acknowledge()
        with pytest.raises(DataDamaged, match="queueId=1"):
            held.take()
    assert (held.states[ONE].consumed, held.states[OTHER].consumed) == (3, 0)
    held.sought(OTHER, 1)
    held.arrive(OTHER, 1, 1)
    assert held.take() == [(1, 1)]


def test_a_seek_drops_what_the_former_fetcher_brought_and_what_was_in_work() -> None:
    held = Held()
    held.arrive(ONE, 0, 3)
    held.take(2)
    held.sought(ONE, 7)
    assert held.take() == []
    held.deliveries.acknowledge()
    assert (held.states[ONE].position, held.states[ONE].consumed) == (7, 7)


def test_a_queue_that_leaves_gives_nothing_more_and_is_told_when_its_last_messages_are_done() -> None:
    held = Held()
    held.arrive(ONE, 0, 3)
    held.take(1)
    held.states[ONE].is_leaving = True
    assert held.states[ONE].is_in_work
    assert held.take() == []
    assert held.deliveries.acknowledge() == [held.states[ONE]]
    assert held.deliveries.acknowledge() == []
    assert held.states[ONE].consumed == 1


def test_nothing_is_handed_out_while_the_lease_is_over() -> None:
    held = Held()
    held.arrive(ONE, 0, 1)
    held.deliveries.is_held_back = True
    assert held.take() == []
    assert not held.deliveries.has_messages
    held.deliveries.is_held_back = False
    assert held.deliveries.has_messages
    assert held.take() == [(0, 0)]
