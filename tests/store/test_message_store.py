"""One store through its face: append, dispatch, read, confirm."""

from __future__ import annotations

import errno
import shutil

import pytest

from store.disk.retired import RemoveTreeJob
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.record import RecordDraft, decode_record, encode_record
from store.message.runs import Runs
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from store.message.tags import tags_code
from store.message_store import AppendResult, GetMessageStatus
from store.reading.message_filter import TagFilter
from store.store_errors import MessageInvalid, StoreError
from tests.eventually import eventually

HOST = b"\x7f\x00\x00\x01\x00\x00\x1f\x90"


def test_what_is_appended_is_read_back_in_order_and_by_queue(stores, draft, read_all, drain):
    store = stores.open()
    for number in range(100):
        store.append(draft(b"%d" % number, queue_id=number % 3))
    drain(store)
    for queue_id in range(3):
        messages = read_all(store, "Topic", queue_id)
        assert [message.body for message in messages] == [b"%d" % n for n in range(queue_id, 100, 3)]
        assert [message.queue_offset for message in messages] == list(range(len(messages)))


def test_an_append_tells_where_the_message_went(stores, draft, clock):
    store = stores.open()
    first = store.append(draft())
    clock.advance(ms=5)
    second = store.append(draft())
    assert first == AppendResult(0, 0, 91 + 4 + 5, clock.wall_ms() - 5, 1)
    assert (second.physical_offset, second.queue_offset) == (first.size_bytes, 1)


def test_the_stored_time_never_goes_back(stores, draft, clock):
    store = stores.open()
    before = store.append(draft()).store_timestamp
    clock.set_wall_ms(before - 3_600_000)
    assert store.append(draft()).store_timestamp == before


def test_a_record_that_does_not_fit_goes_to_the_next_file_behind_a_blank(stores, draft, read_all, drain):
    store = stores.open()
    results = [store.append(draft(b"x" * 3000)) for _ in range(3)]
    assert results[2].physical_offset == 8192
    blank = (store.root / "commitlog" / f"{0:020d}").read_bytes()[2 * results[0].size_bytes :]
    assert blank[:8] == (8192 - 2 * results[0].size_bytes).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    drain(store)
    assert len(read_all(store)) == 3


def test_eight_bytes_always_remain_for_the_blank(stores, draft):
    store = stores.open()
    room = 8192 - 8 - (91 + 5)
    assert store.append(draft(b"x" * room)).physical_offset == 0
    assert store.append(draft()).physical_offset == 8192
    with pytest.raises(StoreError, match="do not fit into a log file of 8,192 bytes"):
        store.append(draft(b"x" * (room + 1)))


def test_a_batch_is_stored_whole_with_consecutive_offsets(stores, read_all, drain):
    store = stores.open()
    batch = encode_batch([Message("Topic", b"%d" % n, keys=f"k{n}") for n in range(20)])
    result = store.append_batch(RecordDraft("Topic", 2, b"", born_host=HOST), batch)
    drain(store)
    messages = read_all(store, "Topic", 2)
    assert result.count == 20
    assert [message.commit_log_offset for message in messages] == result.physical_offsets
    assert [message.body for message in messages] == [b"%d" % n for n in range(20)]


def test_a_damaged_batch_changes_nothing(stores, draft):
    store = stores.open()
    store.append(draft())
    written = store.positions.written
    batch = encode_batch([Message("Topic", b"one"), Message("Topic", b"two")])
    with pytest.raises(MessageInvalid):
        store.append_batch(RecordDraft("Topic", 0, b""), batch[:-1])
    assert store.positions.written == written
    assert store.append(draft()).queue_offset == 1


def test_records_built_by_a_client_are_stamped_and_stored(stores, draft, read_all, drain, clock):
    store = stores.open()
    store.append(draft())
    records = bytearray(b"".join(encode_record(draft(b"%d" % n), 0, 0, 0, bytes(8)) for n in range(10)))
    result = store.append_records("Topic", 0, records, HOST)
    assert (result.queue_offset, result.count) == (1, 10)
    drain(store)
    messages = read_all(store)[1:]
    assert [message.body for message in messages] == [b"%d" % n for n in range(10)]
    assert {message.store_timestamp for message in messages} == {clock.wall_ms()}
    assert str(messages[0].born_host) == "127.0.0.1:8080"


