"""A round: the messages between the offsets of a table and the confirmed ends of its queues, in one commit.

state.offsets ──► plan ──► tasks (Ray, Spark, or threads of this process) ──► files ──► commit
     ▲                                                                                    │
     └──────────── a conflict, a failure or a kill: the next round begins again ◄─────────┘
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Protocol

from cluster.client.read_epoch import ReadEpoch
from jobs.job_errors import CommitConflict, DataLoss, FetchFailed, LakeInvalid, MissingRange
from jobs.lake.lake_table import LakeGap, LakeState, LakeTable, merge_gaps
from jobs.lake.write_rows import FILE_BYTES, Decoding, FilesOf, WriteTask, WrittenRows, delete_files
from jobs.reading.log_epochs import Epochs, epochs_after, gone_back
from jobs.reading.splits import QueueState, Split, StoreLocation, cut_splits
from store.common.logs import get_logger
from store.consumequeue.unit import UNIT_BYTES
from store.message.message_queue import MessageQueue
from store.store_errors import StoreError
from store.tools.info import store_info

ROUND_MESSAGES_MAX = 20_000_000
"""Messages of one round: what a failure repeats. The next round continues."""
TASK_MESSAGES_MIN = 100_000
THREADS_MAX = 4

_log = get_logger(__name__)


class Engine(Protocol):
    """Runs the tasks of a round."""

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at the same time."""

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        """Run all tasks. Return their results in any order. Raises the error of a task that failed."""


class ThreadEngine:
    """Runs tasks in threads of this process, whose work is mostly in compiled code."""

    parallelism = min(os.cpu_count() or 1, THREADS_MAX)

    def run(self, tasks: Sequence[WriteTask]) -> list[WrittenRows]:
        """Run all tasks."""
        with ThreadPoolExecutor(self.parallelism, "lake-writer") as threads:
            return list(threads.map(WriteTask.run, tasks))


@dataclass(frozen=True)
class RoundOptions:
    """What a round reads and writes.

    Attributes:
        has_broker: The queues are served by brokers; False for a store without one.
        accept_loss: List deleted and damaged messages as gaps; if False, fail instead.
        messages_max: Maximum number of messages of the round.
        file_bytes: The size at which a file is complete.
    """

    has_broker: bool = True
    accept_loss: bool = True
    messages_max: int = ROUND_MESSAGES_MAX
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True)
class RoundPlan:
    """What a round writes.

    Attributes:
        ranges: The offsets of each queue, not cut yet.
        ends: The offsets that the table has after the round, for all of its queues.
        missing: Offsets that were deleted before they were written.
        remaining: Number of confirmed messages that are left for later rounds.
        ahead: The queues of which the table has more than their log, which was restored from a copy or lost
            its end; they are left alone.
    """

    ranges: Sequence[Split]
    ends: Mapping[MessageQueue, int]
    missing: Sequence[MissingRange] = ()
    remaining: int = 0
    ahead: Sequence[MessageQueue] = ()

    @property
    def message_count(self) -> int:
        """Number of offsets to read."""
        return sum(each.message_count for each in self.ranges)


@dataclass(frozen=True)
class RoundResult:
    """The result of a round: rows and files that were added, gaps that it found, and the table's state.

    `remaining` and `ahead` are those of the plan; `errors` bodies cannot be decoded.
    """

    rows: int
    files: int
    gaps: Sequence[LakeGap]
    remaining: int
    ahead: Sequence[MessageQueue]
    state: LakeState
    errors: int = 0


def plan_round(
    queues: Iterable[QueueState], state: LakeState, messages_max: int = ROUND_MESSAGES_MAX
) -> RoundPlan:
    """Return what a round writes: from the offsets of the table to the confirmed ends of the queues.

    If there are more than `messages_max` messages, each queue gets its share.
    """
    ends, missing, ahead, whole = dict(state.offsets), [], [], []
    for each in sorted(queues, key=lambda one: one.queue):
        reached = state.offsets.get(each.queue, 0)
        if reached > each.max_offset:
            ahead.append(each.queue)
            continue
        begin = max(reached, each.min_offset)
        if begin > reached:
            missing.append(MissingRange(*each.queue, reached, begin, "before the first offset of the queue"))
        ends[each.queue] = begin
        if begin < each.max_offset:
            whole.append(Split(each.queue, begin, each.max_offset, each.location))
    total = sum(each.message_count for each in whole)
    ranges = [_share(each, total, messages_max) for each in whole]
    ends.update({each.queue: each.end for each in ranges})
    return RoundPlan(ranges, ends, missing, total - sum(each.message_count for each in ranges), ahead)


