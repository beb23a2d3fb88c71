"""Plans a bounded read: determines the offset range of each queue. Used by Spark and Ray Data reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.client import Admin
from jobs.job_errors import DataLoss
from jobs.reading.committed import CommittedRanges, committed_ranges
from jobs.reading.describe import states_of
from jobs.reading.group_offsets import GroupRead, group_offsets, remember_read
from jobs.reading.log_epochs import Epochs, epochs_after
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.reader import AnySplit, SplitsReader
from jobs.reading.row_filters import PERMISSIVE, DecodableRows, RowFilter, SelectedRows
from jobs.reading.splits import QueueState, Split, choose_ranges, cut_splits
from jobs.reading.starting_offsets import Offsets, resolve
from jobs.reading.table_files import TableSplit, cut_tables
from jobs.reading.times import ending_offsets, starting_offsets
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue


@dataclass(frozen=True)
class ReadPlan:
    """The result of `plan_read`.

    Attributes:
        options: The options of the read.
        ranges: The offset range of each queue that has messages to read.
        ends: The end (exclusive) of the read in each queue in which it advances.
        committed: The committed offsets for a committed read, else None.
        epochs: The epoch of the log of each queue.
        tables: The files of the tables of the topics, for a read of history.
        selected: The rows of the log that the read returns; the tables have such an expression of their own.
    """

    options: ReadOptions
    ranges: Sequence[Split]
    ends: Mapping[MessageQueue, int] = field(default_factory=dict)
    committed: CommittedRanges | None = None
    epochs: Epochs = field(default_factory=dict)
    tables: Sequence[TableSplit] = ()
    selected: SelectedRows | None = None

    @property
    def message_count(self) -> int:
        """Number of messages in `ranges`, and about that in `tables`."""
        return sum(each.message_count for each in self.ranges) + self._row_count

    @property
    def _row_count(self) -> int:
        return sum(each.message_count for each in self.tables)

    def splits(self, min_partitions: int, max_records_per_partition: int | None = None) -> list[AnySplit]:
        """Cut the tables and the ranges into splits, history first; see `cut_splits` and `cut_tables`."""
        of_history = -(-min_partitions * self._row_count // max(self.message_count, 1))
        of_log = max(min_partitions - of_history, 1) if self.tables else min_partitions
        return [
            *cut_tables(self.tables, of_history, max_records_per_partition),
            *cut_splits(self.ranges, of_log, max_records_per_partition),
        ]

    def remember(self, result: object) -> None:
        """Let `commit_read` commit the end of this read for `result`, if it starts at a group's offsets."""
        options = self.options
        if options.starting.group:
            read = GroupRead(
                options.nameservers, options.starting.group, self.ends, options.committed, self.epochs
            )
            remember_read(result, read)

    def reader(self, splits: Sequence[AnySplit]) -> SplitsReader:
        """Return a reader of `splits`, which the caller has cut from `ranges` and `tables`."""
        return reader_of(self.options, splits, self.committed, self.selected)


def reader_of(
    options: ReadOptions,
    splits: Sequence[AnySplit] = (),
    committed: CommittedRanges | None = None,
    selected: SelectedRows | None = None,
) -> SplitsReader:
    """Return a reader of `splits` for a read with these options."""
    filters: tuple[RowFilter, ...] = tuple(each for each in (committed, selected) if each is not None)
    if options.mode != PERMISSIVE:
        filters += (DecodableRows(options.mode),)
    return SplitsReader(
        splits,
        options.columns,
        options.fail_on_data_loss,
        options.map_files,
        options.selector,
        filters,
    )


def plan_read(options: ReadOptions) -> ReadPlan:
    """Return the offset ranges to read, based on the current offsets of the queues.

    Raises `OffsetsInvalid`, `DataLoss`, and `cluster.client.ClientError`.
    """
    with Admin(options.nameservers) as admin:
        topics = options.topics.find(admin)
        # Read before the queue offsets, so that a job that commits in between is not partly visible.
        committed = committed_ranges(options.nameservers, topics) if options.committed else None
        states = states_of(admin, *topics, replica=options.replica)
        starting, ending = find_start(admin, options, states), find_end(admin, options, states)
    names = options.starting.option, options.ending.option
    ranges, missing = choose_ranges(states, starting, ending, names)
    if missing and options.fail_on_data_loss:
        raise DataLoss(missing)
    for each in missing:
        get_logger(__name__).warning("offset_range_missing", range=str(each))
    return ReadPlan(options, ranges, ends_of(states, starting, ending), committed, epochs_after(states, {}))


def find_start(admin: Admin, options: ReadOptions, states: Sequence[QueueState]) -> Offsets:
    """Return the offsets at which a read of the queues `states` starts.

    Raises `OffsetsInvalid`, and `cluster.client.ClientError`.
    """
    if options.starting.group:
        return group_offsets(admin, options.starting.group, states)
    times = options.starting.times
    if times is None:
        return options.starting.offsets
    found = admin.offsets_for_times(times.by_queue(states))
    return starting_offsets(times, states, found, options.strategy)


def ends_of(states: Sequence[QueueState], starting: Offsets, ending: Offsets) -> dict[MessageQueue, int]:
    """Return the end of the read in each queue in which it advances."""
    ends = {}
    for state in states:
        wanted = (each.wanted(state.queue) for each in (starting, ending))
        begin, end = (resolve(each, state.min_offset, state.max_offset) for each in wanted)
        if begin < (end := min(end, state.max_offset)):
            ends[state.queue] = end
    return ends


def find_end(admin: Admin, options: ReadOptions, states: Sequence[QueueState]) -> Offsets:
    """Return the offsets at which a read of the queues `states` ends. Raises as `find_start` does."""
    times = options.ending.times
    if times is None:
        return options.ending.offsets
    return ending_offsets(states, admin.offsets_for_times(times.by_queue(states)))
