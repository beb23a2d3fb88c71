"""Plan a bounded read: from the options to the range of each queue. Shared by Spark and Ray Data."""

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
    """The parsed options that determine which messages a read returns; see `jobs.read.read_queue`."""

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
    """The range of each queue that has messages to read, and the committed offsets of jobs if they matter."""

    ranges: Sequence[Split]
    committed: CommittedRanges | None

    def reader(
        self, splits: Sequence[Split], columns: Sequence[str], fail_on_data_loss: bool, map_files: bool
    ) -> SplitsReader:
        """Return the reader of `splits`, into which the ranges were cut."""
        if self.committed is None:
            return SplitsReader(splits, columns, fail_on_data_loss, map_files)
        return CommittedReader(splits, columns, fail_on_data_loss, map_files, self.committed)


def plan_read(nameservers: Nameservers | None, topic: str, wanted: ReadRange) -> ReadPlan:
    """Return the ranges of `topic` to read, with the offsets of this moment.

    Raises `OffsetsInvalid`, `OptionInvalid`, `DataLoss`, and `cluster.client.ClientError`.
    """
    since, until = wanted.since, wanted.until
    check_order(since, until)
    check_strategy(wanted.strategy)
    # Before the offsets: a job that is committed in between is then not visible, instead of partly.
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
