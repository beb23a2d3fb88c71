"""SQL92 filters on the records of a store: where properties are found, and how far a read scans."""

from __future__ import annotations

import pytest

from store.message.hosts import V6_BYTES
from store.message.properties import encode_properties
from store.message.record import MAX_V1_TOPIC_BYTES, RecordDraft, decode_records, encode_record
from store.message_store import GetMessageStatus
from store.reading.sql_filter import SqlFilter
from tests.store.cold_disk import make_cold, settled

SCANNED_UNITS = 800
SCANNED_BYTES = 4 << 20


def bodies(found) -> list[int]:
    return [int(message.body) for part in found.slices for message in decode_records(part)]


@pytest.fixture
def numbered(stores, drain):
    """Give a store with 2,000 messages whose property `a` is their number."""
    store = stores.open(consume_queue_file_bytes=60_000)
    for number in range(2000):
        properties = {"a": str(number), "region": "xyz"[number % 3], "TAGS": f"tag{number}"}
        store.append(RecordDraft("Topic", 0, b"%d" % number, encode_properties(properties)))
    drain(store)
    return store


def test_read_returns_the_matching_messages(numbered, read_all):
    messages = read_all(numbered, wanted=SqlFilter("a > 10 AND region IN ('x','y')"))
    assert [int(message.body) for message in messages] == [n for n in range(11, 2000) if n % 3 < 2]


def test_read_resumes_after_the_last_returned_message(numbered):
    wanted = SqlFilter("region = 'x'")
    first = numbered.get_message("Topic", 0, 0, 4, 1 << 20, wanted)
    assert (bodies(first), first.next_begin_offset) == ([0, 3, 6, 9], 10)
    assert bodies(numbered.get_message("Topic", 0, 10, 2, 1 << 20, wanted)) == [12, 15]


def test_adjacent_matching_messages_share_a_slice(numbered):
    found = numbered.get_message("Topic", 0, 0, 3, 1 << 20, SqlFilter("region <> 'x'"))
    assert bodies(found) == [1, 2, 4]
    assert len(found.slices) == 2
    assert found.size_bytes == sum(map(len, found.slices))


def test_filter_without_a_match_scans_a_limited_number_of_messages(numbered):
    wanted = SqlFilter("a < 0")
    for offset, following in ((0, SCANNED_UNITS), (1900, 2000)):
        found = numbered.get_message("Topic", 0, offset, 1 << 20, 1 << 20, wanted)
        assert (found.status, found.message_count) == (GetMessageStatus.NO_MATCHED_MESSAGE, 0)
        assert found.next_begin_offset == following


def test_filter_without_a_match_scans_a_limited_number_of_bytes(stores, drain):
    store = stores.open(commit_log_file_bytes=16 << 20)
    for _ in range(12):
        store.append(RecordDraft("Topic", 0, bytes(1 << 20)))
    drain(store)
    found = store.get_message("Topic", 0, 0, 32, 256 << 10, SqlFilter("a = 1"))
    assert found.status == GetMessageStatus.NO_MATCHED_MESSAGE
    assert found.next_begin_offset == SCANNED_BYTES >> 20


class SlowFilter(SqlFilter):
    """A filter whose evaluation takes 2 ms for each message."""

    def __init__(self, expression, clock):
        super().__init__(expression)
        self.clock = clock
        self.examined = 0

    def matches(self, record):
        self.clock.advance(ms=2)
        self.examined += 1
        return super().matches(record)


@pytest.mark.parametrize(("expression", "wanted"), [("a < 0", 0), ("region <> 'x'", 66), ("a >= 0", 100)])
def test_read_stops_when_its_time_is_used_up(stores, clock, drain, expression, wanted):
    store = stores.open()
    for number in range(100):
        properties = encode_properties({"a": str(number), "region": "xyz"[number % 3]})
        store.append(RecordDraft("Topic", 0, b"%d" % number, properties))
    drain(store)
    slow, offset, found_bodies, reads = SlowFilter(expression, clock), 0, [], 0
    while offset < 100:
        found = store.get_message("Topic", 0, offset, 1 << 20, 1 << 20, slow)
        assert offset < found.next_begin_offset <= offset + 3
        assert found.message_count == len(bodies(found))
        assert found.size_bytes == sum(map(len, found.slices))
        found_bodies += bodies(found)
        offset, reads = found.next_begin_offset, reads + 1
    assert (len(found_bodies), slow.examined) == (wanted, 100)
    assert reads >= 100 / 3
    assert found_bodies == sorted(set(found_bodies))


def test_message_whose_evaluation_fails_does_not_match(stores, drain, read_all):
    store = stores.open()
    for value in ("eleven", "11", "1_1", "999999999999"):
        properties = encode_properties({"a": value})
        store.append(RecordDraft("Topic", 0, value.encode(), properties))
    drain(store)
    assert [message.body for message in read_all(store, wanted=SqlFilter("a > 10"))] == [b"11"]


def test_filter_reads_a_cold_store_and_keeps_its_progress(numbered, monkeypatch):
    disk = make_cold(numbered, monkeypatch)
    wanted, offset, found_bodies = SqlFilter("region = 'z' AND a >= 700"), 0, []
    while offset < 2000:
        found = settled(disk, lambda at=offset: numbered.get_message("Topic", 0, at, 32, 1 << 20, wanted))
        found_bodies += bodies(found)
        assert found.next_begin_offset > offset
        offset = found.next_begin_offset
    assert found_bodies == [number for number in range(700, 2000) if number % 3 == 2]


@pytest.mark.parametrize("topic", ["T", "t" * (MAX_V1_TOPIC_BYTES + 1), "t" * 300])
@pytest.mark.parametrize("host_bytes", [8, V6_BYTES])
@pytest.mark.parametrize("append_crc", [False, True])
def test_filter_finds_the_properties_in_every_record_format(topic, host_bytes, append_crc):
    draft = RecordDraft(
        topic, 0, b"body\x02a\x011\x02", encode_properties({"b": "1", "a": "2"}), born_host=bytes(host_bytes)
    )
    record = memoryview(encode_record(draft, 5, 100, 0, bytes(host_bytes), append_crc=append_crc))
    assert SqlFilter("a = 2 AND b = 1").matches(record)
    assert not SqlFilter("a = 1").matches(record)


def test_record_without_properties_matches_nulls():
    record = memoryview(encode_record(RecordDraft("T", 0, b""), 0, 0, 0, bytes(8)))
    assert SqlFilter("a IS NULL").matches(record)
    assert not SqlFilter("a = 1").matches(record)


def test_filters_are_equal_if_their_expressions_are():
    assert SqlFilter("a = 1") == SqlFilter("a = 1")
    assert len({SqlFilter("a = 1"), SqlFilter("a = 1"), SqlFilter("a = 2")}) == 2
