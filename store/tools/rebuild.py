"""Rebuild: recreate consume queues and index from the CommitLog, as the start of a broker would.

    1. write raymq.derived: nothing is dispatched yet
    2. write raymq.rebuild: a rebuild has started, and the epoch of the store
    3. remove queues and index, and record that in raymq.rebuild
    4. dispatch the log; from time to time flush queues and index and write the position to raymq.derived
    5. remove raymq.rebuild

After a kill at any point a broker can open the store, because raymq.derived never contains a position that
is not durable. The next rebuild resumes at that position, unless a broker has opened the store meanwhile (the
epoch has changed). The log is mapped copy-on-write, so it cannot be changed.
"""

import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.consumequeue.removal import remove_derivable_queues
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, replace_file, sync_directory, sync_files
from store.dispatch.dispatcher import Dispatcher, Mode
from store.dispatch.queue_sink import ConsumeQueueSink
from store.dispatch.saved_sink import SINKS
from store.dispatch.sink import DispatchSink
from store.index.index_file import IndexSnapshot
from store.index.index_service import IndexService
from store.ownership.identity import (
    AbortFile,
    StoreLock,
    StoreName,
    WriterEpoch,
    read_name,
    read_writer_epoch,
    refuse_foreign_kinds,
    writer_of,
)
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE, INDEX
from store.recovery.summary import (
    DerivedSummary,
    QueueSnapshots,
    confirmed_bound,
    read_summary,
    summary_path,
)
from store.recovery.tail import Tail, dispatch_start, find_tail, reserve_lost_offsets
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.layout import StoreSizes, find_sizes, log_directories, require_directory

MARK = "raymq.rebuild"
_OPEN_QUEUES = 512
_SLICE_BYTES = 4 << 20
_NOTE_EVERY_BYTES = 256 << 20

Progress = Callable[[int, int], None]
"""A callback that reports progress: it is called with the bytes of the log done so far, and the total."""


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild or of a dry run."""

    store: str
    log_begin: int
    log_end: int
    records: int
    holes: int
    resumed_from: int | None
    """The CommitLog offset at which an interrupted rebuild was resumed.

    None if the rebuild began from the start.
    """
    queues: int
    index_files: int
    is_done: bool
    unconfirmed_bytes: int = 0
    """Bytes at the end of the log that the group of the replica had not confirmed: left to the broker."""

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq store rebuild --json` prints."""
        return {
            "store": self.store,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "records": self.records,
            "holes": self.holes,
            "resumedFrom": self.resumed_from,
            "queues": self.queues,
            "indexFiles": self.index_files,
            "done": self.is_done,
            "unconfirmedBytes": self.unconfirmed_bytes,
        }


