"""Warm-up: compile or load all kernels before the broker serves requests.

A kernel without declared argument types is compiled at its first call, for the types of that call. So the
warm-up also writes and reads a few messages in a temporary store, on every path that a broker uses.
"""

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from store.common.clock import SystemClock
from store.compiling import compile_once
from store.kernels import read
from store.kernels.cache import remove_unused
from store.message.batch import encode_batch
from store.message.hosts import Host
from store.message.message import Message
from store.message.properties import encode_properties
from store.message.record import RecordDraft, encode_record
from store.message.runs import Runs
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.reading.message_filter import MATCH_ALL, TagFilter
from store.store_settings import StoreSettings

_SENDING = ("batch_properties", "take_sends")
"""The families that `MessageStore` does not import."""
_TOPIC = "warm-up"
_HOST = Host("127.0.0.1", 0)
_SETTINGS = StoreSettings.model_validate(
    {
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_bytes": 20_000,
        "index_slots": 100,
        "index_entries": 400,
        "flush": "async",
    }
)


def warm_up() -> None:
    """Load all kernels that a broker uses; another process compiles what the cache does not have."""
    compile_once()
    load()
    remove_unused()


def load() -> None:
    """Load all kernels that a broker uses from the cache (less than 1 s), or compile them (20 s)."""
    for family in _SENDING:
        import_module(f"store.kernels.{family}")
    with TemporaryDirectory(prefix="raymq-warm-up-") as directory:
        identity = StoreIdentity("warm-up", "warm-up")
        store = MessageStore.open(Path(directory), _SETTINGS, identity, SystemClock(), store_host=_HOST)
        try:
            _send(store)
            _read(store)
        finally:
            store.close()


def _send(store: MessageStore) -> None:
    message = Message(_TOPIC, b"body", tags="tag", keys="key", properties={"UNIQ_KEY": "00"})
    properties = encode_properties(message.properties)
    draft = RecordDraft(_TOPIC, 0, message.body, properties, born_host=_HOST.packed)
    store.append(draft)
    store.append_batch(draft, encode_batch([message, message]))
    record = encode_record(draft, 0, 0, 0, _HOST.packed)
    runs = Runs([0], [1], [len(record)], memoryview(bytearray(record)))
    next_offset = store.append_runs(_TOPIC, runs, _HOST.packed).queue_offset + 1
    end = store.positions.written
    store.append_raw(end, encode_record(draft, next_offset, end, 0, _HOST.packed))
    store.advance()
    store.flush_now()
    store.advance()


def _read(store: MessageStore) -> None:
    for wanted in (MATCH_ALL, TagFilter(["tag"]), TagFilter(["other", "another"])):
        store.get_message(_TOPIC, 0, 0, 32, 1 << 20, wanted)
    _load_spans()
    store.query_by_key(_TOPIC, "key")
    store.offset_by_timestamp(_TOPIC, 0, 1)
    store.record_at(0)


def _load_spans() -> None:
    """Call the kernel `record_spans`, which reads of the temporary store do not use.

    Only reads of older messages call it.
    """
    nothing = np.zeros(0, dtype=np.int64)
    progress = np.zeros(read.READ_FIELDS, dtype=np.int64)
    spans = np.zeros((1, 2), dtype=np.int64)
    # A reader passes units as immutable bytes; numba compiles a separate version for read-only arrays.
    units = np.frombuffer(bytes(read.UNIT_BYTES), dtype=np.uint8)
    read.record_spans(0, 0, units, nothing, False, 1, 1, progress, 0, spans)
