"""Stores with files of a few kilobytes, which roll quickly, and a fixed clock, for the tests of `store`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from store.commitlog.positions import ConfirmPolicy
from store.common.background import Executors, thread_pool
from store.common.clock import Clock
from store.disk.disk_use import DiskProbe, disk_use
from store.dispatch.sink import DispatchSink
from store.message.hosts import Host
from store.message.message import MessageExt
from store.message.properties import encode_properties
from store.message.record import RecordDraft, decode_records
from store.message_store import GetMessageStatus, MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings

SMALL: dict[str, Any] = {
    "commit_log_file_bytes": 8192,
    "consume_queue_file_bytes": 400,
    "index_slots": 20,
    "index_entries": 64,
    "flush": "async",
    "lock_timeout_ms": 0,
    "preallocate": False,
}
OWNER = StoreIdentity("DefaultCluster", "broker-a", 0)
# Files that differ from open to open.
PER_OPEN_FILES = {"raymq.json", "raymq.epoch", "raymq.derived", "lock", "abort", "checkpoint"}


@dataclass
class SmallStores:
    """Opens the stores of one test and reads their files."""

    directory: Path
    clock: Clock
    opened: list[MessageStore] = field(default_factory=list)

    def open(
        self,
        name: str = "store",
        *,
        adopt: bool = False,
        probe: DiskProbe = disk_use,
        sinks: Sequence[DispatchSink] = (),
        confirm: ConfirmPolicy | None = None,
        executors: Executors = thread_pool,
        **settings: Any,
    ) -> MessageStore:
        """Open the store called `name`, with small files."""
        chosen = StoreSettings(**{**SMALL, **settings})
        store = MessageStore.open(
            self.directory / name,
            chosen,
            OWNER,
            self.clock,
            adopt=adopt,
            store_host=Host("127.0.0.1", 10911),
            probe=probe,
            sinks=sinks,
            confirm=confirm,
            executors=executors,
        )
        self.opened.append(store)
        return store

    def kill(self, store: MessageStore, into: str) -> Path:
        """Copy the files of an open store to the directory `into`, as a kill would leave them."""
        target = self.directory / into
        # A background job may rename a *.new file during the copy.
        shutil.copytree(store.root, target, ignore=shutil.ignore_patterns("*.new"))
        return target

    def files(self, root: Path) -> dict[str, str]:
        """Return a hash of each file except those that differ from open to open."""
        return {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name not in PER_OPEN_FILES
        }


@pytest.fixture
def stores(tmp_path: Path, clock: Clock) -> Iterator[SmallStores]:
    """Give a factory of small stores; stores still open at the end of the test are closed."""
    maker = SmallStores(tmp_path, clock)
    yield maker
    for store in maker.opened:
        store.close()


def a_draft(
    body: bytes = b"body",
    topic: str = "Topic",
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    uniq: str = "",
    **more: Any,
) -> RecordDraft:
    properties = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": uniq}
    return RecordDraft(topic, queue_id, body, encode_properties(properties), **more)


@pytest.fixture
def draft() -> Callable[..., RecordDraft]:
    """Give a factory of drafts with the parameters body, topic, queue_id, tags, keys and uniq."""
    return a_draft


def all_messages(
    store: MessageStore, topic: str = "Topic", queue_id: int = 0, **filters: Any
) -> list[MessageExt]:
    found: list[MessageExt] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get_message(topic, queue_id, offset, 32, 1 << 20, **filters)
        assert result.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
        for run in result.slices:
            found += decode_records(run)
        offset = result.next_begin_offset
    return found


@pytest.fixture
def read_all() -> Callable[..., list[MessageExt]]:
    """Give a function that reads a whole queue: (store, topic, queue_id)."""
    return all_messages


@pytest.fixture
def drain() -> Callable[[MessageStore], None]:
    """Give a function that flushes and dispatches everything."""

    def run(store: MessageStore) -> None:
        store.flush_now()
        store.dispatch_now()
        store.advance()

    return run
