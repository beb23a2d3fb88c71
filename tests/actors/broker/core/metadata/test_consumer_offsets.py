"""Consumer offsets: commits, fencing by generations, resets and deletion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from actors.broker.core.metadata import consumer_offsets
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.wire.raymq_requests import OffsetCommit, RefusedCommit
from store.metadata import ConsumerOffsetTable
from tests.actors.broker.brokers import Peer, settings_of, with_broker


@pytest.fixture
def offsets(clock) -> ConsumerOffsets:
    return ConsumerOffsets(ConsumerOffsetTable(clock))


def test_committed_offset_is_returned_for_its_group_only(offsets: ConsumerOffsets) -> None:
    assert offsets.query("G", "T", 0) is None
    offsets.commit("G", "T", 0, 7)
    assert offsets.query("G", "T", 0) == 7
    assert offsets.query("H", "T", 0) is None
    assert (offsets.groups_of("T"), offsets.of_group("G", "T")) == (["G"], {0: 7})


def test_former_owner_cannot_commit(offsets: ConsumerOffsets) -> None:
    assert offsets.commit_fenced("G", [OffsetCommit("T", 0, 10, generation=2)]) == []
    late = [OffsetCommit("T", 0, 99, generation=1), OffsetCommit("T", 1, 5, generation=1)]
    assert offsets.commit_fenced("G", late) == [RefusedCommit("T", 0, 2, 10)]
    assert offsets.query("G", "T", 0) == 10
    assert offsets.query("G", "T", 1) == 5


def test_claim_fences_the_former_owner_before_the_first_commit(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    offsets.claim("G", "T", 0, 2)
    assert offsets.commit_fenced("G", [OffsetCommit("T", 0, 99, 2)]) == [RefusedCommit("T", 0, 3, -1)]
    assert offsets.query("G", "T", 0) is None


def test_generations_are_separate_per_group_and_queue(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    assert offsets.commit_fenced("H", [OffsetCommit("T", 0, 1, 1)]) == []
    assert offsets.commit_fenced("G", [OffsetCommit("T", 1, 1, 1), OffsetCommit("U", 0, 1, 1)]) == []


def test_commits_without_a_generation_are_accepted(offsets: ConsumerOffsets) -> None:
    offsets.claim("G", "T", 0, 3)
    offsets.commit("G", "T", 0, 50)
    offsets.commit("G", "T", 0, 40)
    assert offsets.query("G", "T", 0) == 40


def test_owner_can_commit_repeatedly(offsets: ConsumerOffsets) -> None:
    for offset in (1, 2):
        assert offsets.commit_fenced("G", [OffsetCommit("T", 0, offset, generation=2)]) == []
    assert offsets.query("G", "T", 0) == 2


def test_commits_are_ignored_until_a_pending_reset_is_taken(offsets: ConsumerOffsets) -> None:
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


def test_removed_queue_loses_its_offsets_and_generations(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", queue_id, 9, generation=4) for queue_id in (0, 1)])
    offsets.remove_queue("T", 0)
    assert offsets.of_group("G", "T") == {1: 9}
    assert (offsets.generation("G", "T", 0), offsets.generation("G", "T", 1)) == (0, 4)


def test_deleting_topics_and_groups_removes_pending_resets(offsets: ConsumerOffsets) -> None:
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


def test_deleting_topics_and_groups_removes_their_offsets(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", 0, 1, 4), OffsetCommit("U", 0, 1, 4)])
    offsets.commit("H", "T", 0, 1)
    offsets.remove_topic("T")
    assert (offsets.groups_of("T"), offsets.groups_of("U")) == ([], ["G"])
    assert offsets.generation("G", "T", 0) == 0
    offsets.remove_group("G")
    assert offsets.groups_of("U") == []


def test_copied_generations_replace_all_but_never_fall(offsets: ConsumerOffsets) -> None:
    offsets.commit_fenced("G", [OffsetCommit("T", 0, 9, generation=7), OffsetCommit("Gone", 0, 9, 3)])
    offsets.replace_generations({"T@G": {0: 5, 1: 6}})
    assert [offsets.generation("G", "T", queue_id) for queue_id in (0, 1)] == [7, 6]
    assert offsets.generation("G", "Gone", 0) == 0
    assert offsets.query("G", "Gone", 0) == 9
    changes = offsets.changes
    offsets.replace_generations({"T@G": {0: 7, 1: 6}})
    assert offsets.changes == changes, "an equal table is not saved again"


def test_queue_pulled_first_is_forgotten_over_the_limit(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offsets, "PULLED", replace(consumer_offsets.PULLED, limit=2))
    offsets = ConsumerOffsets(ConsumerOffsetTable(clock))
    for queue_id in (0, 1, 0, 2):
        offsets.note_pull("G", "T", queue_id, 5)
        offsets.starting["T", "G", queue_id] = None
    assert list(offsets.pulled) == [("T", "G", 1), ("T", "G", 2)]
    for queue_id in range(3):
        offsets.note_start("G", "T", queue_id, 5)
    assert [offsets.started("G", "T", queue_id) for queue_id in range(3)] == [5, None, 5]
    assert [use.read() for use in offsets.bounds()] == [0, 0, 2]


@pytest.mark.parametrize("newest", ["consumerOffset.json", "lmqConsumerOffset.json"])
def test_newer_file_of_offsets_of_rocketmq_is_read(tmp_path: Path, newest: str) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    for name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        offset = 7 if name == newest else 3
        content = {
            "dataVersion": {"counter": 1, "timestamp": offset, "stateVersion": 0},
            "offsetTable": {"T@CG": {"0": offset}},
            "lmqOffsetTable": {"%LMQ%$T$a@CG": offset},
        }
        (config / name).write_bytes(orjson.dumps(content))

    async def story(peer: Peer) -> None:
        offsets = peer.tables.offsets
        assert (offsets.query("CG", "T", 0), offsets.query("CG", "%LMQ%$T$a", 0)) == (7, 7)
        assert (await peer.send("T")).code == 0
        assert (await peer.commit("CG", "T", 9)).code == 0

    with_broker(story, settings_of(tmp_path))
    saved = orjson.loads((config / "consumerOffset.json").read_bytes())["offsetTable"]
    assert saved == {"T@CG": {"0": 9}, "%LMQ%$T$a@CG": {"0": 7}}

    async def again(peer: Peer) -> None:
        assert peer.tables.offsets.query("CG", "T", 0) == 9

    with_broker(again, settings_of(tmp_path))
