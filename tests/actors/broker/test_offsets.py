"""Consumer offsets: what was committed, and which commits come too late."""

from __future__ import annotations

import pytest

from actors.broker.offsets import ConsumerOffsets
from actors.broker.wire import OffsetCommit, RefusedCommit
from store.metadata import ConsumerOffsetTable


@pytest.fixture
def offsets(clock) -> ConsumerOffsets:
    return ConsumerOffsets(ConsumerOffsetTable(clock))


def test_an_offset_is_there_once_committed(offsets: ConsumerOffsets) -> None:
    assert offsets.query("G", "T", 0) is None
    offsets.commit("G", "T", 0, 7)
    assert offsets.query("G", "T", 0) == 7
    assert offsets.query("H", "T", 0) is None
    assert offsets.of_topic("T") == {"G": {0: 7}}


def test_a_former_owner_cannot_commit(offsets: ConsumerOffsets) -> None:
    assert offsets.commit_fenced("G", [OffsetCommit("T", 0, 10, generation=2)]) == []
    late = [OffsetCommit("T", 0, 99, generation=1), OffsetCommit("T", 1, 5, generation=1)]
    assert offsets.commit_fenced("G", late) == [RefusedCommit("T", 0, 2, 10)]
    assert offsets.query("G", "T", 0) == 10
    assert offsets.query("G", "T", 1) == 5


def test_a_claim_shuts_the_former_owner_out_before_the_first_commit(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    offsets.claim("G", "T", 0, 2)
    assert offsets.commit_fenced("G", [OffsetCommit("T", 0, 99, 2)]) == [RefusedCommit("T", 0, 3, -1)]
    assert offsets.query("G", "T", 0) is None


def test_generations_of_groups_and_queues_are_apart(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    assert offsets.commit_fenced("H", [OffsetCommit("T", 0, 1, 1)]) == []
    assert offsets.commit_fenced("G", [OffsetCommit("T", 1, 1, 1), OffsetCommit("U", 0, 1, 1)]) == []


def test_clients_without_generations_commit_as_they_like(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    offsets.commit("G", "T", 0, 50)
    offsets.commit("G", "T", 0, 40)
    assert offsets.query("G", "T", 0) == 40


def test_deleted_topics_and_groups_leave_nothing(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", 0, 1, 4), OffsetCommit("U", 0, 1, 4)])
    offsets.commit("H", "T", 0, 1)
    offsets.remove_topic("T")
    assert offsets.of_topic("T") == {}
    assert offsets.generation("G", "T", 0) == 0
    offsets.remove_group("G")
    assert offsets.of_topic("U") == {}
