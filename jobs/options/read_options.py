"""ReadOptions: what a read returns, parsed from the arguments of a function such as `read_queue`."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.client.config import Nameservers
from jobs.options.topics import Topics
from jobs.schema import ALL_COLUMNS
from jobs.starting_offsets import EARLIEST, LATEST, Offsets
from jobs.times import Times, check_order, check_strategy


@dataclass(frozen=True)
class Edge:
    """Where a read starts or ends in each queue: at a time if there is one, else at an offset.

    `option` is the name of the option for offsets in error messages.
    """

    option: str
    offsets: Offsets
    times: Times | None = None


STARTING_EARLIEST = Edge("startingOffsets", Offsets(EARLIEST))
ENDING_LATEST = Edge("endingOffsets", Offsets(LATEST))


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of one read. `jobs.read.read_queue` documents their meanings.

    Creating it raises `OptionInvalid` if options contradict each other.
    """

    topics: Topics
    starting: Edge = STARTING_EARLIEST
    ending: Edge = ENDING_LATEST
    nameservers: Nameservers | None = None
    strategy: str = "error"
    columns: tuple[str, ...] = ALL_COLUMNS
    committed: bool = False
    fail_on_data_loss: bool = True
    map_files: bool = True

    def __post_init__(self) -> None:
        check_order(self.starting.times, self.ending.times)
        check_strategy(self.strategy)
