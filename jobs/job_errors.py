"""What a job refuses, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class JobError(Exception):
    """A job cannot be done as it was asked for."""


class OffsetsInvalid(JobError, ValueError):
    """An offsets option that is no offset, or names a topic, broker or queue that is not read."""


class OptionInvalid(JobError, ValueError):
    """An option of a read with a value that it cannot have."""


class JavaNotFound(JobError):
    """Spark was asked for where no Java can run it."""


class FetchFailed(JobError):
    """A worker could not fetch its split: the broker did not answer, or answered with an error."""


@dataclass(frozen=True)
class MissingRange:
    """Queue offsets [begin, end) of one queue that were asked for and are not there."""

    topic: str
    broker_name: str
    queue_id: int
    begin: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}/{self.queue_id} [{self.begin}, {self.end}): {self.reason}"


class DataLoss(JobError):
    """Offsets that were asked for are not in the queues; `.missing` lists them."""

    def __init__(self, missing: Sequence[MissingRange]) -> None:
        self.missing = tuple(missing)
        count = sum(max(each.end - each.begin, 0) for each in missing)
        listed = "; ".join(str(each) for each in missing)
        super().__init__(
            f"{count} messages that were asked for are missing: {listed}. Ask for offsets that exist, or set"
            " failOnDataLoss=False to read what is there."
        )

    def __reduce__(self) -> tuple[type[DataLoss], tuple[tuple[MissingRange, ...]]]:
        # A task raises it in a Spark worker: the default pickling would call it with the message.
        return DataLoss, (self.missing,)
