"""A closed gate refuses each way to append; copies of another log only if nothing may be written."""

from __future__ import annotations

import pytest

from store.message.batch import encode_batch
from store.message.hosts import Host
from store.message.message import Message
from store.message.record import RecordDraft
from store.message.runs import Runs
from store.store_errors import SendsRefused, StoreError
from store.writing.send_gate import DISK, DISPATCH, FAILURE, REPLICATION
from tests.store.writing.test_raw_records import log_of

HOST = Host("127.0.0.1", 1).packed
APPENDS = {
    "append": lambda store, draft: store.append(draft(b"a")),
    "append_batch": lambda store, draft: store.append_batch(
        RecordDraft("Topic", 0, b""), encode_batch([Message("Topic", b"a")])
    ),
    "append_runs": lambda store, draft: store.append_runs(
        "Topic", Runs([0], [1], [0], memoryview(b"")), HOST
    ),
}


@pytest.mark.parametrize("source", [FAILURE, DISPATCH, DISK, REPLICATION, "feature"])
@pytest.mark.parametrize("way", APPENDS)
def test_closed_gate_refuses_new_messages(stores, draft, way, source):
    store = stores.open()
    store.gate.close(source, "closed")
    expected = SendsRefused if source in (REPLICATION, "feature") else StoreError
    with pytest.raises(expected, match="closed") as raised:
        APPENDS[way](store, draft)
    assert type(raised.value) is expected
    assert store.blocks.begin() is None
    assert store.positions.written == 0
    store.gate.open(source)
    assert store.append(draft()).physical_offset == 0
    assert store.blocks.begin() is not None


@pytest.mark.parametrize("source", [FAILURE, DISPATCH, DISK])
def test_copies_of_another_log_are_refused_if_nothing_may_be_written(stores, draft, source):
    original, copy = stores.open("source"), stores.open("copy")
    original.append(draft())
    copy.gate.close(REPLICATION, "a slave")
    copy.gate.close(source, "closed")
    assert copy.write_refusal == "closed"
    with pytest.raises(StoreError, match="closed"):
        copy.append_raw(0, log_of(original))
    copy.gate.open(source)
    copy.append_raw(0, log_of(original))
    assert copy.positions.written == original.positions.written
    assert copy.write_refusal is None
