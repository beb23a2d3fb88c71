"""Verify a whole store: compare all its files with the CommitLog.

A verification only reads. It takes the store's lock only with `is_locking`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.log_paths import LogPaths
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, data_ranges
from store.dispatch.dispatcher import Dispatcher, Mode
from store.dispatch.queue_sink import ConsumeQueueSink
from store.dispatch.sink import DispatchSink
from store.kernels import walk
from store.ownership.identity import (
    AbortFile,
    StoreLock,
    StoreName,
    read_name,
    refuse_foreign_kinds,
    writer_of,
)
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE, INDEX
from store.recovery.summary import DerivedSummary, read_summary
from store.recovery.tail import Tail, find_tail
from store.store_errors import StoreError, StoreFormatUnsupported
from store.store_settings import StoreSettings
from store.tools.layout import find_sizes, log_directories, require_directory
from store.tools.verify import notes
from store.tools.verify.background_checks import BackgroundChecks
from store.tools.verify.findings import Report
from store.tools.verify.index import IndexCheck, LogExtent
from store.tools.verify.log_view import LogView
from store.tools.verify.queues import CheckedQueue, QueueChecker

Progress = Callable[[int, int], None]
"""A callback that reports progress: it is called with the bytes of the log done so far, and the total."""

_OPEN_QUEUES = 512
_SLICE_BYTES = 4 << 20


class Verification:
    """The verification of one store."""

    def __init__(
        self, root: Path, log_paths: Sequence[Path], settings: StoreSettings, *, is_locked: bool = False
    ) -> None:
        """Read the identity of the store and the names of its files.

        With `is_locked` the caller holds the store's lock, so no other process writes. Raises StoreError if
        there is no store, or one of an unsupported kind.
        """
        require_directory(root)
        refuse_foreign_kinds(root)
        self.root = root
        self.report = Report(root)
        self.name: StoreName | None = self._read_name()
        paths = log_directories(root, log_paths, self.name)
        self.sizes = find_sizes(root, paths, self.name)
        self.log = LogView(LogPaths(root, paths), self.sizes.log_file_bytes, self.report)
        self.descriptors = Descriptors(_OPEN_QUEUES, read_only=True)
        self.queues = ConsumeQueueTable(
            root / CONSUME_QUEUE, self.sizes.queue_file_bytes, self.descriptors, CheckedQueue
        )
        self.queues.add_all_on_disk()
        self.summary: DerivedSummary | None = (
            read_summary(root, self.name.store_id) if self.name is not None else None
        )
        self.report.writer_pid = None if is_locked else writer_of(root)
        self.may_lag = AbortFile(root).exists or self.report.writer_pid is not None
        self.settings = settings
        self.delays_ms = settings.delay_levels_ms()

    def _read_name(self) -> StoreName | None:
        try:
            return read_name(self.root)
        except StoreFormatUnsupported:
            raise
        except StoreError as error:
            self.report.add(error.path or self.root, -1, 0, "notes", error.reason)
            return None

    def run(self, progress: Progress) -> Report:
        """Verify everything. Raises StoreError or OSError if the store cannot be read."""
        total = 2 * (self.log.end - self.log.first)
        tail = find_tail(
            self.log,
            self.log.first,
            check_crc=True,
            is_ours=self.name is not None,
            confirmed=self.summary.position if self.summary is not None else 0,
            on_progress=lambda position: progress(position - self.log.first, total),
        )
        self._report_holes(tail)
        self._check_tail(tail)
        covered = self._covered_by_derived(tail)
        extent = LogExtent(self.log.first, covered.position, covered.holes)
        index = IndexCheck(
            self.root / INDEX, self.sizes, self.report, extent,
            is_ours=self.name is not None, may_lag=self.may_lag,
        )  # fmt: skip
        refused = self._dispatch(covered, index, lambda done: progress(done, total))
        self._check_queues(covered, refused)
        index.finish()
        self._check_notes(tail, covered, index)
        self._count(tail, index)
        self.report.findings.sort()
        progress(total, total)
        return self.report

    def close(self) -> None:
        """Close all files."""
        self.log.close()
        self.descriptors.close()

    # ---- the log -------------------------------------------------------------------------------------------

    def _report_holes(self, tail: Tail) -> None:
        for hole in tail.holes:
            file = self.log.file_at(hole.position)
            self.report.add(file.path, hole.position - file.base, hole.size_bytes, "hole", hole.reason)

    def _check_tail(self, tail: Tail) -> None:
        """Check the bytes after the end of the log.

        If RayMQ closed the store cleanly, they must all be zeros.
        """
        noted = self.summary.position if self.summary is not None else 0
        if tail.position < noted and tail.position < self.log.end:
            file = self.log.file_at(tail.position)
            size_bytes = min(noted, file.end) - tail.position
            reason = f"the log ends here, {noted - tail.position:,} bytes before the end in raymq.derived"
            self.report.add(file.path, tail.position - file.base, size_bytes, "log", reason)
        elif tail.position < noted:
            self.report.add(self.log.path_of(tail.position), -1, 0, "file", "the file is missing")
        if tail.unfinished_bytes:
            self.report.notes.append(
                f"the log ends at {tail.position:,} with an append that a kill interrupted: "
                "the next start removes it"
            )
        if self.name is None or self.may_lag or tail.position >= self.log.end:
            return
        file = self.log.file_at(tail.position)
        place = max(tail.position, noted) - file.base
        if place >= file.size_bytes:
            return
        for start, stop in (
            data_ranges(file.descriptor, place, file.size_bytes) if file.descriptor >= 0 else ()
        ):
            used = file.array[start:stop].nonzero()[0]
            if len(used):
                first, last = start + int(used[0]), start + int(used[-1])
                self.report.add(file.path, first, last - first + 1, "log", "data after the end of the log")

    def _covered_by_derived(self, tail: Tail) -> Tail:
        """Return the part of the log that consume queues and index must contain.

        A replica that was closed cleanly has not dispatched the records that were not confirmed. Its
        checkpoint names the same last record as raymq.derived.
        """
        summary = self.summary
        if summary is None or self.may_lag or not self.log.first <= summary.position < tail.position:
            return tail
        last_ms, last = 0, summary.last_record
        if StoreCheckpoint.read(self.root / CHECKPOINT).confirm_physical_offset != max(last, 0):
            return tail
        if last >= 0:
            if not self.log.first <= last < summary.position:
                return tail
            file = self.log.file_at(last)
            size = walk.check_record_at(file.array, last - file.base, file.size_bytes, file.base, False)
            if size <= 0 or not last + size <= summary.position <= self.log.file_at(last).end:
                return tail
            last_ms = int(walk.store_timestamp_at(file.array, last - file.base))
        self.report.notes.append(
            f"{tail.position - summary.position:,} bytes at the end of the log are not confirmed: "
            "the group of this replica confirms or truncates them"
        )
        holes = tuple(hole for hole in tail.holes if hole.position < summary.position)
        return tail._replace(position=summary.position, last_record=last, last_timestamp=last_ms, holes=holes)

    # ---- derived files -------------------------------------------------------------------------------------

    def _dispatch(self, tail: Tail, index: IndexCheck, done: Callable[[int], None]) -> dict[int, int]:
        """Dispatch the log, except for its holes, to the sinks that compare queues and index.

        Returns a map with the records whose queue offset is damaged, from their CommitLog offset to that
        queue offset.
        """
        checks = BackgroundChecks(self.report, index)
        queue_sink = ConsumeQueueSink(self.log, self.queues)
        sinks: list[DispatchSink] = [checks, queue_sink] if index.exists else [queue_sink]
        dispatcher = Dispatcher(self.log, sinks, self.delays_ms, _SLICE_BYTES)
        begin = self.log.first
        scanned = self.log.end - self.log.first
        try:
            for hole in [*tail.holes, None]:
                end = hole.position if hole is not None else tail.position
                while begin < end:
                    following = dispatcher.step(begin, end, Mode.CHECKED).position
                    file = self.log.file_at(begin)
                    checks.check_whole(file, begin - file.base, min(following, file.end) - file.base)
                    begin = following
                    done(scanned + begin - self.log.first)
                begin = hole.position + hole.size_bytes if hole is not None else end
        finally:
            checks.finish()
        return queue_sink.refused

    def _check_queues(self, tail: Tail, refused: dict[int, int]) -> None:
        for position, queue_offset in refused.items():
            file = self.log.file_at(position)
            reason = f"the record's queueOffset is {queue_offset:,}, which does not follow the ones before it"
            self.report.add(file.path, position - file.base + 20, 8, "log", reason)
        checker = QueueChecker(
            self.report, tail.holes, refused, self.log.first, tail.position, may_lag=self.may_lag
        )
        known = notes.known_topics(self.root)
        noted = self.summary.queues if self.summary is not None else {}
        is_all_noted = self.summary is not None and self.summary.position >= tail.position
        deleted = 0
        for queue in sorted(self.queues, key=lambda queue: (queue.topic, queue.queue_id)):
            assert isinstance(queue, CheckedQueue)
            is_deleted = (known is not None and queue.topic not in known) or (
                is_all_noted and (queue.topic, queue.queue_id) not in noted
            )
            deleted += is_deleted and not queue.bases
            checker.check(queue, is_deleted=is_deleted)
        if checker.lagging:
            self.report.notes.append(f"{checker.lagging:,} records are not in their queues yet")
        if deleted:
            self.report.notes.append(f"{deleted:,} queues of deleted topics have records in the log")

    def _check_notes(self, tail: Tail, covered: Tail, index: IndexCheck) -> None:
        is_exact = self.name is not None and self.summary is not None and not self.may_lag
        notes.check_small_files(self.root, self.report)
        notes.check_checkpoint(
            self.root, tail, index.end_timestamp, self.report, covered if is_exact else None
        )
        # If files are damaged, their entries in raymq.derived cannot be compared with them.
        if self.name is not None:
            notes.check_sinks(self.root, self.name, tail, self.report)
            is_exact = is_exact and self.report.is_valid
            notes.check_summary(self.root, self.summary, covered, self.queues, self.report, exact=is_exact)
            if self.summary is not None:
                notes.check_index_notes(
                    self.root, self.summary, self.log.first, self.sizes, self.report, exact=is_exact
                )
        if index.missing_count and self.may_lag:
            self.report.notes.append(f"{index.missing_count:,} keys are not in the index yet")
        if self.report.writer_pid is not None:
            self.report.notes.append(
                f"process {self.report.writer_pid} has this store open: "
                "its writes since the start of the verification are not checked"
            )

    def _count(self, tail: Tail, index: IndexCheck) -> None:
        self.report.counts.update(
            logBytes=tail.position - self.log.first,
            logBegin=self.log.first,
            logEnd=tail.position,
            records=tail.records,
            holes=len(tail.holes),
            holeBytes=tail.damaged_bytes,
            queues=len(self.queues),
            indexEntries=index.entries,
        )


def verify(
    root: Path,
    *,
    log_paths: Sequence[Path] = (),
    message_delay_level: str | None = None,
    is_locking: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Compare all files of a store with its CommitLog. Return the report.

    `log_paths` are the directories of the log, if they are neither in raymq.json nor `commitlog`.
    `message_delay_level` is needed for a broker with other delay levels than RocketMQ's: the units of delayed
    messages depend on them. With `is_locking` the store is locked during the verification. `progress` is
    called with the bytes done and the total.

    Raises StoreError if there is no store, if the store is of an unsupported kind, or, with `is_locking`, if
    a process has the store open.
    """
    given = {} if message_delay_level is None else {"message_delay_level": message_delay_level}
    work = Verification(root, log_paths, StoreSettings.model_validate(given))
    if is_locking:  # lock only now, so that no lock file is created in what is not a store
        work.close()
        return _locked(root, log_paths, work.settings, progress)
    try:
        return work.run(progress)
    finally:
        work.close()


def _locked(root: Path, log_paths: Sequence[Path], settings: StoreSettings, progress: Progress) -> Report:
    lock = StoreLock(root)
    lock.acquire(0)
    try:
        work = Verification(root, log_paths, settings, is_locked=True)
        try:
            return work.run(progress)
        finally:
            work.close()
    finally:
        lock.release()
