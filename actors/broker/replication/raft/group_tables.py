"""GroupTables: the confirmed entries of a group's tables, as the fold of the meta records of its log.

    CommitLog ──dispatch──→ GroupTables ──on_applied──→ the tables of a broker that does not lead
                                └──save──→ config/raymqGroupTables.json

The file has the entries and the queue offset of the next meta record: after a start, `load` applies the
records of the topic's consume queue from there on. Each replica has the same entries at the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from actors.broker.core.table_names import TOPIC
from actors.broker.core.table_spec import TableSpec
from actors.broker.replication.raft.meta_record import BEGIN, END, Entry, Key, MetaRecord, decode_meta
from actors.broker.replication.tables.table_specs import TABLES
from actors.raft.conversion import GROUP_TABLES_FILE, UNKNOWN
from store.common.json_file import JsonConfigFile
from store.common.logs import get_logger
from store.dispatch.queue_changes import META_TOPIC
from store.dispatch.sink import RecordBatch
from store.kernels import units
from store.message.json_fields import typed
from store.message.message import MessageExt
from store.message.record import decode_record, decode_records
from store.message_store import MessageStore
from store.store_errors import RecordDamaged, StoreError

_log = get_logger(__name__)

_READ_MESSAGES = 64
_READ_BYTES = 1 << 20
_TOPIC = META_TOPIC.encode()


class GroupTables:
    """The confirmed entries of one replica (a dispatch sink)."""

    missing_from = None

    def __init__(self) -> None:
        """Create the object without entries; records are applied after `load`."""
        self.specs: Mapping[str, TableSpec] = TABLES
        """The tables by name; those of features, too, after `load`."""
        self.entries: dict[Key, Any] = {}
        self.deleted: set[Key] = set()
        """The definitions that were deleted since the last full set: a saved table may have them still."""
        self.next_offset = 0
        """The queue offset of the next meta record."""
        self.full_from = 0
        """The CommitLog offset of the last full set; what is before it is not needed any more.

        UNKNOWN in a new group with the store of a single broker: what its log may have of an earlier group is
        no longer valid, and a full set replaces it.
        """
        self.changes = 0
        """Increases with each record."""
        self._parts: dict[Key, Any] | None = None
        self._parts_from = 0
        self._on_applied: Callable[[Entry], None] | None = None
        self._store: MessageStore | None = None

    def load(
        self, store: MessageStore, specs: Mapping[str, TableSpec], on_applied: Callable[[Entry], None]
    ) -> None:
        """Load the file, and apply what the store has dispatched since it was saved.

        Args:
            store: has the records.
            specs: all tables by name.
            on_applied: called with each entry that is changed later.

        Raises StoreError if the file and its backup are damaged.
        """
        self.specs = specs
        _file(store.root).read(self._restore)
        if self.next_offset == UNKNOWN:  # durable before the first record of this group
            self.next_offset = store.max_offset(META_TOPIC, 0)
            save_tables(store.root, self.content())
        self._store = store
        self.catch_up()
        self._on_applied = on_applied

    def catch_up(self) -> None:
        """Apply the dispatched records; stop before a damaged one, which is repaired later."""
        store = self._store
        assert store is not None
        offset = max(self.next_offset, store.min_offset(META_TOPIC, 0))
        try:
            while offset < store.max_offset(META_TOPIC, 0):
                found = store.get_message(META_TOPIC, 0, offset, _READ_MESSAGES, _READ_BYTES)
                for part in found.slices:
                    for message in decode_records(part, check_crc=True):
                        self._apply_message(message)
                offset = max(found.next_begin_offset, offset + (not found.slices))
        except RecordDamaged as error:
            _log.warning("raft_tables_damaged", offset=offset, error=str(error))

    @property
    def is_whole(self) -> bool:
        """False in the middle of a full set, which a later start could not complete: do not save then."""
        return self._parts is None

    def belongs_to(self, key: Key, topic: str) -> bool:
        """Return True if an entry is deleted together with the topic."""
        kind, name = key
        return kind in self.specs and self.specs[kind].of_topics and name.startswith(f"{topic}@")

    def of_kind(self, kind: str) -> dict[str, Any]:
        """Return the entries of a kind by name."""
        return {name: value for (each, name), value in self.entries.items() if each == kind}

    def content(self) -> bytes:
        """Return the content of the file."""
        rows = [[kind, name, value] for (kind, name), value in self.entries.items()]
        return orjson.dumps(
            {
                "nextOffset": self.next_offset,
                "fullSetFrom": self.full_from,
                "entries": rows,
                "deleted": sorted(self.deleted),
            },
            option=orjson.OPT_INDENT_2,
        )

    # ---- of the dispatcher ---------------------------------------------------------------------------------

    def accept(self, batch: RecordBatch) -> None:
        """Apply the meta records of a dispatched batch. Raises StoreError if one is damaged."""
        if self._on_applied is None or not _has_meta(batch):
            return
        for _, record in batch.records():
            if _TOPIC in bytes(record):
                message = decode_record(record)
                if message.topic == META_TOPIC and not self._lacks(message.queue_offset):
                    self._apply_message(message)

    def _lacks(self, offset: int) -> bool:
        """Return True if a record before this queue offset is damaged: later ones wait for its repair."""
        store = self._store
        assert store is not None
        if offset > self.next_offset < store.max_offset(META_TOPIC, 0):
            self.catch_up()
        return offset > self.next_offset and store.min_offset(
            META_TOPIC, 0
        ) <= self.next_offset < store.max_offset(META_TOPIC, 0)

    def rewind(self, offset: int) -> None:
        """Do nothing: only confirmed records were applied, and they are never truncated."""

    # ---- apply ---------------------------------------------------------------------------------------------

    def _apply_message(self, message: MessageExt) -> None:
        if message.queue_offset < self.next_offset:
            return
        try:
            record = decode_meta(message.body)
        except ValueError as error:
            raise StoreError(str(error), position=message.commit_log_offset) from error
        self.next_offset = message.queue_offset + 1
        self.changes += 1
        if record.part:
            self._apply_part(record, message.commit_log_offset)
            return
        for entry in record.entries:
            self._put(entry)

    def _apply_part(self, record: MetaRecord, position: int) -> None:
        if record.part == BEGIN:
            self._parts, self._parts_from = {}, position
        if self._parts is None:
            return  # the full set began before the log of this replica
        self._parts.update(((kind, name), value) for kind, name, value in record.entries)
        if record.part == END:
            wanted, self._parts, self.full_from = self._parts, None, self._parts_from
            self.deleted.clear()
            for kind, name in [key for key in self.entries if key not in wanted]:
                self._put(Entry(kind, name, None))
            for (kind, name), value in wanted.items():
                if self.entries.get((kind, name)) != value:
                    self._put(Entry(kind, name, value))

    def _put(self, entry: Entry) -> None:
        key = (entry.kind, entry.name)
        self.deleted.discard(key)
        if entry.value is not None:
            self.entries[key] = entry.value
        else:
            self.entries.pop(key, None)
            if entry.kind in self.specs and self.specs[entry.kind].is_definition:
                self.deleted.add(key)
        if self._on_applied is not None:
            self._on_applied(entry)
        if entry.kind == TOPIC and entry.value is None:
            for kind, name in [each for each in self.entries if self.belongs_to(each, entry.name)]:
                self._put(Entry(kind, name, None))

    def _restore(self, content: dict[str, Any]) -> None:
        rows = typed(content.get("entries"), list[tuple[str, str, Any]], "entries")
        self.entries = {(kind, name): value for kind, name, value in rows}
        deleted = typed(content.get("deleted", []), list[tuple[str, str]], "deleted")
        self.deleted = {(kind, name) for kind, name in deleted}
        self.next_offset = typed(content.get("nextOffset"), int, "nextOffset")
        # Full sets of earlier versions had no ends of queues, and were noted under another name.
        self.full_from = typed(content.get("fullSetFrom", UNKNOWN), int, "fullSetFrom")


def save_tables(root: Path, content: bytes) -> None:
    """Replace the file of the store `root`, durably; may be called in a thread. Raises OSError."""
    _file(root).save_text(content)


def full_set_from(root: Path) -> int:
    """Return the CommitLog offset of the last full set that the file of the store `root` has; 0: none.

    Raises StoreError if the file and its backup are damaged.
    """
    tables = GroupTables()
    _file(root).read(tables._restore)  # noqa: SLF001 - the reader of the file
    return tables.full_from


def _file(root: Path) -> JsonConfigFile:
    return JsonConfigFile(root / "config" / GROUP_TABLES_FILE)


def _has_meta(batch: RecordBatch) -> bool:
    groups = batch.groups
    lengths = groups[:, units.GROUP_TOPIC_LENGTH]
    if not (lengths == len(_TOPIC)).any():
        return False
    return any(batch.file.view[at : at + len(_TOPIC)] == _TOPIC for at in _places(batch))


def _places(batch: RecordBatch) -> Iterator[int]:
    groups = batch.groups
    found = groups[:, units.GROUP_TOPIC_LENGTH] == len(_TOPIC)
    yield from groups[found][:, units.GROUP_TOPIC].tolist()
