"""MessageStore through its public interface: append, dispatch, read, confirm."""

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


def test_appended_messages_are_read_back_in_order_by_queue(stores, draft, read_all, drain):
    store = stores.open()
    for number in range(100):
        store.append(draft(b"%d" % number, queue_id=number % 3))
    drain(store)
    for queue_id in range(3):
        messages = read_all(store, "Topic", queue_id)
        assert [message.body for message in messages] == [b"%d" % n for n in range(queue_id, 100, 3)]
        assert [message.queue_offset for message in messages] == list(range(len(messages)))


def test_append_returns_position_and_queue_offset(stores, draft, clock):
    store = stores.open()
    first = store.append(draft())
    clock.advance(ms=5)
    second = store.append(draft())
    assert first == AppendResult(0, 0, 91 + 4 + 5, clock.wall_ms() - 5, 1)
    assert (second.physical_offset, second.queue_offset) == (first.size_bytes, 1)


def test_store_timestamp_never_decreases(stores, draft, clock):
    store = stores.open()
    before = store.append(draft()).store_timestamp
    clock.set_wall_ms(before - 3_600_000)
    assert store.append(draft()).store_timestamp == before


def test_record_that_does_not_fit_goes_to_the_next_file_after_a_blank(stores, draft, read_all, drain):
    store = stores.open()
    results = [store.append(draft(b"x" * 3000)) for _ in range(3)]
    assert results[2].physical_offset == 8192
    blank = (store.root / "commitlog" / f"{0:020d}").read_bytes()[2 * results[0].size_bytes :]
    assert blank[:8] == (8192 - 2 * results[0].size_bytes).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
    drain(store)
    assert len(read_all(store)) == 3


def test_log_file_always_keeps_eight_bytes_for_the_blank(stores, draft):
    store = stores.open()
    room = 8192 - 8 - (91 + 5)
    assert store.append(draft(b"x" * room)).physical_offset == 0
    assert store.append(draft()).physical_offset == 8192
    with pytest.raises(StoreError, match="do not fit into a log file of 8,192 bytes"):
        store.append(draft(b"x" * (room + 1)))


def test_batch_is_stored_with_consecutive_offsets(stores, read_all, drain):
    store = stores.open()
    batch = encode_batch([Message("Topic", b"%d" % n, keys=f"k{n}") for n in range(20)])
    result = store.append_batch(RecordDraft("Topic", 2, b"", born_host=HOST), batch)
    drain(store)
    messages = read_all(store, "Topic", 2)
    assert result.count == 20
    assert [message.commit_log_offset for message in messages] == result.physical_offsets
    assert [message.body for message in messages] == [b"%d" % n for n in range(20)]


def test_damaged_batch_is_refused_and_changes_nothing(stores, draft):
    store = stores.open()
    store.append(draft())
    written = store.positions.written
    batch = encode_batch([Message("Topic", b"one"), Message("Topic", b"two")])
    with pytest.raises(MessageInvalid):
        store.append_batch(RecordDraft("Topic", 0, b""), batch[:-1])
    assert store.positions.written == written
    assert store.append(draft()).queue_offset == 1


def test_append_runs_fills_in_fields_and_stores_client_records(stores, draft, read_all, drain, clock):
    store = stores.open()
    store.append(draft())
    records = bytearray(b"".join(encode_record(draft(b"%d" % n), 0, 0, 0, bytes(8)) for n in range(10)))
    result = store.append_runs("Topic", Runs([0], [10], [len(records)], memoryview(records)), HOST)
    assert (result.queue_offset, result.count) == (1, 10)
    drain(store)
    messages = read_all(store)[1:]
    assert [message.body for message in messages] == [b"%d" % n for n in range(10)]
    assert {message.store_timestamp for message in messages} == {clock.wall_ms()}
    assert str(messages[0].born_host) == "127.0.0.1:8080"


def test_append_runs_refuses_all_if_one_record_is_of_another_queue(stores, draft):
    store = stores.open()
    records = bytearray(
        encode_record(draft(), 0, 0, 0, bytes(8)) + encode_record(draft(queue_id=1), 0, 0, 0, bytes(8))
    )
    with pytest.raises(MessageInvalid, match="not of queue 0"):
        store.append_runs("Topic", Runs([0], [2], [len(records)], memoryview(records)), HOST)
    assert store.positions.written == 0