class _Mark:
    """The file `raymq.rebuild`, which exists while a rebuild runs, and after a rebuild was interrupted."""

    def __init__(self, root: Path) -> None:
        self._path = root / MARK

    def read(self) -> dict[str, Any] | None:
        """Return the content of the file, or None if it does not exist or is damaged."""
        try:
            content: Any = orjson.loads(self._path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        return content if isinstance(content, dict) and content.get("version") == 1 else None

    def write(self, content: dict[str, Any]) -> None:
        """Write the file, durably. Raises OSError."""
        replace_file(self._path, orjson.dumps({"version": 1, **content}))

    def remove(self) -> None:
        """Remove the file, durably. Raises OSError."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)


def is_interrupted(root: Path) -> bool:
    """Return True if an interrupted rebuild can be resumed, because no broker has opened the store since."""
    begun = _Mark(root).read()
    return begun is not None and begun.get("epoch") == read_writer_epoch(root)


class Rebuild:
    """A rebuild of consume queues and index of one store. Nothing is changed before `run` is called."""

    def __init__(
        self, root: Path, log_paths: Sequence[Path], settings: StoreSettings, *, with_index: bool
    ) -> None:
        """Read the identity of the store and the state of an interrupted rebuild.

        Raises StoreError if there is no store, the store is of an unsupported kind, or a process has it open.
        """
        require_directory(root)
        refuse_foreign_kinds(root)
        pid = writer_of(root)
        if pid is not None:
            raise StoreError(f"process {pid} has this store open: stop that process first", root)
        self.root = root
        self.name: StoreName | None = read_name(root)
        paths = log_directories(root, log_paths, self.name)
        self._mark = _Mark(root)
        self._begun = self._interrupted_rebuild(with_index)
        # Without raymq.json the sizes are measured on the files, which an interrupted rebuild has removed.
        self.sizes = StoreSizes(*self._begun["sizes"]) if self._begun else find_sizes(root, paths, self.name)
        self.paths = LogPaths(root, paths)
        self.log = CommitLog(self.paths, self.sizes.log_file_bytes, Positions(), read_only=True)
        self.with_index = with_index
        self.delays_ms = settings.delay_levels_ms()
        self.store_id: str = self._begun["storeId"] if self._begun else self._own_id()
        self.summary: DerivedSummary | None = read_summary(root, self.store_id)
        self.is_replicated = self.summary is not None and self.summary.is_replicated
        self._abort = AbortFile(root)

    def _own_id(self) -> str:
        return self.name.store_id if self.name is not None else uuid.uuid4().hex

    def _interrupted_rebuild(self, with_index: bool) -> dict[str, Any] | None:
        """Return the content of raymq.rebuild if that rebuild can be resumed, else None."""
        begun = self._mark.read()
        if begun is None or begun.get("epoch") != read_writer_epoch(self.root):
            return None
        if self.name is not None and begun.get("storeId") != self.name.store_id:
            return None
        return begun if begun.get("index") == with_index else None

    @property
    def resumes_from(self) -> int | None:
        """The CommitLog offset at which `run` will resume; None if it will begin from the start."""
        return self.summary.position if self._begun is not None and self.summary is not None else None

    def plan(self) -> Rebuilt:
        """Return what `run` would do, without reading any record (a dry run)."""
        queues = sum(1 for _ in (self.root / CONSUME_QUEUE).glob("*/*"))
        index_files = sum(1 for _ in (self.root / INDEX).glob("*"))
        first = self.log.bases[0] if self.log.bases else 0
        return Rebuilt(
            str(self.root), first, self.log.end, 0, 0, self.resumes_from, queues, index_files, is_done=False
        )

    def run(self, progress: Progress) -> Rebuilt:
        """Rebuild consume queues and index.

        Raises StoreError or OSError; after any error or kill the rebuild can be run again.
        """
        lock = StoreLock(self.root)
        lock.acquire(0)
        try:
            self.paths.lock()
            try:
                return self._work(progress)
            finally:
                self.paths.unlock()
        finally:
            lock.release()

    def close(self) -> None:
        """Close the log."""
        self.log.close()

    # ---- the work ------------------------------------------------------------------------------------------

    def _work(self, progress: Progress) -> Rebuilt:
        first = self.log.bases[0] if self.log.bases else 0
        total = 2 * (self.log.end - first)
        tail = find_tail(
            self.log,
            first,
            check_crc=True,
            is_ours=self.name is not None,
            confirmed=self.summary.position if self.summary is not None else 0,
            on_progress=lambda position: progress(position - first, total),
        )
        unconfirmed_bytes = tail.position
        tail = self._confirmed_part(tail)
        unconfirmed_bytes -= tail.position
        self.log.positions.set_all(first, tail.position)
        resumed_from = self.resumes_from
        if resumed_from is None:
            self._begin(first, tail)
        self._empty()
        work = _Derived(self, tail)
        try:
            work.load()
            work.build(lambda position: progress(self.log.end - 2 * first + position, total))
            queues, index_files = len(work.queues), len(work.index.snapshots()) if work.index else 0
        finally:
            work.close()
        self._end()
        progress(total, total)
        return Rebuilt(
            str(self.root), first, tail.position, tail.records, len(tail.holes), resumed_from, queues,
            index_files, is_done=True, unconfirmed_bytes=unconfirmed_bytes,
        )  # fmt: skip

    def _confirmed_part(self, tail: Tail) -> Tail:
        """Return the end of the part of the log that the group of this replica has confirmed."""
        bound = confirmed_bound(self.summary, StoreCheckpoint.read(self.root / CHECKPOINT))
        if bound is None or bound >= tail.position:
            return tail
        holes = tuple(hole for hole in tail.holes if hole.position < bound)
        return tail._replace(position=bound, last_record=-1, holes=holes)

    def _begin(self, first: int, tail: Tail) -> None:
        """Write raymq.derived with the content for an empty store, and then raymq.rebuild.

        The order matters: see the module docstring.
        """
        had_abort = self._abort.exists
        places: dict[str, dict[str, int]] = {}
        places_at = 0 if self.summary is None else self.summary.position
        if self.summary is not None and tail.position >= self.summary.position:
            for (topic, queue_id), note in self.summary.queues.items():
                places.setdefault(topic, {})[str(queue_id)] = note.next_offset
        epoch = 0
        if self.name is not None:
            writer = WriterEpoch(self.root)
            writer.raise_epoch()
            epoch = writer.number
            writer.close()
        self._abort.create()
        index_files: list[IndexSnapshot] | None = [] if self.with_index else None
        nothing = DerivedSummary(
            self.store_id, first, -1, first, {}, index_files, tail.holes, self.is_replicated
        )
        no_queues = ConsumeQueueTable(
            self.root / CONSUME_QUEUE, self.sizes.queue_file_bytes, Descriptors(1, read_only=True)
        )
        replace_file(summary_path(self.root), QueueSnapshots(no_queues).encode(nothing))
        self.summary = nothing
        self._begun = {
            "storeId": self.store_id,
            "epoch": epoch,
            "index": self.with_index,
            "abort": had_abort,
            "places": places,
            "placesAt": places_at,
            "sizes": tuple(self.sizes),
            "emptied": False,
        }
        self._mark.write(self._begun)

    def _empty(self) -> None:
        """Remove consume queues and index, unless an interrupted rebuild has done so.

        Queues of which the log has no record are kept: nothing else has their ends. Raises OSError.
        """
        assert self._begun is not None
        if self._begun["emptied"]:
            return
        log_min = self.log.bases[0] if self.log.bases else 0
        remove_derivable_queues(self.root / CONSUME_QUEUE, self.sizes.queue_file_bytes, log_min)
        for derived in (INDEX, SINKS):  # the next start derives the states of sinks again
            if (self.root / derived).exists():
                shutil.rmtree(self.root / derived)
        for directory in (self.root / CONSUME_QUEUE, self.root / INDEX):
            directory.mkdir(exist_ok=True)
        sync_directory(self.root)
        self._begun["emptied"] = True
        self._mark.write(self._begun)

    def _end(self) -> None:
        assert self._begun is not None
        if self.name is None:
            summary_path(self.root).unlink(missing_ok=True)  # a store of RocketMQ has no such file
        if not self._begun["abort"]:
            self._abort.remove()
        self._mark.remove()

    def drop_places(self, deleted: Mapping[str, int]) -> None:
        """Forget, durably, the places of the queues of topics that the log has deleted since.

        `deleted` maps a topic to the CommitLog offset of its deletion. Raises OSError.
        """
        begun = self._begun
        assert begun is not None
        gone = [
            topic
            for topic, position in deleted.items()
            if topic in begun["places"] and position >= begun.get("placesAt", 0)
        ]
        for topic in gone:
            del begun["places"][topic]
        if gone:
            self._mark.write(begun)

    @property
    def places(self) -> dict[tuple[str, int], int]:
        """Maps each queue, as (topic, queue id), to its next queue offset before the rebuild.

        Contains only queues that raymq.derived listed.
        """
        noted = self._begun["places"] if self._begun is not None else {}
        return {
            (topic, int(queue_id)): offset
            for topic, by_id in noted.items()
            for queue_id, offset in by_id.items()
        }


class _Derived:
    """The consume queues and the index that a rebuild creates."""

    def __init__(self, rebuild: Rebuild, tail: Tail) -> None:
        self._root = rebuild.root
        self._rebuild = rebuild
        self._tail = tail
        self._log = rebuild.log
        sizes = rebuild.sizes
        self._descriptors = Descriptors(_OPEN_QUEUES)
        self.queues = ConsumeQueueTable(
            rebuild.root / CONSUME_QUEUE, sizes.queue_file_bytes, self._descriptors
        )
        self.index = (
            IndexService(rebuild.root / INDEX, sizes.index_slots, sizes.index_entries)
            if rebuild.with_index
            else None
        )
        queue_sink = ConsumeQueueSink(self._log, self.queues)
        self._sinks: list[DispatchSink] = [queue_sink] if self.index is None else [self.index, queue_sink]
        self._dispatcher = Dispatcher(self._log, self._sinks, rebuild.delays_ms, _SLICE_BYTES)
        self._begin = self._log.positions.min
        self._last_record = -1
        self._notes: QueueSnapshots | None = None

    def load(self) -> None:
        """Load the consume queue and index files that an interrupted rebuild has written.

        Raises OSError, StoreError.
        """
        first, end = self._log.positions.min, self._tail.position
        summary = self._rebuild.summary
        loaded = self.queues.load(end, summary.queues if summary is not None else {})
        for queue in loaded:
            self.queues.discard_invalid(queue)
        if self.index is not None and summary is not None and summary.index_files is not None:
            self.index.load(summary.index_files, first, closed_cleanly=False)
        self._begin = dispatch_start(summary, first, end, self.queues, loaded, self._sinks).position
        self._notes = QueueSnapshots(self.queues)

    def build(self, progress: Callable[[int], None]) -> None:
        """Dispatch the rest of the CommitLog; write the position to raymq.derived from time to time.

        Raises StoreError if a part of the log cannot be dispatched, and OSError.
        """
        position, noted = self._begin, self._begin
        while position < self._tail.position:
            step = self._dispatcher.step(position, self._tail.position, Mode.RECOVERY)
            if step.position == position:
                raise StoreError(
                    "the log cannot be dispatched beyond this offset: run `raymq store verify`",
                    self._root,
                    position,
                )
            position = step.position
            self._last_record = max(self._last_record, step.last_record)
            progress(position)
            if position - noted >= _NOTE_EVERY_BYTES:
                self._note(position)
                noted = position
        self._rebuild.drop_places(self.queues.deleted)
        reserve_lost_offsets(self.queues, self._rebuild.places)
        for queue in self.queues:
            queue.correct_min_offset(self._log.positions.min)
        self._note(position)

    def _note(self, position: int) -> None:
        """Flush queues and index, and then write to raymq.derived that dispatch has reached `position`.

        Raises OSError.
        """
        assert self._notes is not None
        self._notes.begin()
        self._notes.finish()
        paths, self._notes.dirty_paths = self._notes.dirty_paths, []
        index_notes = None
        if self.index is not None:
            paths += self.index.take_dirty_paths()
            index_notes = self.index.snapshots()
            sync_directory(self.index.directory)
        sync_files(paths, self._root)
        sync_directory(self.queues.root)
        self._rebuild.drop_places(self.queues.deleted)
        last = self._last_record if self._last_record >= 0 else self._tail.last_record
        summary = DerivedSummary(
            self._rebuild.store_id,
            position,
            last if last < position else -1,
            self._log.positions.min,
            {},
            index_notes,
            self._tail.holes,
            self._rebuild.is_replicated,
        )
        replace_file(summary_path(self._root), self._notes.encode(summary))

    def close(self) -> None:
        """Close all files."""
        if self.index is not None:
            self.index.close()
        self._descriptors.close()


def rebuild(
    root: Path,
    *,
    log_paths: Sequence[Path] = (),
    message_delay_level: str | None = None,
    with_index: bool = True,
    dry_run: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Rebuilt:
    """Recreate the consume queues and, with `with_index`, the index of a store from its CommitLog.

    `log_paths` are the directories of the log, if they are neither in raymq.json nor `commitlog`.
    `message_delay_level` is needed for a broker with other delay levels than RocketMQ's: the units of delayed
    messages depend on them. `progress` is called with the bytes done and the total.

    Raises StoreError if there is no store, the store is of an unsupported kind, or a process has it open, and
    OSError.
    """
    given = {} if message_delay_level is None else {"message_delay_level": message_delay_level}
    work = Rebuild(root, log_paths, StoreSettings.model_validate(given), with_index=with_index)
    try:
        return work.plan() if dry_run else work.run(progress)
    finally:
        work.close()
