"""MetaLog: writes the changes of a leader's tables into the log of its group, and applies them elsewhere.

    leader     table changed ──→ record appended ──confirmed──→ the request is answered
    follower   record dispatched (`GroupTables`) ──→ table changed
    deposed    tables are those of the confirmed records again; the log has the rest, or has lost it

Definitions are logged at once, before the message that needs them; acks of popped messages at the end of the
turn; other progress once per second, and before a transfer of the leadership (`flush_progress`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from actors.broker.core.table_names import LOCK, TOPIC
from actors.broker.core.table_spec import Entries, TableSpec
from actors.broker.replication.raft.group_tables import GroupTables, save_tables
from actors.broker.replication.raft.meta_record import (
    RECORD_BYTES,
    Entry,
    Key,
    encode_changes,
    encode_full,
)
from actors.broker.replication.tables.table_entries import OWN_TOPICS
from actors.broker.replication.tables.table_specs import TABLES
from actors.raft.conversion import GROUP_TABLES_FILE, UNKNOWN
from store.commitlog.positions import Callback
from store.common.logs import get_logger
from store.dispatch.queue_changes import META_TOPIC, deletion_properties
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)


class MetaLog:
    """Replicates the tables of one broker."""

    def __init__(
        self,
        store: MessageStore,
        confirmed: GroupTables,
        kinds: Mapping[str, Entries],
        leads: Callable[[], bool],
        specs: Mapping[str, TableSpec] = TABLES,
    ) -> None:
        """Create the object, and take over the confirmed entries.

        Args:
            store: has the log.
            confirmed: the confirmed entries, whose file is loaded here.
            kinds: the tables.
            leads: returns True while this replica may append.
            specs: their declarations, by name.

        Raises StoreError if the file of the confirmed entries, or a record, is damaged.
        """
        self._store = store
        self._confirmed = confirmed
        self._kinds = kinds
        self._leads = leads
        self._specs = specs
        self._record_bytes = min(RECORD_BYTES, store.settings.commit_log_file_bytes // 4)
        self._is_open = False
        self._logged: dict[Key, tuple[int, Any]] = {}
        """The entries that are appended, but not dispatched yet, with the queue offset of their record."""
        self._unlogged: dict[Key, None] = {}
        """Changed entries whose append has failed."""
        self._end = 0
        self._versions: dict[str, object] = {}
        self._saved = -1
        self._full_end = 0
        self._is_full_wanted = False
        self._kept: dict[str, set[str]] = {}
        """The names of the entries that this replica had when it took over."""
        confirmed.load(store, specs, self._applied)
        self._restore(removes_others=False)
        for kind, name in confirmed.deleted:  # a table may have been saved before it was deleted
            if kind in kinds:
                kinds[kind].put(name, None)

    # ---- leader --------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Begin to log changes: all confirmed records are applied, and this replica may append.

        Entries that only this replica has, such as its system topics, are logged now. So is a full set: the
        last leader may have deleted the one that it had before it wrote the next, and a replica that joined
        then has none.
        """
        self._restore(removes_others=False)
        self._kept = {kind: set(table.all()) for kind, table in self._kinds.items()}
        self._versions.clear()
        self._full_end = 0
        self._is_full_wanted = True
        self._is_open = True
        self.flush_progress()
        self._write_full_if_due()

    def resign(self) -> None:
        """Stop to log changes, and make the tables those of the confirmed records again."""
        if self._is_open:
            self._is_open = False
            self._logged.clear()
            self._unlogged.clear()
            self._restore(removes_others=True)

    def _restore(self, *, removes_others: bool) -> None:
        """Put all confirmed entries into the tables; remove those that were created since `take_over`."""
        for kind, table in self._kinds.items():
            wanted, found = self._confirmed.of_kind(kind), table.all()
            for name, value in wanted.items():
                if found.get(name) != value or kind == LOCK:  # locks get their full time again
                    self._put(kind, name, value)
            if removes_others:
                for name in found.keys() - wanted.keys() - self._kept[kind]:
                    table.put(name, None)

    def changed(self, kind: str, name: str) -> None:
        """Log an entry of the leader's table that was changed; other replicas do nothing.

        Raises StoreError if the deletion of a topic cannot be logged; the topic is there again then, because
        its queues must not be used until they are deleted.
        """
        if not (name and self._is_open and self._leads()) or (kind == TOPIC and name in OWN_TOPICS):
            return
        value = self._kinds[kind].get(name)
        self._append([Entry(kind, name, value)])
        if value is None:
            self._kept[kind].discard(name)
            if kind == TOPIC and (kind, name) in self._unlogged:
                del self._unlogged[kind, name]
                self._kinds[kind].put(name, self._logged_value((kind, name)))
                raise self._not_replicated()

    def log(self, names: Iterable[Key]) -> StoreError | None:
        """Log these entries as they are now. Return the error if that fails."""
        if not (self._is_open and self._leads()):
            return _not_leading()
        entries = [Entry(kind, name, self._kinds[kind].get(name)) for kind, name in names]
        for kind, name, value in entries:
            if value is None:
                self._kept[kind].discard(name)
        self._append(entries)
        return self._not_replicated() if self._unlogged else None

    def flush_progress(self, kinds: Collection[str] = ()) -> int:
        """Log the entries of these kinds, or of all, that have changed since they were logged.

        Returns the CommitLog offset at which the last record of changes ends: when it is confirmed, all of
        them are. On a replica that does not lead, nothing happens.
        """
        if self._is_open and self._leads():
            retried = [Entry(kind, name, self._kinds[kind].get(name)) for kind, name in self._unlogged]
            self._append([*retried, *self._changes(kinds or self._kinds)])
        return self._end

    def when_confirmed(self, kinds: Collection[str], callback: Callback) -> None:
        """Log what has changed in these kinds, and call `callback` when all changes are confirmed.

        It gets the error if that fails, which leaves open whether the change takes effect.
        """
        end = self.flush_progress(kinds)
        if not self._is_open:
            callback(_not_leading())
        elif self._unlogged:
            callback(self._not_replicated())
        elif end <= self._store.positions.confirmed:
            callback(None)
        else:
            self._store.on_confirmed(end, callback)

    def _not_replicated(self) -> StoreError:
        reason = self._store.write_refusal or "the log refuses it"
        return StoreError(f"the change is not replicated: {reason}; repeat the request")

    def _changes(self, kinds: Iterable[str]) -> list[Entry]:
        """Return the entries of the tables that differ from what is logged."""
        found: list[Entry] = []
        for kind in kinds:
            table = self._kinds[kind]
            version = table.version()
            if self._versions.get(kind) == version:
                continue
            self._versions[kind] = version
            entries, logged = table.all(), self._all_logged(kind)
            found += [
                Entry(kind, name, entries.get(name))
                for name in entries | logged
                if entries.get(name) != logged.get(name)
            ]
        return found

    def _all_logged(self, kind: str) -> dict[str, Any]:
        """Return the entries of a kind as the log has them, confirmed or not."""
        entries = self._confirmed.of_kind(kind)
        for (each, name), (_, value) in self._logged.items():
            if each == kind:
                entries[name] = value
        return {name: value for name, value in entries.items() if value is not None}

    def _append(self, changed: Iterable[Entry]) -> None:
        """Append records with these entries, except those that are logged so already."""
        entries = [each for each in changed if each.value != self._logged_value((each.kind, each.name))]
        self._unlogged.update(dict.fromkeys((each.kind, each.name) for each in entries))
        try:
            for body, piece in encode_changes(entries, self._record_bytes):
                deleted = [each.name for each in piece if each.kind == TOPIC and each.value is None]
                draft = RecordDraft(META_TOPIC, 0, body, deletion_properties(deleted))
                result = self._store.append(draft)
                self._end = result.physical_offset + result.size_bytes
                for topic in deleted:
                    for key in [*self._confirmed.entries, *self._logged]:
                        if self._confirmed.belongs_to(key, topic):
                            self._logged[key] = (result.queue_offset, None)
                for kind, name, value in piece:
                    self._logged[kind, name] = (result.queue_offset, value)
                    self._unlogged.pop((kind, name), None)
        except StoreError as error:  # such as a full disk: the next call tries again
            _log.warning("raft_change_not_logged", entries=len(self._unlogged), error=str(error))

    def _logged_value(self, key: Key) -> Any:
        if key in self._logged:
            return self._logged[key][1]
        return self._confirmed.entries.get(key)

    # ---- every replica -------------------------------------------------------------------------------------

    def _applied(self, entry: Entry) -> None:
        """Apply a confirmed entry; the leader has it already."""
        key = (entry.kind, entry.name)
        if self._is_open:
            logged = self._logged.get(key)
            if logged is not None and logged[0] < self._confirmed.next_offset:
                del self._logged[key]
            return
        table = self._kinds.get(entry.kind)
        if table is not None and table.get(entry.name) != entry.value:
            self._put(entry.kind, entry.name, entry.value)

    def _put(self, kind: str, name: str, value: Any) -> None:
        """Put a confirmed entry into its table. Raises StoreError if it is invalid.

        Without it this replica would log its deletion when it leads.
        """
        is_kept = self._leads() or not self._specs[kind].is_leaders
        try:
            self._kinds[kind].put(name, value if is_kept else None)
        except ValueError as error:
            raise StoreError(
                f"the entry {name!r:.100} of kind {kind} is invalid: {error}. If the file is damaged, remove "
                "it and its .bak, and the entries are read from the log again; if a newer RayMQ has written "
                "the entry, use that version",
                self._store.root / "config" / GROUP_TABLES_FILE,
            ) from error

    async def turn(self) -> None:
        """Log progress, write a full set if it is due, and save the confirmed entries; once per second."""
        self.flush_progress()
        self._write_full_if_due()
        confirmed = self._confirmed
        if confirmed.changes != self._saved and confirmed.is_whole:
            saved, content = confirmed.changes, confirmed.content()
            await asyncio.to_thread(save_tables, self._store.root, content)
            self._saved = saved

    def _write_full_if_due(self) -> None:
        """Write all entries again while the records of the last full set are in the oldest file.

        So the log of each replica always has a full set: a replica that joins the group needs nothing else.
        The set has the ends of all queues, because their records may be in no file that the replica gets. It
        waits for deletions of topics: their queues have not been deleted yet.
        """
        positions, file_bytes = self._store.positions, self._store.settings.commit_log_file_bytes
        oldest_end = (positions.min // file_bytes + 1) * file_bytes
        full_from = self._confirmed.full_from
        is_due = full_from == UNKNOWN or full_from < oldest_end <= self._last_file
        is_due |= self._is_full_wanted and self._last_file > 0
        is_pending = self._full_end > positions.dispatched or self._is_deleting
        if is_pending or not (is_due and self._is_open and self._leads()):
            return
        entries = dict(self._confirmed.entries)
        entries |= {key: value for key, (_, value) in self._logged.items()}
        rows = [Entry(kind, name, value) for (kind, name), value in entries.items() if value is not None]
        try:
            for body, properties in encode_full(rows, self._queue_ends(), self._record_bytes):
                result = self._store.append(RecordDraft(META_TOPIC, 0, body, properties))
                self._end = self._full_end = result.physical_offset + result.size_bytes
            self._is_full_wanted = False
            _log.info("raft_full_set_logged", entries=len(rows), end=self._end)
        except StoreError as error:
            _log.warning("raft_change_not_logged", entries=len(rows), error=str(error))

    @property
    def _is_deleting(self) -> bool:
        """True if the deletion of a topic is appended, but not dispatched yet."""
        return any(key[0] == TOPIC and value is None for key, (_, value) in self._logged.items())

    def _queue_ends(self) -> dict[str, list[tuple[int, int]]]:
        """Return queue id and end of all queues by topic, except that of the meta records."""
        found: dict[str, list[tuple[int, int]]] = {}
        for topic, queue_id in self._store.queues():
            if topic != META_TOPIC:
                found.setdefault(topic, []).append((queue_id, self._store.max_offset(topic, queue_id)))
        return found

    @property
    def _last_file(self) -> int:
        """The CommitLog offset at which the last file begins."""
        file_bytes = self._store.settings.commit_log_file_bytes
        return self._store.positions.written // file_bytes * file_bytes


def _not_leading() -> StoreError:
    return StoreError("this replica does not lead its group any more: repeat the request")