def test_too_large_message_error_names_the_limit(stores, draft):
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
def test_get_message_returns_rocketmq_statuses(stores, draft, drain, offset, status, following):
    store = stores.open()
    for _ in range(3):
        store.append(draft())
    drain(store)
    result = store.get_message("Topic", 0, offset, 32, 1 << 20)
    assert (result.status, result.next_begin_offset, result.max_offset) == (status, following, 3)


def test_get_message_statuses_for_queues_without_messages(stores, draft):
    store = stores.open()
    assert store.get_message("Topic", 0, 0, 1, 1).status == GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
    store.append(draft())  # not dispatched yet
    assert store.get_message("Topic", 0, 0, 1, 1).status == GetMessageStatus.NO_MESSAGE_IN_QUEUE


def test_get_message_respects_limits_but_returns_at_least_one(stores, draft, drain):
    store = stores.open()
    [size] = {store.append(draft(b"x" * 100)).size_bytes for _ in range(10)}
    drain(store)
    assert store.get_message("Topic", 0, 0, 4, 1 << 20).message_count == 4
    result = store.get_message("Topic", 0, 0, 32, 3 * size)
    assert (result.message_count, result.size_bytes, result.next_begin_offset) == (3, 3 * size, 3)
    assert store.get_message("Topic", 0, 0, 32, 1).message_count == 1


def test_get_message_joins_adjacent_records_into_one_slice(stores, draft, drain):
    store = stores.open()
    for _ in range(5):
        store.append(draft())
    drain(store)
    assert len(store.get_message("Topic", 0, 0, 32, 1 << 20).slices) == 1


def test_tag_filter_skips_messages_of_other_tags(stores, draft, read_all, drain):
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


def test_advance_returns_awaited_queues_with_new_messages(stores, draft):
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


def test_large_append_is_dispatched_in_slices(stores, draft, read_all):
    store = stores.open(dispatch_slice_bytes=4096, commit_log_file_bytes=1 << 16)
    for number in range(200):
        store.append(draft(b"%d" % number))
    store.append(draft(b"y" * 9000))  # larger than a slice
    store.confirm()
    turns = 0
    while store.has_more_to_dispatch:
        store.advance()
        turns += 1
    assert turns > 3
    assert len(read_all(store)) == 201


def test_sync_flush_makes_messages_readable_only_after_the_flush(stores, draft):
    store = stores.open(flush="sync")
    results = []
    result = store.append(draft())
    store.on_confirmed(result.size_bytes, results.append)
    assert store.advance() == []
    assert (store.max_offset("Topic", 0), results) == (0, [])
    job = store.flush_job()
    assert job is not None
    assert store.flush_job() is None  # one at a time
    job.run()
    store.flush_done(job)
    store.advance()
    assert (store.max_offset("Topic", 0), results) == (1, [None])


def test_failed_flush_makes_the_store_read_only(stores, draft):
    store = stores.open(flush="sync")
    results = []
    store.on_confirmed(store.append(draft()).size_bytes, results.append)
    job = store.flush_job()
    store.flush_failed(job, OSError(5, "Input/output error"))
    assert isinstance(results[0], StoreError)
    assert "Input/output error" in store.write_refusal
    with pytest.raises(StoreError, match="Input/output error"):
        store.append(draft())
    assert store.flush_job() is None
    store.on_confirmed(10**9, results.append)
    assert isinstance(results[1], StoreError)
    store.close()
    assert (store.root / "abort").exists()


def test_query_by_key_compares_the_real_key(stores, draft, drain):
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


def test_query_by_key_searches_all_index_files_within_the_time_range(stores, draft, drain, clock):
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


def test_offset_by_timestamp_returns_lower_and_upper_bounds(stores, draft, drain, clock):
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


def test_only_committed_transactions_are_in_the_queue(stores, draft, read_all, drain):
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


def test_record_at_refuses_offsets_without_a_record(stores, draft, drain):
    store = stores.open(flush="sync")
    first = store.append(draft(b"one"))
    second = store.append(draft(b"two"))
    with pytest.raises(StoreError, match="is not confirmed yet"):
        store.record_at(0)
    drain(store)
    assert decode_record(store.record_at(second.physical_offset)).body == b"two"
    for offset in (-1, 1, first.size_bytes + 1, 10**6):
        with pytest.raises(StoreError):
            store.record_at(offset)


