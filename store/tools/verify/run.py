"""A verification from beginning to end. It only reads, and takes no lock unless it is asked to."""

from collections.abc import Callable, Sequence
from pathlib import Path

from store.commitlog.log_paths import LogPaths
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import Descriptors, data_ranges
from store.dispatch.dispatcher import Dispatcher, Mode
from store.dispatch.queue_sink import ConsumeQueueSink
from store.dispatch.sink import DispatchSink
from store.ownership.identity import (
    AbortFile,
    StoreLock,
    StoreName,
    read_name,
    refuse_foreign_kinds,
    writer_of,
)
from store.recovery.opening import CONSUME_QUEUE, INDEX
from store.recovery.summary import DerivedSummary, read_summary
from store.recovery.tail import Tail, find_tail
from store.store_errors import StoreError, StoreFormatUnsupported
from store.store_settings import StoreSettings
from store.tools.layout import find_sizes, log_directories, require_directory
from store.tools.verify import notes
from store.tools.verify.behind import Behind
from store.tools.verify.findings import Report
from store.tools.verify.index import IndexCheck, LogExtent
from store.tools.verify.log_view import LogView
from store.tools.verify.queues import CheckedQueue, QueueJudge

Progress = Callable[[int, int], None]
"""Told how many bytes are done, of how many."""

_OPEN_QUEUES = 512
_SLICE_BYTES = 4 << 20


class Verification:
    """One store being verified."""

    def __init__(
        self, root: Path, log_paths: Sequence[Path], settings: StoreSettings, *, is_locked: bool = False
    ) -> None:
        """Look at the store; where it `is_locked` by us nobody writes. Raises StoreError when there is none,
        or one of another kind.
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
        """Verify everything. Raises StoreError, OSError when that is not possible."""
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
        index = IndexCheck(
            self.root / INDEX, self.sizes, self.report, LogExtent(self.log.first, tail.position, tail.holes),
            is_ours=self.name is not None, may_lag=self.may_lag,
        )  # fmt: skip
        refused = self._dispatch(tail, index, lambda done: progress(done, total))
        self._judge_queues(tail, refused)
        index.finish()
        self._check_notes(tail, index)
        self._count(tail, index)
        self.report.findings.sort()
        progress(total, total)
        return self.report

    def close(self) -> None:
        """Let go of all files."""
        self.log.close()
        self.descriptors.close()

    # ---- the log -------------------------------------------------------------------------------------------

    def _report_holes(self, tail: Tail) -> None:
        for hole in tail.holes:
            file = self.log.file_at(hole.position)
            self.report.add(file.path, hole.position - file.base, hole.size_bytes, "hole", hole.reason)

    def _check_tail(self, tail: Tail) -> None:
        """Behind the end of a log of ours that ended in order there are zeros."""
        noted = self.summary.position if self.summary is not None else 0
        if tail.position < noted and tail.position < self.log.end:
            file = self.log.file_at(tail.position)
            size_bytes = min(noted, file.end) - tail.position
            reason = f"the log ends here, {noted - tail.position:,} bytes before the end that was noted"
            self.report.add(file.path, tail.position - file.base, size_bytes, "log", reason)
        elif tail.position < noted:
            self.report.add(self.log.path_of(tail.position), -1, 0, "file", "the file is missing")
        if tail.unfinished_bytes:
            self.report.notes.append(
                f"an append that was cut short by a kill ends the log at {tail.position:,}: "
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
                self.report.add(
                    file.path, first, last - first + 1, "log", "there is something behind its end"
                )

    # ---- what is derived from it ---------------------------------------------------------------------------

    def _dispatch(self, tail: Tail, index: IndexCheck, done: Callable[[int], None]) -> dict[int, int]:
        """Dispatch what lies between the holes into queues and index that compare.

        Returns the offsets of records whose queue offsets cannot be right, and these.
        """
        behind = Behind(self.report, index)
        queue_sink = ConsumeQueueSink(self.log, self.queues)
        sinks: list[DispatchSink] = [behind, queue_sink] if index.exists else [queue_sink]
        dispatcher = Dispatcher(self.log, sinks, self.delays_ms, _SLICE_BYTES)
        begin = self.log.first
        scanned = self.log.end - self.log.first
        try:
            for hole in [*tail.holes, None]:
                end = hole.position if hole is not None else tail.position
                while begin < end:
                    following = dispatcher.step(begin, end, Mode.CHECKED).position
                    file = self.log.file_at(begin)
                    behind.check_whole(file, begin - file.base, min(following, file.end) - file.base)
                    begin = following
                    done(scanned + begin - self.log.first)
                begin = hole.position + hole.size_bytes if hole is not None else end
        finally:
            behind.finish()
        return queue_sink.refused

    def _judge_queues(self, tail: Tail, refused: dict[int, int]) -> None:
        for position, queue_offset in refused.items():
            file = self.log.file_at(position)
            reason = f"the record's queueOffset is {queue_offset:,}, which does not follow those before it"
            self.report.add(file.path, position - file.base + 20, 8, "log", reason)
        judge = QueueJudge(
            self.report, tail.holes, refused, self.log.first, tail.position, may_lag=self.may_lag
        )
        known = notes.topics_known(self.root)
        noted = self.summary.queues if self.summary is not None else {}
        is_all_noted = self.summary is not None and self.summary.position >= tail.position
        deleted = 0
        for queue in sorted(self.queues, key=lambda queue: (queue.topic, queue.queue_id)):
            assert isinstance(queue, CheckedQueue)
            is_deleted = (known is not None and queue.topic not in known) or (
                is_all_noted and (queue.topic, queue.queue_id) not in noted
            )
            deleted += is_deleted and not queue.bases
            judge.judge(queue, is_deleted=is_deleted)
        if judge.lagging:
            self.report.notes.append(f"{judge.lagging:,} records are not in their queues yet")
        if deleted:
            self.report.notes.append(f"{deleted:,} queues of deleted topics have records in the log")

    def _check_notes(self, tail: Tail, index: IndexCheck) -> None:
        is_exact = self.name is not None and self.summary is not None and not self.may_lag
        notes.check_small_files(self.root, self.report)
        notes.check_checkpoint(self.root, tail, index.end_timestamp, self.report, exact=is_exact)
        # Where the files themselves are damaged, what was noted of them cannot be compared.
        if self.name is not None:
            is_exact = is_exact and self.report.is_valid
            notes.check_summary(self.root, self.summary, tail, self.queues, self.report, exact=is_exact)
            if self.summary is not None:
                notes.check_index_notes(
                    self.root, self.summary, self.log.first, self.sizes, self.report, exact=is_exact
                )
        if index.lacking and self.may_lag:
            self.report.notes.append(f"{index.lacking:,} keys are not in the index yet")
        if self.report.writer_pid is not None:
            self.report.notes.append(
                f"process {self.report.writer_pid} has this store open: what it wrote meanwhile is not judged"
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
    """Compare a store with what its log makes of it.

    `message_delay_level` is needed for brokers that have other delay levels than RocketMQ's: what scheduled
    messages' units hold goes by them. `is_locking` keeps writers out meanwhile. Raises StoreError when there
    is no store, one of another kind, or one in use that is to be locked.
    """
    given = {} if message_delay_level is None else {"message_delay_level": message_delay_level}
    work = Verification(root, log_paths, StoreSettings.model_validate(given))
    if is_locking:  # only now: nothing is locked, and no lock made, in what is no store
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
