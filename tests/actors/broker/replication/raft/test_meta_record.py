"""The codec of the records with a group's tables."""

from __future__ import annotations

import pytest

from actors.broker.replication.raft.meta_record import (
    RECORD_BYTES,
    Entry,
    decode_meta,
    encode_changes,
    encode_full,
)


def test_changes_and_deletions_are_decoded_as_encoded() -> None:
    entries = [Entry("topic", "T", {"perm": 6}), Entry("group", "G", None), Entry("offset", "T@G", [[0, 5]])]
    ((body, piece),) = encode_changes(entries)
    assert list(piece) == entries == list(decode_meta(body).entries)


def test_many_changes_continue_in_further_records() -> None:
    entries = [Entry("topic", f"T{number}", "x" * (RECORD_BYTES // 3)) for number in range(7)]
    bodies = [body for body, _ in encode_changes(entries)]
    assert len(bodies) == 3
    assert [entry for body in bodies for entry in decode_meta(body).entries] == entries


def test_full_set_says_where_it_begins_and_ends() -> None:
    entries = [Entry("topic", "T", {"perm": 6})]
    records = [decode_meta(body) for body, _ in encode_full(entries, {"T": [(0, 5)]})]
    assert [record.part for record in records] == ["begin", "more", "more", "end"]
    assert [entry for record in records for entry in record.entries] == entries


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"entries": 5}', b'{"entries": [["topic", "T"]]}', b'{"full": "x", "entries": []}'],
    ids=["empty", "a list", "no entries", "a number", "a short entry", "an unknown part"],
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not the body of a meta record"):
        decode_meta(body)
