"""Plans a bounded read: determines the offset range of each queue. Used by Spark and Ray Data reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client.config import Nameservers
from jobs.committed import CommittedRanges, CommittedReader, committed_ranges
from jobs.describe import describe_topic, find_offsets
from jobs.job_errors import DataLoss
from jobs.reader import SplitsReader
from jobs.splits import Split, choose_ranges
from jobs.starting_offsets import Offsets
from jobs.times import Times, check_order, check_strategy, ending_offsets, starting_offsets
from store.logs import get_logger


@dataclass(frozen=True)
class ReadRange:
    """The parsed options that select the messages of a read; see `jobs.read.read_queue`.

    Attributes:
        starting: First offset of each queue, used if `since` is None.
        ending: End offset (exclusive) of each queue, used if `until` is None.
        since: Store time of the first message of each queue.
        until: Store time at which the read ends (exclusive).
        strategy: Start of a queue without a message stored at or after `since`: "latest", or "error".
        fail_on_data_loss: Raise DataLoss if requested offsets do not exist; otherwise log and skip them.
        committed: Skip messages of uncommitted write jobs.
        option_names: Names of the options for `starting` and `ending` in error texts.
    """

    starting: Offsets
    ending: Offsets
    since: Times | None = None
    until: Times | None = None
    strategy: str = "error"
    fail_on_data_loss: bool = True
    committed: bool = False
    option_names: tuple[str, str] = ("startingOffsets", "endingOffsets")


@dataclass(frozen=True)
class ReadPlan:
    """The result of `plan_read`.

    Attributes:
        ranges: The offset range of each queue that has messages to read.
        committed: The committed offsets for a committed read, else None.
    """

    ranges: Sequence[Split]
    committed: CommittedRanges | None

    def reader(
        self, splits: Sequence[Split], columns: Sequence[str], fail_on_data_loss: bool, map_files: bool
    ) -> SplitsReader:
        """Return a reader of `splits`, which the caller has cut from `ranges`."""
        if self.committed is None:
            return SplitsReader(splits, columns, fail_on_data_loss, map_files)
        return CommittedReader(splits, columns, fail_on_data_loss, map_files, self.committed)


def plan_read(nameservers: Nameservers | None, topic: str, wanted: ReadRange) -> ReadPlan:
    """Return the offset ranges to read from `topic`, based on the current offsets of its queues.

    Raises `OffsetsInvalid`, `OptionInvalid`, `DataLoss`, and `cluster.client.ClientError`.
    """
    since, until = wanted.since, wanted.until
    check_order(since, until)
    check_strategy(wanted.strategy)
    # Read before the queue offsets, so that a job that commits in between is not partly visible.
    committed = committed_ranges(nameservers, topic) if wanted.committed else None
    states = describe_topic(nameservers, topic)
    starting, ending = wanted.starting, wanted.ending
    if since is not None:
        found = find_offsets(nameservers, since.by_queue(states))
        starting = starting_offsets(since, states, found, wanted.strategy)
    if until is not None:
        ending = ending_offsets(states, find_offsets(nameservers, until.by_queue(states)))
    ranges, missing = choose_ranges(states, starting, ending, wanted.option_names)
    if missing and wanted.fail_on_data_loss:
        raise DataLoss(missing)
    for each in missing:
        get_logger(__name__).warning("offset_range_missing", range=str(each))
    return ReadPlan(ranges, committed)
