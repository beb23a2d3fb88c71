"""Slices of a read whose records are not adjacent in the CommitLog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.message.record import RecordDraft, decode_records
from store.message_store import MessageStore
from tests.store.conftest import SmallStores


@pytest.mark.parametrize(
    ("body_bytes", "messages", "slices"),
    [(100, 4, 1), (100, 3, 3), (9_000, 4, 4)],
    ids=["small", "few", "large"],
)
def test_scattered_records_are_copied_into_one_slice_if_small(
    stores: SmallStores,
    draft: Callable[..., RecordDraft],
    drain: Callable[[MessageStore], None],
    body_bytes: int,
    messages: int,
    slices: int,
) -> None:
    store = stores.open(commit_log_file_bytes=1 << 20)
    bodies = [b"%d" % number * body_bytes for number in range(messages)]
    for body in bodies:
        store.append(draft(body))
        store.append(draft(queue_id=1))
    drain(store)
    found = store.get_message("Topic", 0, 0, 32, 1 << 20)
    assert [message.body for part in found.slices for message in decode_records(part)] == bodies
    assert (len(found.slices), found.size_bytes) == (slices, sum(map(len, found.slices)))
    assert found.log_end <= store.positions.written