def _share(split: Split, total: int, messages_max: int) -> Split:
    count = split.message_count if total <= messages_max else -(-split.message_count * messages_max // total)
    return Split(split.queue, split.begin, split.begin + count, split.location)


def cut_tasks(ranges: Sequence[Split], parallelism: int) -> list[tuple[Split, ...]]:
    """Return the splits of each task: neighbours of one node, in tasks of about equal size."""
    tasks: list[tuple[Split, ...]] = []
    by_node = sorted(ranges, key=lambda each: (each.location.node_ip, each.queue))
    for _, group in groupby(by_node, key=lambda each: each.location.node_ip):
        of_node = list(group)
        total = sum(each.message_count for each in of_node)
        count = max(min(parallelism, total // TASK_MESSAGES_MIN), 1)
        splits = cut_splits(of_node, count)
        begins = accumulate((each.message_count for each in splits), initial=0)
        shares = groupby(zip(begins, splits, strict=False), key=lambda each: each[0] * count // total)
        tasks += [tuple(split for _, split in share) for _, share in shares]
    return tasks


def write_round(
    table: LakeTable,
    find_queues: Callable[[], Sequence[QueueState]],
    engine: Engine | None = None,
    options: RoundOptions | None = None,
) -> RoundResult:
    """Add the confirmed messages of a topic that its table does not have, in one commit.

    Args:
        table: The table of the topic.
        find_queues: Returns the queues with their confirmed offsets (`describe_topic`, `stored_queues`).
        engine: Runs the tasks; threads of this process by default.
        options: What to read and write.

    Raises:
        CommitConflict: Another writer has committed meanwhile; nothing was added.
        DataLoss: Messages are lost, and `accept_loss` is False; nothing was added.
        FetchFailed, LakeUnavailable, LakeInvalid: A broker, the catalog or a file cannot be used.
    """
    engine, options = engine or ThreadEngine(), options or RoundOptions()
    state = table.state()
    queues = find_queues()
    plan = plan_round(queues, state, options.messages_max)
    epochs = _epochs_of(state)
    if gone := gone_back(queues, state.offsets, epochs):
        raise _other_past(table, gone)
    for queue in plan.ahead:
        _log.error("lake_ahead_of_log", topic=table.topic, queue=str(queue), offset=state.offsets[queue])
    errors = table.errors_table() if table.bodies else None
    errors_state = errors.state() if errors else LakeState()
    written = _write(table, errors, errors_state, plan, engine, options)
    missing, epochs = [*plan.missing, *written.lost], epochs_after(queues, epochs)
    try:
        if missing:
            _check_missing(missing, options, gone_back(find_queues(), plan.ends, epochs))
        if errors and written.error_files:
            # First, because a round that fails after this is repeated, and leaves these rows out then.
            errors.commit(written.error_files, plan.ends, (), errors_state)
        gaps = merge_gaps(LakeGap(each.broker_name, each.queue_id, each.begin, each.end) for each in missing)
        if plan.ends != state.offsets:
            saved = {queue.broker_name: (each.address, each.id) for queue, each in epochs.items()}
            state = table.commit(
                written.files, plan.ends, merge_gaps([*state.gaps, *gaps]), state, epochs=saved
            )
            _log.info(
                "lake_round_committed", topic=table.topic, rows=written.rows, snapshot=state.snapshot_id
            )
    except (CommitConflict, DataLoss, FetchFailed):
        delete_files(table.io, written.files)
        raise
    for gap in gaps:
        _log.error("lake_gap_found", topic=table.topic, **gap._asdict())
    return RoundResult(
        written.rows, len(written.files), gaps, plan.remaining, plan.ahead, state, written.errors
    )


def _write(
    table: LakeTable,
    errors: LakeTable | None,
    errors_state: LakeState,
    plan: RoundPlan,
    engine: Engine,
    options: RoundOptions,
) -> WrittenRows:
    target, decoding = FilesOf.table(table, options.file_bytes), None
    if table.bodies and errors:
        decoding = Decoding(table.bodies, FilesOf.table(errors), errors_state.offsets)
    splits = cut_tasks(plan.ranges, engine.parallelism)
    tasks = [WriteTask(each, target, options.has_broker, decoding) for each in splits]
    return sum(engine.run(tasks) if tasks else (), WrittenRows())


def _check_missing(
    missing: Sequence[MissingRange], options: RoundOptions, gone: Mapping[MessageQueue, int]
) -> None:
    """Raise an error if messages are missing that must not be, or will have others in their place."""
    if not options.accept_loss:
        raise DataLoss(missing)
    if gone:
        raise FetchFailed(f"the log of {min(gone)} went back during the round: begin again")


def _epochs_of(state: LakeState) -> Epochs:
    """Return the epochs in which the queues of a table were read; a broker has one for all of its queues."""
    known = ((queue, state.epochs.get(queue.broker_name)) for queue in state.offsets)
    return {queue: ReadEpoch(*epoch) for queue, epoch in known if epoch}


def _other_past(table: LakeTable, gone: Mapping[MessageQueue, int]) -> LakeInvalid:
    for queue, end in gone.items():
        _log.error("lake_log_went_back", topic=table.topic, queue=str(queue), offset=end)
    queue, end = min(gone.items())
    return LakeInvalid(
        f"the table {table.name} has messages of {len(gone)} queues that their log has lost, because a store"
        f" was restored from a copy or lost its end: of {queue} from offset {end} on. New messages may have"
        " these offsets, so nothing is added: roll the table back to a snapshot with lower offsets"
        " (Iceberg's rollback_to_snapshot), or give the lake another namespace for a new table"
    )


def stored_queues(store: Path, topic: str) -> list[QueueState]:
    """Return the queues of a topic in the store at `store`, which no broker serves.

    Raises `LakeInvalid` if there is no such store, a broker has it open, or it has no such topic.
    """
    try:
        info = store_info(store)
    except StoreError as error:
        raise LakeInvalid(str(error)) from error
    name = info.name
    if name is None:
        raise LakeInvalid(f"{store} has no raymq.json: serve it once with a broker that adopts it")
    if info.writer_pid is not None:
        raise LakeInvalid(
            f"process {info.writer_pid} serves the store {store}: write its topics without a store"
        )
    sizes = name.commit_log_file_bytes, name.consume_queue_file_bytes // UNIT_BYTES
    location = StoreLocation("", str(store.absolute()), name.store_id, *sizes)
    found = [
        QueueState(
            MessageQueue(topic, name.identity.broker, each.queue_id),
            each.min_offset,
            each.max_offset,
            location,
        )
        for each in info.queues
        if each.topic == topic
    ]
    if not found:
        topics = ", ".join(sorted({each.topic for each in info.queues})[:10])
        raise LakeInvalid(f"the store {store} has no queue of topic {topic}; it has {topics or 'no topic'}")
    return found
