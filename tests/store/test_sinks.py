"""Additional dispatch sinks receive every record once, despite restarts, truncation and failures."""

from __future__ import annotations

from collections import Counter

from store.dispatch.sink import RecordBatch
from store.message.record import decode_record


class TopicCounts:
    """Counts records by topic in memory, so that it lacks all records after a start."""

    def __init__(self) -> None:
        self.topics: dict[int, str] = {}
        self.fails = False

    def accept(self, batch: RecordBatch) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        for offset, record in batch.records():
            self.topics.setdefault(offset, decode_record(record).topic)

    def rewind(self, offset: int) -> None:
        self.topics = {each: topic for each, topic in self.topics.items() if each < offset}

    @property
    def missing_from(self) -> int | None:
        return 0

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.topics.values())


def fill(store, draft, count: int) -> None:
    for number in range(count):
        store.append(draft(b"%d" % number, topic="AB"[number % 2], queue_id=number % 3))


def test_sink_receives_every_dispatched_record(stores, draft, drain):
    sink = TopicCounts()
    store = stores.open(sinks=[sink])
    fill(store, draft, 101)  # over several log files
    assert sink.counts == {}
    drain(store)
    assert sink.counts == {"A": 51, "B": 50}


def test_start_dispatches_the_records_that_a_sink_lacks(stores, draft, drain):
    store = stores.open()
    fill(store, draft, 101)
    drain(store)
    store.close()
    sink = TopicCounts()
    stores.open(sinks=[sink])
    assert sink.counts == {"A": 51, "B": 50}


def test_truncate_to_rewinds_sinks(stores, draft, drain):
    sink = TopicCounts()
    store = stores.open(sinks=[sink])
    fill(store, draft, 20)
    cut = store.positions.written
    fill(store, draft, 20)
    drain(store)
    store.truncate_to(cut, discard_confirmed=True)
    assert sink.counts == {"A": 10, "B": 10}


def test_failing_sink_refuses_appends_until_it_succeeds(stores, draft, drain, clock, read_all):
    sink = TopicCounts()
    store = stores.open(sinks=[sink])
    sink.fails = True
    store.append(draft())
    store.advance()
    assert "No space left on device" in (store.write_refusal or "")
    assert read_all(store) == []  # a message is readable once all sinks have it
    sink.fails = False
    clock.advance(ms=1000)
    drain(store)
    assert store.write_refusal is None
    assert sink.counts == {"Topic": 1}
    assert len(read_all(store)) == 1