def test_records_of_another_queue_are_refused_whole(stores, draft):
    store = stores.open()
    records = bytearray(
        encode_record(draft(), 0, 0, 0, bytes(8)) + encode_record(draft(queue_id=1), 0, 0, 0, bytes(8))
    )
    with pytest.raises(MessageInvalid, match="not of queue 0"):
        store.append_records("Topic", 0, records, HOST)
    assert store.positions.written == 0


def test_a_message_over_the_limit_is_refused_with_the_limit(stores, draft):
    store = stores.open(max_message_bytes=100, commit_log_file_bytes=1 << 20)
    with pytest.raises(MessageInvalid, match="max_message_bytes 100"):
        store.append(draft(b"x" * 70_000))


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, GetMessageStatus.FOUND, 3),
        (3, GetMessageStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_reads_answer_with_rocketmqs_statuses(stores, draft, drain, offset, status, following):
    store = stores.open()
    for _ in range(3):
        store.append(draft())
    drain(store)
    result = store.get_message("Topic", 0, offset, 32, 1 << 20)
    assert (result.status, result.next_begin_offset, result.max_offset) == (status, following, 3)


def test_queues_without_messages_have_statuses_of_their_own(stores, draft):
    store = stores.open()
    assert store.get_message("Topic", 0, 0, 1, 1).status == GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    store.append(draft())  # not dispatched yet
    assert store.get_message("Topic", 0, 0, 1, 1).status == GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_a_read_is_bounded_by_messages_and_bytes_but_gives_one(stores, draft, drain):
    store = stores.open()
    [size] = {store.append(draft(b"x" * 100)).size_bytes for _ in range(10)}
    drain(store)
    assert store.get_message("Topic", 0, 0, 4, 1 << 20).message_count == 4
    result = store.get_message("Topic", 0, 0, 32, 3 * size)
    assert (result.message_count, result.size_bytes, result.next_begin_offset) == (3, 3 * size, 3)
    assert store.get_message("Topic", 0, 0, 32, 1).message_count == 1


def test_neighbours_in_the_log_come_as_one_slice(stores, draft, drain):
    store = stores.open()
    for _ in range(5):
        store.append(draft())
    drain(store)
    assert len(store.get_message("Topic", 0, 0, 32, 1 << 20).slices) == 1


def test_tags_filter_by_their_hash_and_skip_what_does_not_match(stores, draft, read_all, drain):
    store = stores.open()
    for number in range(30):
        store.append(draft(b"%d" % number, tags="标签" if number % 3 else "B"))
    drain(store)
    assert [message.body for message in read_all(store, wanted=TagFilter(["B"]))] == [
        b"%d" % n for n in range(0, 30, 3)
    ]
    nothing = store.get_message("Topic", 0, 0, 32, 1 << 20, TagFilter(["C"]))
    assert nothing.status == GetMessageStatus.NO_MATCHED_MESSAGE
    assert nothing.next_begin_offset > 0


def test_advance_returns_which_awaited_queues_got_messages(stores, draft):
    store = stores.open()
    store.await_messages({("Topic", 0), ("Topic", 2), ("Other", 3)})
    store.append(draft(tags="A"))
    store.append(draft(tags="B"))
    store.append(draft(queue_id=1))  # not awaited
    store.append(draft(topic="Other", queue_id=3))
    arrivals = {(a.topic, a.queue_id): (a.max_offset, a.tags_codes) for a in store.advance()}
    assert arrivals == {
        ("Topic", 0): (2, frozenset({tags_code("A"), tags_code("B")})),
        ("Other", 3): (1, frozenset({0})),
    }
    assert store.advance() == []


def test_a_large_append_is_dispatched_in_slices(stores, draft, read_all):
    store = stores.open(dispatch_slice_bytes=4096, commit_log_file_bytes=1 << 16)
    for number in range(200):
        store.append(draft(b"%d" % number))
    store.append(draft(b"y" * 9000))  # larger than a slice
    turns = 0
    while store.has_more_to_dispatch:
        store.advance()
        turns += 1
    assert turns > 3
    assert len(read_all(store)) == 201


def test_under_sync_flush_nothing_is_readable_before_it_is_flushed(stores, draft):
    store = stores.open(flush="sync")
    told = []
    result = store.append(draft())
    store.on_confirmed(result.size_bytes, told.append)
    assert store.advance() == []
    assert (store.max_offset("Topic", 0), told) == (0, [])
    job = store.flush_job()
    assert job is not None
    assert store.flush_job() is None  # one at a time
    job.run()
    store.flush_done(job)
    store.advance()
    assert (store.max_offset("Topic", 0), told) == (1, [None])


def test_a_failed_flush_is_final(stores, draft):
    store = stores.open(flush="sync")
    told = []
    store.on_confirmed(store.append(draft()).size_bytes, told.append)
    job = store.flush_job()
    store.flush_failed(job, OSError(5, "Input/output error"))
    assert isinstance(told[0], StoreError)
    assert "Input/output error" in store.write_refusal
    with pytest.raises(StoreError, match="Input/output error"):
        store.append(draft())
    assert store.flush_job() is None
    store.on_confirmed(10**9, told.append)
    assert isinstance(told[1], StoreError)
    store.close()
    assert (store.root / "abort").exists()


def test_keys_are_found_by_their_real_name(stores, draft, drain):
    store = stores.open()
    store.append(draft(b"1", keys="Aa one", uniq="U1"))
    store.append(draft(b"2", keys="BB", uniq="U2"))  # "Aa" and "BB" have the same hash
    store.append(draft(b"3", keys="ключ 🚀", topic="Other"))
    drain(store)

    def bodies(topic, key, **more):
        return [decode_record(record).body for record in store.query_by_key(topic, key, **more)]

    assert bodies("Topic", "Aa") == [b"1"]
    assert bodies("Topic", "BB") == [b"2"]
    assert bodies("Topic", "U2") == [b"2"]
    assert bodies("Other", "🚀") == [b"3"]
    assert bodies("Other", "Aa") == []
    assert bodies("Topic", "U1") == [b"1"]
    assert bodies("Topic", "U3") == []


def test_keys_are_found_over_many_index_files_and_within_times(stores, draft, drain, clock):
    store = stores.open()
    stored = []
    for number in range(200):  # 64 entries a file
        stored.append(store.append(draft(b"%d" % number, keys=f"k{number % 10}")))
        clock.advance(ms=1000)
    drain(store)
    assert len(list((store.root / "index").iterdir())) == 4
    assert len(store.query_by_key("Topic", "k3")) == 20
    assert [decode_record(r).body for r in store.query_by_key("Topic", "k3", max_messages=2)] == [
        b"183",
        b"193",
    ]
    found = store.query_by_key(
        "Topic", "k3", begin_ms=stored[13].store_timestamp, end_ms=stored[33].store_timestamp
    )
    assert [decode_record(record).body for record in found] == [b"13", b"23", b"33"]


def test_offsets_are_found_by_time(stores, draft, drain, clock):
    store = stores.open()
    start = clock.wall_ms()
    for _ in range(5):  # stored at 0, 0, 10, 10, 20 …
        store.append(draft())
        store.append(draft())
        clock.advance(ms=10)
    drain(store)
    lower = [store.offset_by_timestamp("Topic", 0, start + ms) for ms in (-5, 0, 5, 10, 40, 45)]
    upper = [store.offset_by_timestamp("Topic", 0, start + ms, upper=True) for ms in (-5, 0, 5, 10, 40, 45)]
    assert lower == [0, 0, 2, 2, 8, 10]
    assert upper == [0, 1, 1, 3, 9, 9]
    assert store.offset_by_timestamp("Unknown", 0, start) == 0


def test_transactions_stand_in_no_queue_until_they_are_committed(stores, draft, read_all, drain):
    store = stores.open()
    store.append(draft(b"plain"))
    prepared = store.append(draft(b"prepared", sys_flag=TRANSACTION_PREPARED, keys="p"))
    store.append(draft(b"rolled back", sys_flag=TRANSACTION_ROLLBACK, keys="r"))
    store.append(draft(b"committed", sys_flag=TRANSACTION_COMMIT, keys="c"))
    drain(store)
    assert prepared.queue_offset == 0
    assert [message.body for message in read_all(store)] == [b"plain", b"committed"]
    assert [len(store.query_by_key("Topic", key)) for key in "prc"] == [1, 0, 1]


def test_scheduled_messages_have_their_delivery_time_as_tags_code(stores, draft):
    store = stores.open()
    store.await_messages({("SCHEDULE_TOPIC_XXXX", 2)})
    scheduled = draft(topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
    scheduled.properties = b"DELAY\x013\x02TAGS\x01A\x02"
    result = store.append(scheduled)
    [arrival] = store.advance()
    assert arrival.tags_codes == {result.store_timestamp + 10_000}


def test_a_record_is_given_only_where_one_stands(stores, draft, drain):
    store = stores.open(flush="sync")
    first = store.append(draft(b"one"))
    second = store.append(draft(b"two"))
    with pytest.raises(StoreError, match="beyond the confirmed"):
        store.record_at(0)
    drain(store)
    assert decode_record(store.record_at(second.physical_offset)).body == b"two"
    for offset in (-1, 1, first.size_bytes + 1, 10**6):
        with pytest.raises(StoreError):
            store.record_at(offset)


def test_raw_bytes_make_the_same_store(stores, draft, read_all, drain):
    source, copy = stores.open("source"), stores.open("copy")
    for number in range(150):
        source.append(draft(b"%d" % number, keys=f"k{number}", queue_id=number % 2))
    drain(source)
    log = b"".join(path.read_bytes() for path in sorted((source.root / "commitlog").iterdir()))
    log = log[: source.positions.written]
    for start in range(0, len(log), 777):  # not at records' borders
        copy.append_raw(start, log[start : start + 777])
        drain(copy)
    assert stores.files(source.root) == stores.files(copy.root)
    with pytest.raises(StoreError, match="the log ends at"):
        copy.append_raw(5, b"late")
    assert source.append(draft(queue_id=1)).queue_offset == copy.append(draft(queue_id=1)).queue_offset == 75


def test_a_truncation_takes_back_everything_derived(stores, draft, read_all, drain):
    store, twin = stores.open("store"), stores.open("twin")
    cut = 0
    for number in range(150):
        result = store.append(draft(b"%d" % number, keys=f"k{number}", queue_id=number % 2))
        if number < 90:
            twin.append(draft(b"%d" % number, keys=f"k{number}", queue_id=number % 2))
        if number == 90:
            cut = result.physical_offset
    drain(store)
    drain(twin)
    store.truncate_to(cut)
    assert store.append(draft(b"again", keys="k", queue_id=1)).queue_offset == 45
    twin.append(draft(b"again", keys="k", queue_id=1))
    drain(store)
    drain(twin)
    assert stores.files(store.root) == stores.files(twin.root)


def test_a_deleted_topic_starts_anew(stores, draft, read_all, drain):
    store = stores.open()
    store.append(draft(b"old"))
    store.append(draft(topic="Other"))
    drain(store)
    assert store.delete_topic("Topic") == 1
    assert not (store.root / "consumequeue" / "Topic").exists()
    assert store.append(draft(b"new")).queue_offset == 0
    drain(store)
    store.close()
    for lost in (None, "raymq.derived"):
        if lost is not None:
            (store.root / lost).unlink()
        again = stores.open()
        assert [message.body for message in read_all(again)] == [b"new"]
        again.close()


def test_a_topic_that_goes_in_the_background_is_gone_for_good_when_that_is_told(
    stores, draft, drain, monkeypatch
):
    monkeypatch.setattr(RemoveTreeJob, "run", lambda _: None)  # a kill comes before it
    store = stores.open()
    for topic in ("Topic", "Other"):
        store.append(draft(topic=topic))
    drain(store)
    told = []
    assert store.forget_topic("Topic", told.append) == 1
    assert [topic for topic, _ in store.queues()] == ["Other"]
    before = stores.kill(store, "before").name
    store.advance()
    store.finish_background()
    assert told == [None]
    after = stores.kill(store, "after").name
    assert [topic for topic, _ in stores.open(after).queues()] == ["Other"]
    # A kill before that may bring it back from the log, but no other one is hurt, and nothing is left over.
    monkeypatch.undo()
    again = stores.open(before)
    assert ("Other", 0) in list(again.queues())
    again.finish_background()
    assert not list(again.root.glob("removed-*"))


def test_who_waits_for_a_topic_to_go_is_told_when_the_store_ends_first(stores, draft, drain):
    store = stores.open()
    store.append(draft())
    drain(store)
    told = []
    store.forget_topic("Topic", told.append)
    store.append(draft())
    store.flush_failed(store.flush_job(), OSError(errno.EIO, "the disk has gone"))
    store.forget_topic("Topic", told.append)
    assert len(told) == 2
    assert all("the disk has gone" in str(error) for error in told)


def test_what_is_appended_to_an_awaited_queue_is_noted(stores, draft):
    store = stores.open()
    awaited = {("Topic", 1)}
    store.await_messages(awaited)
    store.append(draft(b"nobody waits"))
    assert store.positions.awaited == 0
    store.append(draft(b"somebody waits", queue_id=1))
    end = store.positions.written
    assert store.positions.awaited == end
    awaited.clear()
    store.append(draft(b"no more", queue_id=1))
    assert store.positions.awaited == end


def test_what_is_appended_by_runs_to_an_awaited_queue_is_noted(stores, draft):
    store = stores.open()
    store.await_messages({("Topic", 3)})

    def append(*queue_ids: int) -> None:
        records = [encode_record(draft(b"x", queue_id=queue_id), 0, 0, 0, bytes(8)) for queue_id in queue_ids]
        together = memoryview(bytearray(b"".join(records)))
        store.append_runs("Topic", Runs(queue_ids, [1] * len(records), [*map(len, records)], together), HOST)

    append(1, 2)
    assert store.positions.awaited == 0
    append(2, 3, 4)
    assert store.positions.awaited == store.positions.written


def test_a_topic_that_goes_while_queues_are_noted_keeps_the_notes_going(stores, draft, drain, clock):
    store = stores.open()
    for queue_id in range(250):
        store.append(draft(queue_id=queue_id))
    store.append(draft(topic="Doomed"))
    drain(store)
    clock.advance(store.settings.checkpoint_interval_ms)
    store.advance()  # begins to note 100 queues
    assert not store.has_more_to_do  # nobody waits for this one
    told = []
    store.forget_topic("Doomed", told.append)
    assert store.has_more_to_do
    while store.has_more_to_do:
        store.advance()
    store.finish_background()

    def is_told() -> list:
        store.advance()
        store.finish_background()
        return told

    assert eventually(is_told, "the end of the topic") == [None]


def test_an_offset_is_given_once_though_dispatch_is_behind(stores, draft, drain, read_all):
    store = stores.open(dispatch_slice_bytes=4096)
    given = [store.append(draft(b"x" * 1000)).queue_offset for _ in range(6)]
    store.advance()  # a part of them
    assert store.max_offset("Topic", 0) < 6
    given.append(store.append(draft(b"last")).queue_offset)
    drain(store)
    assert given == [message.queue_offset for message in read_all(store)] == list(range(7))


def test_a_topic_made_again_begins_anew_where_one_slice_has_both(stores, draft, drain, read_all):
    store = stores.open()
    for number in range(9):
        store.append(draft(b"old %d" % number))
    drain(store)
    store.delete_topic("Topic")
    for number in range(5):
        store.append(draft(b"new %d" % number))
    drain(store)
    store.close()
    shutil.rmtree(store.root / "consumequeue")
    (store.root / "raymq.derived").unlink()
    again = stores.open()
    assert [message.body for message in read_all(again)] == [b"new %d" % number for number in range(5)]
    assert again.max_offset("Topic", 0) == 5
