"""Acked offsets after the committed one: chunks, changes of a turn, deletions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.broker.core.metadata.acked_offsets import CHUNK, AckedOffsets
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from store.metadata import ConsumerOffsetTable

QUEUE = ("T", "G", 0)


@pytest.fixture
def offsets(clock) -> ConsumerOffsets:
    return ConsumerOffsets(ConsumerOffsetTable(clock), is_replicated=True)


def test_acked_offsets_are_entries_until_the_committed_offset_passes_them(offsets: ConsumerOffsets) -> None:
    acked = offsets.acked
    for offset in (1, 3, CHUNK + 2):
        acked.done(QUEUE, offset)
    assert acked.open_of(QUEUE, [0, 1, 2, 3, CHUNK + 2]) == [0, 2]
    assert acked.take_changes()[0] == []
    offsets.commit("G", "T", 0, 2)
    acked.committed(QUEUE, 2)
    assert acked.entries() == {"T@G@0@0": "8", "T@G@0@1": "4"}
    assert acked.take_changes() == (["T@G"], ["T@G@0@0"])
    offsets.commit("G", "T", 0, CHUNK + 3)
    acked.committed(QUEUE, CHUNK + 3)
    groups, chunks = acked.take_changes()
    assert (groups, sorted(chunks)) == (["T@G"], ["T@G@0@0", "T@G@0@1"])
    assert [acked.entry(each) for each in chunks] == [None, None]


def test_restored_entries_are_no_changes(offsets: ConsumerOffsets) -> None:
    acked = offsets.acked
    acked.restore("T@G@0@1", "5")
    assert acked.open_of(QUEUE, [CHUNK, CHUNK + 1, CHUNK + 2]) == [CHUNK + 1]
    acked.restore("T@G@0@1", None)
    assert (acked.entries(), acked.take_changes()) == ({}, ([], []))
    for name, value in (("T@G@0", "1"), ("T@G@x@0", "1"), ("T@G@0@0", "x"), ("T@G@0@0", "f" * CHUNK)):
        with pytest.raises(ValueError):
            acked.restore(name, value)


@pytest.mark.parametrize(
    "forget",
    [
        lambda offsets: offsets.reset("G", "T", 0, 0),
        lambda offsets: offsets.remove_topic("T"),
        lambda offsets: offsets.remove_group("G"),
        lambda offsets: offsets.remove_queue("T", 0),
    ],
)
def test_acks_are_forgotten_with_what_they_belong_to(
    offsets: ConsumerOffsets, forget: Callable[[ConsumerOffsets], None]
) -> None:
    offsets.acked.done(QUEUE, 1)
    offsets.acked.done(("U", "H", 1), 1)
    offsets.acked.take_changes()
    forget(offsets)
    assert offsets.acked.entries() == {"U@H@1@0": "2"}
    assert offsets.acked.take_changes()[1] == ["T@G@0@0"]


@pytest.mark.parametrize(
    "change",
    [
        lambda offsets: offsets.commit("G", "T", 0, 6),
        lambda offsets: offsets.reset("G", "T", 0, 0),
        lambda offsets: offsets.remove_topic("T"),
        lambda offsets: offsets.remove_group("G"),
        lambda offsets: offsets.remove_queue("T", 0),
    ],
)
def test_each_change_of_a_committed_offset_is_to_be_logged(
    offsets: ConsumerOffsets, change: Callable[[ConsumerOffsets], None]
) -> None:
    for group in ("G", "H"):
        offsets.commit(group, "T" if group == "G" else "U", 0, 5)
    offsets.acked.take_changes()
    change(offsets)
    assert offsets.acked.take_changes() == (["T@G"], [])


def test_single_broker_keeps_only_acks_for_an_earlier_process() -> None:
    acked = AckedOffsets(is_replicated=False)
    acked.done(QUEUE, 1)
    acked.add(QUEUE, 2)
    acked.committed(QUEUE, 1)
    assert (acked.entries(), acked.take_changes()) == ({"T@G@0@0": "4"}, ([], []))
