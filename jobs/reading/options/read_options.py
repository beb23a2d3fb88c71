"""ReadOptions: what a read returns, parsed from the arguments of a function such as `read_queue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from cluster.client.config import Nameservers
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from cluster.client.transport.topic_route import REPLICAS, Replica
from jobs.job_errors import OffsetsInvalid, OptionInvalid
from jobs.option_values import as_choice
from jobs.reading.group_offsets import GROUP_PREFIX
from jobs.reading.options.lake_options import LakeOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.row_filters import PERMISSIVE
from jobs.reading.schema import ALL_COLUMNS
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets, OffsetsOption, parse_offsets
from jobs.reading.times import Times, check_order


@dataclass(frozen=True)
class Edge:
    """Where a read starts or ends in each queue.

    Attributes:
        option: Name of the option for offsets in error messages.
        offsets: The offset of each queue, used without a time and a group.
        times: Store times of the first messages, or None.
        group: Consumer group at whose committed offsets a read starts, or "".
    """

    option: str
    offsets: Offsets
    times: Times | None = None
    group: str = ""


def parse_start(option: str, value: OffsetsOption, times: Times | None) -> Edge:
    """Parse the option for starting offsets, which may be "group:NAME"; `times` are the parsed timestamps.

    Raises `OffsetsInvalid` and `OptionInvalid`.
    """
    if not isinstance(value, str) or not value.strip().startswith(GROUP_PREFIX):
        return Edge(option, parse_offsets(option, value, EARLIEST), times)
    group = value.strip().removeprefix(GROUP_PREFIX)
    if not group:
        raise OffsetsInvalid(f"{option}={value!r} names no group: give '{GROUP_PREFIX}NAME'")
    if times is not None:
        raise OptionInvalid(f"{option}={value!r} and {times.option} both give a start: give one of them")
    return Edge(option, Offsets(EARLIEST), None, group)


def parse_replica(value: object) -> Replica:
    """Return the value of the option `replica`. Raises `OptionInvalid`."""
    remedy = (
        "give 'master', or 'any' to read from a slave what it has confirmed if a broker has no master, which"
        " may lack the newest messages"
    )
    return cast("Replica", as_choice("replica", value, REPLICAS, remedy))


STARTING_EARLIEST = Edge("startingOffsets", Offsets(EARLIEST))
ENDING_LATEST = Edge("endingOffsets", Offsets(LATEST))


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of one read. `jobs.spark.read_queue.read_queue` documents their meanings.

    Creating it raises `OptionInvalid` if options contradict each other.
    """

    topics: TopicNames
    starting: Edge = STARTING_EARLIEST
    ending: Edge = ENDING_LATEST
    nameservers: Nameservers | None = None
    strategy: str = "error"
    columns: tuple[str, ...] = ALL_COLUMNS
    selector: MessageSelector = ALL_MESSAGES
    committed: bool = False
    fail_on_data_loss: bool = True
    map_files: bool = True
    mode: str = PERMISSIVE
    replica: Replica = "master"
    lake: LakeOptions | None = None

    def __post_init__(self) -> None:
        if self.lake is not None:
            self._check_lake(self.lake)
        if self.replica != "master":
            # A slave that lacks messages of a job may be read with a manifest that lists them all.
            if self.committed:
                raise OptionInvalid(
                    "committed=True needs the masters, because a slave may have only a part of the messages"
                    " of a committed job: read without committed=True, or with replica='master'"
                )
            if self.starting.group:
                raise OptionInvalid(
                    f"a read from the offsets of group {self.starting.group} needs the masters, because the"
                    f" offsets of a slave may be older: give another {self.starting.option}, or"
                    " replica='master'"
                )
        check_order(self.starting.times, self.ending.times)

    def _check_lake(self, lake: LakeOptions) -> None:
        if self.committed:
            raise OptionInvalid(
                "committed=True and lake: which messages of write jobs are committed is only known while the"
                " log has their manifests, so history cannot be checked: give one of the two"
            )
        if self.mode != PERMISSIVE:
            raise OptionInvalid(
                f"mode={self.mode!r} and lake: tables do not say which bodies could not be decompressed, so"
                " history cannot be checked: give a schema=, or leave the mode out"
            )
        if self.starting.group and (not lake.has_tail or self.ending.times):
            raise OptionInvalid(
                f"a read from the offsets of group {self.starting.group} ends at offsets of the log: give"
                " lake='with_tail', and offsets instead of times for its end"
            )
        if self.topics.pattern and not lake.has_tail:
            raise OptionInvalid(
                "lake='only' reads no topics by a pattern, because only the cluster knows its topics: give"
                " their names"
            )