def test_append_raw_produces_an_identical_store(stores, draft, read_all, drain):
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


def test_truncate_to_removes_all_derived_data(stores, draft, read_all, drain):
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
    store.truncate_to(cut, discard_confirmed=True)
    assert store.append(draft(b"again", keys="k", queue_id=1)).queue_offset == 45
    twin.append(draft(b"again", keys="k", queue_id=1))
    drain(store)
    drain(twin)
    assert stores.files(store.root) == stores.files(twin.root)


def test_deleted_topic_starts_at_offset_zero_again(stores, draft, read_all, drain):
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


def test_forget_topic_deletion_is_durable_when_the_callback_is_called(stores, draft, drain, monkeypatch):
    monkeypatch.setattr(RemoveTreeJob, "run", lambda _: None)  # a kill comes before the files are deleted
    store = stores.open()
    for topic in ("Topic", "Other"):
        store.append(draft(topic=topic))
    drain(store)
    results = []
    assert store.forget_topic("Topic", results.append) == 1
    assert [topic for topic, _ in store.queues()] == ["Other"]
    before = stores.kill(store, "before").name
    store.advance()
    store.finish_background()
    assert results == [None]
    after = stores.kill(store, "after").name
    assert [topic for topic, _ in stores.open(after).queues()] == ["Other"]
    # After a kill before the callback, the topic may be rebuilt from the log. Other topics are not affected,
    # and no removed files are left.
    monkeypatch.undo()
    again = stores.open(before)
    assert ("Other", 0) in list(again.queues())
    again.finish_background()
    assert not list(again.root.glob("removed-*"))


def test_forget_topic_callback_receives_the_error_of_a_failed_store(stores, draft, drain):
    store = stores.open()
    store.append(draft())
    drain(store)
    results = []
    store.forget_topic("Topic", results.append)
    store.append(draft())
    store.flush_failed(store.flush_job(), OSError(errno.EIO, "the disk is gone"))
    store.forget_topic("Topic", results.append)
    assert len(results) == 2
    assert all("the disk is gone" in str(error) for error in results)


def test_append_to_an_awaited_queue_updates_positions_awaited(stores, draft):
    store = stores.open()
    awaited = {("Topic", 1)}
    store.await_messages(awaited)
    store.append(draft(b"not awaited"))
    assert store.positions.awaited == 0
    store.append(draft(b"awaited", queue_id=1))
    end = store.positions.written
    assert store.positions.awaited == end
    awaited.clear()
    store.append(draft(b"no longer awaited", queue_id=1))
    assert store.positions.awaited == end


def test_append_runs_to_an_awaited_queue_updates_positions_awaited(stores, draft):
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


def test_forget_topic_during_a_checkpoint_completes(stores, draft, drain, clock):
    store = stores.open()
    for queue_id in range(250):
        store.append(draft(queue_id=queue_id))
    store.append(draft(topic="Doomed"))
    drain(store)
    clock.advance(store.settings.checkpoint_interval_ms)
    store.advance()  # begins a checkpoint with the first 100 queues
    assert not store.has_more_to_do  # this checkpoint was not requested
    results = []
    store.forget_topic("Doomed", results.append)
    assert store.has_more_to_do
    while store.has_more_to_do:
        store.advance()
    store.finish_background()

    def callback_results() -> list:
        store.advance()
        store.finish_background()
        return results

    assert eventually(callback_results, "the deletion of the topic") == [None]


def test_queue_offsets_are_unique_while_dispatch_is_behind(stores, draft, drain, read_all):
    store = stores.open(dispatch_slice_bytes=4096)
    given = [store.append(draft(b"x" * 1000)).queue_offset for _ in range(6)]
    store.advance()  # dispatches only some of them
    assert store.max_offset("Topic", 0) < 6
    given.append(store.append(draft(b"last")).queue_offset)
    drain(store)
    assert given == [message.queue_offset for message in read_all(store)] == list(range(7))


def test_recreated_topic_has_only_new_messages_after_a_rebuild(stores, draft, drain, read_all):
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
