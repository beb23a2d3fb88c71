"""Re-index a store: the stages of a re-index, run by an engine such as Spark.

driver      lock the store
stage 1     one task per log file: scan and dispatch it, write its part
driver      find the end of the log from the scans
stage 2     one task per shard of the queues, one task per index file
driver      put the new files in place by rename
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from store.commitlog.commit_log import CommitLog
from store.commitlog.holes import Hole
from store.commitlog.mapped_file import MappedFile
from store.dispatch.queue_changes import META_TOPIC
from store.index.index_file import IndexSnapshot
from store.ownership.identity import AbortFile
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.opening import CHECKPOINT
from store.recovery.scan_ahead import Scan, scan_file
from store.recovery.summary import DerivedSummary, confirmed_bound
from store.recovery.tail import Tail, find_tail
from store.store_errors import StoreError
from store.tools.reindex import index_files, queues, swap
from store.tools.reindex.parts import Part, write_part
from store.tools.reindex.sealed import SealedFile, SealedResult, build_sealed
from store.tools.reindex.store_files import StoreFiles, find_store, locked
from store.tools.verify.findings import Finding, Report
from store.tools.verify.index import LogExtent

Task = Callable[[], Any]
_LOST = "records of it are damaged: stop the broker and use `raymq reindex store`"


class TaskEngine(Protocol):
    """Runs the tasks of a stage, which are picklable functions, in any order and in any process."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at the same time."""

    def run(self, description: str, tasks: Sequence[Task]) -> list[Any]:
        """Run all tasks. Return their results in the order of `tasks`, or raise the error of one of them."""


