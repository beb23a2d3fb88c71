"""ProgressLog: the progress of consumers as records in the log of a master with `replication: sync`.

The records are in docs/store-format.md#progress-of-consumers.

    master   acks of a turn ──→ record of the changed entries ──→ confirmed when the slaves have it
             every SNAPSHOT_MS ──→ record of all ordered batches and acked offsets
    start    tables ──→ records since the last snapshot but one ──→ the tables at the end of the log

`consumerOffset.json` has the queue offset of that snapshot as an offset of MARK_GROUP (queue id 0). So a
slave copies it together with the committed offsets. Every change of an offset is logged, so records that a
table already has change nothing, and it does not matter that a table is written and copied in pieces. If a
change cannot be logged, or the broker stops, the table has more than the records until then: offsets in them
are skipped (queue id 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.table_names import ACKED, OFFSET, ORDER
from actors.broker.core.table_spec import Entries
from actors.broker.replication.raft.meta_record import RECORD_BYTES, Entry, Key, decode_meta, encode_changes
from actors.broker.replication.raft_log import log_parts
from store.common.logs import get_logger
from store.message.message import UNKNOWN_HOST, MessageExt
from store.message.record import RecordDraft, decode_record, decode_records
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

PROGRESS_TOPIC: Final = "rmq_sys_raymq_progress"
MARK_GROUP: Final = "CID_RMQ_SYS_RAYMQ_PROGRESS"
SNAPSHOT_MS: Final = 5_000
_TOPIC: Final = PROGRESS_TOPIC.encode()
_SNAPSHOT, _OFFSETS = 0, 1
_READ_MESSAGES: Final = 64
_READ_BYTES: Final = 1 << 20


class ProgressLog:
    """Logs the progress at one master, and restores it at the start of the next one."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets, kinds: Mapping[str, Entries]) -> None:
        """Create the object, and apply the records that the tables lack.

        Args:
            store: has the log.
            offsets: `is_replicated` of its `acked` decides whether changes are logged from now on.
            kinds: the tables that are logged.
        """
        self._store = store
        self._offsets = offsets
        self._kinds = kinds
        self._record_bytes = min(RECORD_BYTES, store.settings.commit_log_file_bytes // 4)
        self._unlogged: dict[Key, None] = {}
        """Changed entries whose append has failed."""
        mark = offsets.query(MARK_GROUP, PROGRESS_TOPIC, _SNAPSHOT)
        self._next = store.max_offset(PROGRESS_TOPIC, 0) if mark is None else mark
        try:
            for message in self._records(self._next):
                if mark is not None and message.born_host == UNKNOWN_HOST:  # else a client has sent it
                    self._apply(message)
                self._next = message.queue_offset + 1
        except (StoreError, ValueError) as error:
            _log.warning("progress_not_restored", queue_offset=self._next, error=str(error))
        self._snapshot = self._next if mark is None else mark
        """The queue offset of the last snapshot."""
        self._is_due = self._next > self._snapshot
        if offsets.acked.is_replicated:
            self._mark(_SNAPSHOT, self._snapshot)
        elif mark is not None:  # later changes will have no record
            offsets.table.offsets.pop(f"{PROGRESS_TOPIC}@{MARK_GROUP}")
            offsets.note_change()

    def log(self, names: Iterable[Key]) -> StoreError | None:
        """Log these entries as they are now, and those whose append has failed. Return the error."""
        self._unlogged.update(dict.fromkeys(names))
        entries = [Entry(kind, name, self._kinds[kind].get(name)) for kind, name in self._unlogged]
        try:
            for body, piece in encode_changes(entries, self._record_bytes):
                self._next = self._store.append(RecordDraft(PROGRESS_TOPIC, 0, body)).queue_offset + 1
                self._is_due = True
                for kind, name, _ in piece:
                    del self._unlogged[kind, name]
        except StoreError as error:  # such as too few slaves: the next call tries again
            self._mark(_OFFSETS, self._next)
            return error
        return None

    def snapshot(self) -> None:
        """Log all entries that older records may have, if there are new ones; every SNAPSHOT_MS."""
        if not self._is_due:
            return
        begin = self._next
        error = self.log([(kind, name) for kind in (ORDER, ACKED) for name in self._kinds[kind].all()])
        if error is not None:
            return
        self._mark(_SNAPSHOT, self._snapshot)
        self._snapshot, self._is_due = begin, False

    async def stop(self) -> None:
        """Note that the tables have all records: what changes while the broker stops may have none."""
        self._mark(_OFFSETS, self._next)

    def _mark(self, queue_id: int, queue_offset: int) -> None:
        """Let the next start begin at this record. The mark itself is not logged."""
        self._offsets.table.commit(MARK_GROUP, PROGRESS_TOPIC, queue_id, queue_offset)
        self._offsets.note_change()

    def _apply(self, message: MessageExt) -> None:
        has_offsets = message.queue_offset >= (self._offsets.query(MARK_GROUP, PROGRESS_TOPIC, _OFFSETS) or 0)
        for kind, name, value in decode_meta(message.body).entries:
            if kind in self._kinds and (kind != OFFSET or has_offsets):
                self._kinds[kind].put(name, value)

    def _records(self, begin: int) -> Iterator[MessageExt]:
        """Yield the records from a queue offset on, also those after the confirmed end of the log."""
        store = self._store
        offset = max(begin, store.min_offset(PROGRESS_TOPIC, 0))
        while offset < store.max_offset(PROGRESS_TOPIC, 0):
            found = store.get_message(PROGRESS_TOPIC, 0, offset, _READ_MESSAGES, _READ_BYTES)
            for part in found.slices:
                yield from decode_records(part)
            offset = max(found.next_begin_offset, offset + (not found.slices))
        positions = store.positions
        for each in log_parts(store, max(positions.dispatched, positions.min), positions.written):
            if each.record is not None and _TOPIC in bytes(each.record):
                message = decode_record(each.record)
                if message.topic == PROGRESS_TOPIC and message.queue_offset >= offset:
                    yield message
