"""Consumer offsets: what was committed, and which commits come too late."""

from __future__ import annotations

import pytest

from actors.broker.metadata.consumer_offsets import ConsumerOffsets
from actors.remoting.raymq_requests import OffsetCommit, RefusedCommit
from store.metadata import ConsumerOffsetTable


@pytest.fixture
def offsets(clock) -> ConsumerOffsets:
    return ConsumerOffsets(ConsumerOffsetTable(clock))


def test_an_offset_is_there_once_committed(offsets: ConsumerOffsets) -> None:
    assert offsets.query("G", "T", 0) is None
    offsets.commit("G", "T", 0, 7)
    assert offsets.query("G", "T", 0) == 7
    assert offsets.query("H", "T", 0) is None
    assert (offsets.groups_of("T"), offsets.of_group("G", "T")) == (["G"], {0: 7})


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


def test_an_owner_commits_again_and_again(offsets: ConsumerOffsets) -> None:
    for offset in (1, 2):
        assert offsets.commit_fenced("G", [OffsetCommit("T", 0, offset, generation=2)]) == []
    assert offsets.query("G", "T", 0) == 2


def test_a_reset_stands_against_commits_until_the_group_has_heard_of_it(offsets: ConsumerOffsets) -> None:
    offsets.reset("G", "T", 0, 3)
    offsets.commit("G", "T", 0, 50)
    assert offsets.commit_fenced("G", [OffsetCommit("T", 0, 60, generation=2)]) == []
    assert offsets.query("G", "T", 0) == 3
    offsets.commit("H", "T", 0, 50)
    offsets.commit("G", "T", 1, 50)
    assert (offsets.query("H", "T", 0), offsets.query("G", "T", 1)) == (50, 50)
    assert [offsets.take_reset("G", "T", 0) for _ in range(2)] == [3, None]
    offsets.commit("G", "T", 0, 4)
    assert offsets.query("G", "T", 0) == 4


def test_a_queue_that_begins_anew_is_begun_anew_by_its_groups(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", queue_id, 9, generation=4) for queue_id in (0, 1)])
    offsets.remove_queue("T", 0)
    assert offsets.of_group("G", "T") == {1: 9}
    assert (offsets.generation("G", "T", 0), offsets.generation("G", "T", 1)) == (0, 4)


def test_deleted_topics_and_groups_take_what_was_to_be_told_along(offsets: ConsumerOffsets) -> None:
    for group in ("G", "H"):
        offsets.reset(group, "T", 0, 3)
        offsets.reset(group, "U", 0, 3)
        offsets.pulled["T", group, 0] = offsets.pulled["U", group, 0] = 5
    offsets.remove_topic("T")
    offsets.remove_group("H")
    assert offsets.pulled == {("U", "G", 0): 5}
    assert offsets.resets == {("U", "G", 0): 3}
    assert offsets.groups_of("U") == ["G"]
    assert offsets.topics_of("G") == ["U"]


def test_deleted_topics_and_groups_leave_nothing(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", 0, 1, 4), OffsetCommit("U", 0, 1, 4)])
    offsets.commit("H", "T", 0, 1)
    offsets.remove_topic("T")
    assert (offsets.groups_of("T"), offsets.groups_of("U")) == ([], ["G"])
    assert offsets.generation("G", "T", 0) == 0
    offsets.remove_group("G")
    assert offsets.groups_of("U") == []