@dataclass(frozen=True)
class Reindexed:
    """The result of a re-index or of a check.

    Attributes:
        store: The directory of the store.
        log_begin: The CommitLog offset at which the log begins.
        log_end: The CommitLog offset at which it ends.
        records: Number of valid records.
        queues: Number of consume queues that were written or compared.
        index_files: Number of index files that were written; 0 for a check.
        damage: Damaged ranges of the log, and records with an impossible queue offset.
        differences: The differences that a check found; empty after a re-index.
        omitted: Number of differences that are not listed.
        notes: Observations of a check that are not damage.
        is_check: True for a check, which leaves the store's files unchanged.
    """

    store: str
    log_begin: int
    log_end: int
    records: int
    queues: int
    index_files: int
    damage: Sequence[Finding]
    differences: Sequence[Finding]
    omitted: int
    notes: Sequence[str]
    is_check: bool

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq reindex store --json` prints."""
        return {
            "store": self.store,
            "check": self.is_check,
            "logBegin": self.log_begin,
            "logEnd": self.log_end,
            "records": self.records,
            "queues": self.queues,
            "indexFiles": self.index_files,
            "damage": [finding.as_json() for finding in self.damage],
            "differences": [finding.as_json() for finding in self.differences],
            "omitted": self.omitted,
            "notes": list(self.notes),
        }


def reindex(
    engine: TaskEngine,
    root: Path,
    *,
    check: bool = False,
    log_paths: Sequence[Path] = (),
    message_delay_level: str | None = None,
    with_index: bool = True,
) -> Reindexed:
    """Recreate the consume queues and index files of a stopped store from its CommitLog alone.

    The new files are written into the directory `raymq.reindex` of the store, and put in place by rename.
    The log is not changed. The store is locked, so that no broker can open it meanwhile. A check accepts a
    store that a broker of RayMQ has open, and compares it up to the position of its last checkpoint.

    Args:
        engine: Runs the tasks. All its processes need access to the store's directory.
        root: The directory of the store.
        check: Compare the existing files with the log instead of replacing them.
        log_paths: Directories of the CommitLog, if they are neither in raymq.json nor `commitlog`.
        message_delay_level: The broker's delay levels, if they are not RocketMQ's: the units of delayed
            messages depend on them.
        with_index: Recreate or check the index files too; a re-index with False removes them.

    Raises:
        StoreError: There is no store, it is of an unsupported kind, of a Raft group or open, or its files
            cannot be read.
        OSError: A file cannot be written. After any error a broker can open the store.
    """
    files = find_store(root, log_paths, message_delay_level, may_be_open=check)
    if (files.queues / META_TOPIC).exists():  # its tasks do not see records in the order of the log
        raise StoreError(
            "the log of a Raft group may have deletions of topics, which a re-index does not know: use "
            f"`raymq store {'verify' if check else 'rebuild'}`",
            files.root,
        )
    with locked(files):
        if not check:
            swap.require_renamable(files)
        swap.prepare_work(files)
        try:
            work = _Reindex(engine, files, with_index=with_index)
            parts, extent, tail = work.scan()
            return work.check(parts, extent, tail) if check else work.build(parts, extent, tail)
        finally:
            swap.remove_work(files)


@dataclass(frozen=True)
class Repaired:
    """The result of a repair of a running broker's consume queue files.

    Attributes:
        store: The directory of the store.
        log_end: The CommitLog offset up to which the files were compared.
        queues: Number of consume queues that were compared.
        replaced: The files that the broker replaced.
        kept: The files that differ but were not replaced, each with the reason.
        damage: Damaged ranges of the log.
    """

    store: str
    log_end: int
    queues: int
    replaced: Sequence[SealedFile]
    kept: Sequence[tuple[SealedFile, str]]
    damage: Sequence[Finding]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq reindex live --json` prints."""
        return {
            "store": self.store,
            "logEnd": self.log_end,
            "queues": self.queues,
            "replaced": [file._asdict() for file in self.replaced],
            "kept": [{**file._asdict(), "reason": reason} for file, reason in self.kept],
            "damage": [finding.as_json() for finding in self.damage],
        }


def repair(
    engine: TaskEngine,
    root: Path,
    replace: Callable[[SealedFile], str | None],
    *,
    message_delay_level: str | None = None,
) -> Repaired:
    """Compare the full consume queue files of a running broker with its log, and replace those that differ.

    The log is read up to the position of the broker's last checkpoint. Index files, and the last file of each
    queue, are not compared.

    Args:
        engine: Runs the tasks. All its processes need access to the store's directory.
        root: The directory of the store.
        replace: Makes the broker replace a file. Returns None, or the reason if the broker refuses.
        message_delay_level: The broker's delay levels, if they are not RocketMQ's.

    Raises:
        StoreError: There is no store, no broker has it open, or its files cannot be read.
        OSError: A file cannot be written. The store is unchanged, except for replaced files.
    """
    files = find_store(root, (), message_delay_level, may_be_open=True)
    if files.writer_pid is None:
        raise StoreError("no broker has this store open: use `raymq reindex store`", root)
    with locked(files):
        swap.prepare_work(files)
        try:
            return _Reindex(engine, files, with_index=False).repair(replace)
        finally:
            swap.remove_work(files)


class _LogUntil:
    """A log of which only the CommitLog offsets before `end` are considered."""

    def __init__(self, log: CommitLog, end: int) -> None:
        self._log = log
        self.end = min(end, log.end)

    def file_at(self, offset: int) -> MappedFile:
        """Return the log file that contains the offset. Raises StoreError."""
        return self._log.file_at(offset)

    def slice(self, offset: int, size_bytes: int) -> memoryview:
        """Return bytes of the log. Raises StoreError."""
        return self._log.slice(offset, size_bytes)


class _KnownScans:
    """The scans that the tasks made, for the search of the end of the log.

    `limit` is the CommitLog offset at which the search ends, or None for the end of the log.
    """

    def __init__(self, files: StoreFiles, parts: Sequence[Part], limit: int | None) -> None:
        self._files = files
        self._log = files.open_log()
        self._limit = limit
        self._known = {position: scan for part in parts for position, scan in part.scans.items()}

    def scan(self, position: int) -> Scan:
        known = self._known.get(position)
        if known is None:
            known = scan_file(self._log.file_at(position), position, check_crc=True)
        return known

    def find_tail(self, summary: DerivedSummary | None) -> Tail:
        """Return the end of the log, as the start of a broker would find it. Call it once."""
        log, limit = self._log, self._limit
        try:
            tail = find_tail(
                log if limit is None else _LogUntil(log, limit),
                log.bases[0] if log.bases else 0,
                check_crc=True,
                is_ours=self._files.is_ours,
                confirmed=summary.position if summary is not None else 0,
                scans=self,
            )
        finally:
            log.close()
        if limit is None or limit >= tail.position:
            return tail
        holes = tuple(hole for hole in tail.holes if hole.position < limit)
        last = summary.last_record if summary is not None and summary.position == limit else -1
        return tail._replace(position=limit, last_record=last, holes=holes)


class _Reindex:
    """One re-index of a store, which the caller has locked."""

    def __init__(self, engine: TaskEngine, files: StoreFiles, *, with_index: bool) -> None:
        self._engine = engine
        self._files = files
        self._with_index = with_index
        self._summary = files.summary()
        count = max(engine.parallelism, 1)
        self._shards = [queues.Shard(number, count) for number in range(count)]

    def _run(self, what: str, tasks: Sequence[Task]) -> list[Any]:
        return self._engine.run(f"reindex {self._files.root}: {what}", tasks) if tasks else []

    def scan(self) -> tuple[list[Part], LogExtent, Tail]:
        """Write the parts of all log files. Return them, and the extent and the end of the log."""
        files, limit = self._files, self._limit()
        log = files.open_log()
        bases = [base for base in log.bases if limit is None or base < limit]
        log.close()
        count = len(self._shards)
        parts = self._run("scan", [partial(write_part, files, base, count, limit) for base in bases])
        tail = _KnownScans(files, parts, limit).find_tail(self._summary)
        extent = LogExtent(bases[0] if bases else 0, tail.position, tail.holes)
        return self._cut(parts, tail), extent, tail

    def _limit(self) -> int | None:
        """Return the CommitLog offset up to which the store is complete and confirmed; None: all of it.

        Raises StoreError if a broker has the store open and has made no checkpoint yet.
        """
        if self._files.writer_pid is None:
            return confirmed_bound(self._summary, StoreCheckpoint.read(self._files.root / CHECKPOINT))
        if self._summary is None:
            raise StoreError("the broker has made no checkpoint yet: try again later", self._files.root)
        return self._summary.position

    def _cut(self, parts: Sequence[Part], tail: Tail) -> list[Part]:
        """Remove records after the end of the log: those of incomplete appends, or old ones of RocketMQ."""
        kept = [part for part in parts if part.base < tail.position]
        beyond = [part.base for part in kept if part.end > tail.position]
        count = len(self._shards)
        tasks = [partial(write_part, self._files, base, count, tail.position) for base in beyond]
        cut = dict(zip(beyond, self._run("scan the end", tasks), strict=True))
        return [cut.get(part.base, part) for part in kept]

    def build(self, parts: Sequence[Part], extent: LogExtent, tail: Tail) -> Reindexed:
        """Write new queues and index files, and put them in place."""
        files, summary = self._files, self._summary
        places: dict[tuple[str, int], int] = {}
        if summary is not None and tail.position >= summary.position:
            places = {queue: snapshot.next_offset for queue, snapshot in summary.queues.items()}
        plans = index_files.plan_index_files(files, parts) if self._with_index else []
        bases = [part.base for part in parts]
        tasks: list[Task] = [partial(index_files.build_index_file, files, plan) for plan in plans]
        tasks += [partial(queues.build_queues, files, extent, bases, each, places) for each in self._shards]
        results = self._run("write", tasks)
        snapshots: list[IndexSnapshot] = results[: len(plans)]
        built: list[queues.ShardResult] = results[len(plans) :]
        states = [state for result in built for state in result.queues]
        swap.swap(files, extent.begin, tail, states, snapshots if self._with_index else None)
        records = sum(part.records for part in parts)
        return Reindexed(
            str(files.root), extent.begin, extent.end, records, len(states), len(plans),
            self._damage(tail, built), [], 0, [], is_check=False,
        )  # fmt: skip

    def check(self, parts: Sequence[Part], extent: LogExtent, tail: Tail) -> Reindexed:
        """Compare the existing queues and index files with the parts."""
        files, may_lag = self._files, AbortFile(self._files.root).exists
        bases = [part.base for part in parts]
        tasks: list[Task] = [
            partial(queues.check_queues, files, extent, bases, shard, may_lag=may_lag)
            for shard in self._shards
        ]
        if self._with_index:
            tasks.insert(0, partial(index_files.check_index, files, extent, parts, may_lag=may_lag))
        results = self._run("compare", tasks)
        index: index_files.IndexCheckResult | None = results.pop(0) if self._with_index else None
        checked: list[queues.ShardResult] = results
        findings = [finding for result in checked for finding in result.findings]
        findings += index.findings if index else []
        omitted = sum(result.omitted for result in checked) + (index.omitted if index else 0)
        count = sum(result.checked for result in checked)
        lagging = sum(result.lagging for result in checked)
        notes = []
        if files.writer_pid is not None:
            notes.append(f"process {files.writer_pid} has this store open: its later writes are not compared")
        if lagging:
            notes.append(f"{lagging:,} records are not in their queues yet: the next start adds them")
        if index and index.missing and may_lag:
            notes.append(f"{index.missing:,} keys are not in the index yet: the next start adds them")
        records = sum(part.records for part in parts)
        return Reindexed(
            str(files.root), extent.begin, extent.end, records, count, 0,
            self._damage(tail, checked), sorted(findings), omitted, notes, is_check=True,
        )  # fmt: skip

    def repair(self, replace: Callable[[SealedFile], str | None]) -> Repaired:
        """Replace the full queue files that differ from the log, one after the other."""
        parts, extent, tail = self.scan()
        bases = [part.base for part in parts]
        tasks = [partial(build_sealed, self._files, extent, bases, shard) for shard in self._shards]
        results: list[SealedResult] = self._run("compare", tasks)
        kept = [(file, _LOST) for result in results for file in result.lost]
        replaced = []
        for file in sorted(file for result in results for file in result.different):
            refusal = replace(file)
            if refusal is None:
                replaced.append(file)
            else:
                kept.append((file, refusal))
        count = sum(result.queues for result in results)
        damage = _hole_findings(self._files, tail.holes)
        return Repaired(str(self._files.root), extent.end, count, replaced, sorted(kept), damage)

    def _damage(self, tail: Tail, results: Sequence[queues.ShardResult]) -> list[Finding]:
        refused = {at: offset for result in results for at, offset in result.refused.items()}
        found = _hole_findings(self._files, tail.holes) + queues.refused_findings(self._files, refused)
        return sorted(found)


def _hole_findings(files: StoreFiles, holes: Sequence[Hole]) -> list[Finding]:
    """Return the findings for the damaged ranges of the log."""
    report = Report(files.root)
    log = files.open_log()
    try:
        for hole in holes:
            base = log.base_of(hole.position)
            report.add(log.path_of(base), hole.position - base, hole.size_bytes, "hole", hole.reason)
    finally:
        log.close()
    return report.findings
