"""A saved sink has each record once: over restarts, kills, lost ends of the log, rebuilds and resyncs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from store.dispatch.saved_sink import SINKS, SavedSink, read_state
from store.message.record import decode_record
from store.ownership.divergence import Divergence, write_divergence
from store.store_errors import StoreError
from store.tools.rebuild import rebuild
from store.tools.resync import resyncing
from store.tools.verify import verify
from tests.store.checkpoints import make_checkpoint


class TopicCounts(SavedSink):
    """Counts records by topic."""

    def __init__(self, name: str = "topic-counts") -> None:
        super().__init__(name)
        self.counts: Counter[str] = Counter()
        self.added = 0

    def add(self, offset: int, record: memoryview) -> None:
        self.counts[decode_record(record).topic] += 1
        self.added += 1

    def state(self) -> Any:
        return dict(self.counts)

    def restore(self, state: Any) -> None:
        self.counts = Counter(state or {})


def fill(store, draft, count: int) -> None:
    for number in range(count):
        store.append(draft(b"%d" % number, topic="AB"[number % 2], queue_id=number % 3))


def test_state_continues_after_a_restart(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 101)  # over several log files
    drain(store)
    store.close()
    sink = TopicCounts()
    store = stores.open(sinks=[sink])
    assert (sink.counts, sink.added) == ({"A": 51, "B": 50}, 0)
    fill(store, draft, 10)
    drain(store)
    assert (sink.counts, sink.added) == ({"A": 56, "B": 55}, 10)


def test_start_after_a_kill_adds_what_the_file_lacks(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 60)
    drain(store)
    make_checkpoint(store)
    fill(store, draft, 20)
    drain(store)
    stores.kill(store, "killed")
    sink = TopicCounts()
    stores.open("killed", sinks=[sink])
    assert (sink.counts, sink.added) == ({"A": 40, "B": 40}, 20)


def test_records_that_another_sink_lacks_are_not_added_twice(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 75)
    drain(store)
    make_checkpoint(store)
    fill(store, draft, 10)  # after the state, but in the same batch of the next start
    drain(store)
    stores.kill(store, "killed")
    sink, other = TopicCounts(), TopicCounts("other")
    stores.open("killed", sinks=[sink, other])
    assert (sink.added, other.added) == (10, 85)
    assert sink.counts == other.counts


def test_state_is_derived_again_if_the_log_has_lost_its_end(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 40)
    drain(store)
    cut = store.positions.written
    fill(store, draft, 20)
    drain(store)
    store.close()
    store = stores.open()  # without the sink, and with other records in the place of the lost ones
    store.truncate_to(cut, discard_confirmed=True)
    fill(store, draft, 40)
    drain(store)
    store.close()
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert (sink.counts, sink.added) == ({"A": 40, "B": 40}, 80)


def test_state_is_given_up_when_the_log_is_truncated(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 20)
    cut = store.positions.written
    fill(store, draft, 20)
    drain(store)
    make_checkpoint(store)
    store.truncate_to(cut, discard_confirmed=True)
    assert not (store.root / SINKS / "topic-counts").exists()
    fill(store, draft, 40)
    drain(store)
    store.close()
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert (sink.counts, sink.added) == ({"A": 30, "B": 30}, 60)


def test_new_sink_of_a_store_gets_all_records_of_its_log(stores, draft, drain):
    store = stores.open()
    fill(store, draft, 30)
    drain(store)
    store.close()
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert sink.counts == {"A": 15, "B": 15}


@pytest.mark.parametrize("content", [b"", b"{}", b"00000000{}", b'\xff{"end":1}'])
def test_damaged_state_is_reported_and_derived_again(stores, draft, drain, content):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 30)
    drain(store)
    store.close()
    path = store.root / SINKS / "topic-counts"
    path.write_bytes(content)
    [finding] = verify(store.root).findings
    assert (finding.path, finding.kind) == ("sinks/topic-counts", "notes")
    sink = TopicCounts()
    stores.open(sinks=[sink]).close()
    assert sink.counts == {"A": 15, "B": 15}
    assert verify(store.root).findings == []


def test_state_of_another_store_or_a_longer_log_is_reported(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 30)
    drain(store)
    store.close()
    path = store.root / SINKS / "topic-counts"
    saved = read_state(path)
    for other in (saved._replace(store_id="x"), saved._replace(end=saved.end + 1)):
        path.write_bytes(other.encode())
        assert [each.path for each in verify(store.root).findings] == ["sinks/topic-counts"]
        sink = TopicCounts()
        stores.open(sinks=[sink]).close()
        assert sink.added == 30


def test_rebuild_lets_the_next_start_derive_the_state_again(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 30)
    drain(store)
    store.close()
    rebuild(store.root)
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert (sink.counts, sink.added) == ({"A": 15, "B": 15}, 30)


def test_resync_sets_the_state_aside(stores, draft, drain):
    store = stores.open(sinks=[TopicCounts()])
    fill(store, draft, 30)
    drain(store)
    store.close()
    found = Divergence(
        master="10.0.0.1:10911", epoch=3, reason="differs", position=0, commit_log_file_bytes=8192
    )
    write_divergence(store.root, found)
    with resyncing(store.root) as resync:
        aside = resync.plan().directory
        resync.run()
    assert (aside / SINKS / "topic-counts").exists()
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert sink.counts == {}


def test_two_sinks_of_one_name_are_refused(stores):
    with pytest.raises(StoreError, match="two sinks have one name"):
        stores.open(sinks=[TopicCounts(), TopicCounts()])


@pytest.mark.parametrize("name", ["", "a/b", "..", "A", "a" * 101])
def test_name_of_a_sink_must_be_that_of_a_file(name):
    with pytest.raises(ValueError, match="sink name"):
        TopicCounts(name)
