"""The exceptions of `jobs`. Each message tells the user how to fix the problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


class JobError(Exception):
    """Base class of the exceptions of `jobs`."""


class OffsetsInvalid(JobError, ValueError):
    """An option for offsets or times has an invalid value, or lists a queue that does not exist."""


class OptionInvalid(JobError, ValueError):
    """An option of a read or write has an invalid value."""


class JavaNotFound(JobError):
    """A Spark session needs Java, which was not found."""


class BodyInvalid(JobError):
    """The body of a message cannot be decoded, or does not fit the schema of the read."""


class FetchFailed(JobError):
    """A worker could not fetch messages: the broker did not respond, or responded with an error."""


class TopicNotEmpty(JobError):
    """A write with mode "errorifexists" found messages in its topic."""


class CommitRefused(JobError):
    """The end of a read cannot be committed as the offsets of a consumer group."""


class CommitFailed(JobError):
    """All rows of a write are stored, but its manifest may not be."""


class WriteFailed(JobError):
    """A task of a write failed, so the job is not committed."""


class ReindexFailed(JobError):
    """A re-index cannot start, or one of its tasks failed; the files of the store are unchanged or valid."""


class KeyNotFound(JobError):
    """Messages do not have the property or JSON field that is the key of an index or of a new sharding."""


class ArchiveInvalid(JobError):
    """A directory is not the complete and undamaged archive that a job needs."""


class TargetExists(JobError):
    """The path to which a job would write exists already."""


class LakeNotInstalled(JobError, ImportError):
    """The optional dependencies of Iceberg tables are not installed."""


class LakeUnavailable(JobError):
    """The catalog or the files of an Iceberg table cannot be read or written now."""


class LakeInvalid(JobError):
    """An Iceberg table is not the one that RayMQ would write, or lacks the state that RayMQ needs."""


class CommitConflict(JobError):
    """Another writer has committed to an Iceberg table since the round began; nothing was added."""


RANGES_SHOWN = 20
"""Maximum number of ranges that the message of a `DataLoss` lists."""


@dataclass(frozen=True)
class MissingRange:
    """Queue offsets [begin, end) of one queue that were requested but do not exist or cannot be read."""

    topic: str
    broker_name: str
    queue_id: int
    begin: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id} [{self.begin}, {self.end}): {self.reason}"


def merge_missing(ranges: Iterable[MissingRange]) -> list[MissingRange]:
    """Merge adjacent ranges that have the same reason; `ranges` are in offset order."""
    merged: list[MissingRange] = []
    for each in ranges:
        last = merged[-1] if merged else None
        if last is not None and each == replace(last, begin=last.end, end=each.end):
            merged[-1] = replace(last, end=each.end)
        else:
            merged.append(each)
    return merged


class DataLoss(JobError):
    """Requested messages do not exist or cannot be read; `missing` lists their offset ranges."""

    def __init__(self, missing: Sequence[MissingRange]) -> None:
        self.missing = tuple(missing)
        count = sum(max(each.end - each.begin, 0) for each in missing)
        listed = "; ".join(str(each) for each in missing[:RANGES_SHOWN])
        if len(missing) > RANGES_SHOWN:
            listed += f"; and {len(missing) - RANGES_SHOWN} more ranges"
        super().__init__(
            f"{count} requested messages are missing: {listed}. Request offsets that exist, or set"
            " failOnDataLoss=False (Ray Data: fail_on_data_loss) to read the other messages."
        )

    def __reduce__(self) -> tuple[type[DataLoss], tuple[tuple[MissingRange, ...]]]:
        # Needed because Spark pickles the error of a task: by default it would be restored from the message.
        return DataLoss, (self.missing,)
