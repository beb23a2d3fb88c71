"""Message filters by tag hash and by property, tested through reads of a store."""

from __future__ import annotations

import pytest

from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_record, decode_records
from store.message.tags import tags_code
from store.message_store import GetMessageStatus
from store.reading.message_filter import MATCH_ALL, MessageFilter, TagFilter
from tests.store.cold_disk import make_cold, settled


class PropertyEquals(MessageFilter):
    """Accepts messages by the value of one property, and optionally by tag."""

    def __init__(self, name: str, value: str, tag: str | None = None) -> None:
        self.name, self.value, self.tag = name, value, tag
        self.records_read = 0

    def prefilter(self, tags_code: int | None) -> bool:
        return self.tag is None or TagFilter([self.tag]).prefilter(tags_code)

    def matches(self, record: memoryview) -> bool:
        self.records_read += 1
        return decode_record(record).properties.get(self.name) == self.value


@pytest.fixture
def colours(stores, drain):
    """Give a store with 60 messages of three colours and two tags."""
    store = stores.open(consume_queue_file_bytes=4000)
    for number in range(60):
        properties = {"colour": ("red", "green", "blue")[number % 3], "TAGS": "ab"[number % 2]}
        store.append(RecordDraft("Topic", 0, b"%d" % number, encode_properties(properties)))
    drain(store)
    return store


def bodies(found) -> list[int]:
    return [int(message.body) for part in found.slices for message in decode_records(part)]


def test_property_filter_serves_the_records_that_match(colours, read_all):
    messages = read_all(colours, wanted=PropertyEquals("colour", "green"))
    assert [int(message.body) for message in messages] == list(range(1, 60, 3))


def test_property_filter_resumes_after_the_last_returned_record(colours):
    wanted = PropertyEquals("colour", "red")
    first = colours.get_message("Topic", 0, 0, 4, 1 << 20, wanted)
    assert bodies(first) == [0, 3, 6, 9]
    assert first.next_begin_offset == 10
    second = colours.get_message("Topic", 0, 10, 4, 1 << 20, wanted)
    assert bodies(second) == [12, 15, 18, 21]
    assert (second.message_count, second.size_bytes) == (4, sum(map(len, second.slices)))


def test_property_filter_counts_bytes_of_matching_records_only(colours):
    size = len(colours.get_message("Topic", 0, 0, 1, 1 << 20).slices[0])
    found = colours.get_message("Topic", 0, 0, 32, 3 * size + size // 2, PropertyEquals("colour", "red"))
    assert bodies(found) == [0, 3, 6]
    assert bodies(colours.get_message("Topic", 0, 1, 32, 1, PropertyEquals("colour", "red"))) == [3]


def test_record_that_fails_the_prefilter_is_not_read(colours):
    wanted = PropertyEquals("colour", "blue", tag="a")
    assert bodies(colours.get_message("Topic", 0, 0, 32, 1 << 20, wanted)) == list(range(2, 60, 6))
    assert wanted.records_read == 30


def test_property_filter_without_a_match_advances_the_offset(colours):
    found = colours.get_message("Topic", 0, 0, 32, 1 << 20, PropertyEquals("colour", "black"))
    assert (found.status, found.message_count, found.size_bytes) == (
        GetMessageStatus.NO_MATCHED_MESSAGE,
        0,
        0,
    )
    assert found.next_begin_offset == 60


def test_property_filter_works_on_a_cold_store(colours, monkeypatch):
    disk = make_cold(colours, monkeypatch)
    wanted, offset, found_bodies = PropertyEquals("colour", "green"), 0, []
    while offset < 60:  # a read returns what it has found before it would wait for the disk again
        found = settled(disk, lambda at=offset: colours.get_message("Topic", 0, at, 32, 1 << 20, wanted))
        found_bodies += bodies(found)
        offset = found.next_begin_offset
    assert found_bodies == list(range(1, 60, 3))
    assert wanted.records_read == 60


def test_tag_filter_compares_the_low_32_bits():
    wanted = TagFilter(["标签", "TagA"])
    assert wanted.prefilter(tags_code("标签"))
    assert wanted.prefilter(tags_code("TagA") + (1 << 40))
    assert wanted.prefilter(None)
    assert not wanted.prefilter(tags_code("TagB"))
    assert not wanted.prefilter(0)


def test_filters_are_equal_if_they_accept_the_same_tags():
    assert TagFilter(["a", "b"]) == TagFilter(["b", "a", "a"])
    assert TagFilter(["a"]) != TagFilter(["b"])
    assert TagFilter(["a"]) != MATCH_ALL
    assert len({TagFilter(["a"]), TagFilter(["a"]), MATCH_ALL}) == 2
