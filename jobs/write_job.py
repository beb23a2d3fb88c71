"""WriteJob: what all tasks of one write know, and the UNIQ_KEYs of its messages. No I/O, no Spark, no Ray.

A task that is retried, or that Spark runs twice at a time, gives each row the same UNIQ_KEY again, because
the key is made of job, partition and row. It has RocketMQ's layout, with an impossible address (255.…) that
marks the message as written by a job:

    0   1       3     6           10              16
    | FF | topic | job | partition | start time, row |

`topic` is a checksum of the topic's name, so that a copy of the message in another topic carries no mark
there. The row is added to the start time as the counter of RocketMQ's keys is.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from cluster.client.config import MIB, Nameservers
from jobs.job_errors import OptionInvalid
from store.message.message_id import UniqKeyBlock, UniqKeySequence, first_sequence
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

BUFFER_BYTES = 16 * MIB
PARTITION_HEX = 8
PARTITIONS_MAX = 16**PARTITION_HEX
JOB_BYTES = 3


def job_mark(topic: str) -> str:
    """Return the first characters of the UNIQ_KEYs of all messages that jobs write to `topic`."""
    return f"FF{zlib.crc32(topic.encode()) & 0xFFFF:04X}"


@dataclass(frozen=True)
class WriteColumns:
    """Names of the columns of the rows to write; None means that the messages have no such part."""

    body: str = "body"
    key: str | None = None
    tag: str | None = None
    sharding_key: str | None = None

    def named(self) -> dict[str, str]:
        """Return the columns that are used, by the name of their parameter."""
        given = {"body": self.body, "key": self.key, "tag": self.tag, "sharding_key": self.sharding_key}
        return {parameter: column for parameter, column in given.items() if column is not None}

    def check(self, available: list[str]) -> None:
        """Raise `OptionInvalid` if a column is not among the `available` ones."""
        for parameter, column in self.named().items():
            if column not in available:
                raise OptionInvalid(
                    f"{parameter}={column!r} is not a column of the data; it has {', '.join(available)}"
                )


@dataclass(frozen=True)
class WriteJob:
    """One write of rows to `topic`.

    Attributes:
        topic: The topic.
        nameservers: Addresses of the nameservers, for the tasks.
        columns: The columns to write.
        buffer_bytes: Size of the rows that a task sends with one call; it holds twice as much in memory.
        prefix: First part of the UNIQ_KEYs, up to the partition.
        first: Last part of the UNIQ_KEY of row 0 of each partition.
    """

    topic: str
    nameservers: Nameservers
    columns: WriteColumns
    buffer_bytes: int
    prefix: str
    first: int

    @property
    def job_id(self) -> str:
        """Return an id that no other job of this topic has."""
        return f"{self.prefix}-{self.first:X}"

    def uniq_keys(self, partition: int) -> UniqKeySequence:
        """Return the UNIQ_KEYs of the rows of a partition, the same ones at every call."""
        return UniqKeySequence(UniqKeyBlock(f"{self.prefix}{partition:0{PARTITION_HEX}X}", self.first))


def new_job(
    topic: str,
    nameservers: Nameservers,
    columns: WriteColumns,
    buffer_bytes: int,
    wall_ms: int,
    rng: random.Random | None = None,
) -> WriteJob:
    """Return a job that starts at `wall_ms`. Raises `OptionInvalid` if an argument is invalid."""
    try:
        check_topic(topic)
    except MessageInvalid as error:
        raise OptionInvalid(str(error)) from error
    if topic.startswith("%"):
        raise OptionInvalid(
            f"{topic} is a retry or dead-letter topic, which only consumers write: use another"
        )
    if buffer_bytes < 1:
        raise OptionInvalid(f"buffer_bytes={buffer_bytes} must be at least 1")
    salt = (rng or random.SystemRandom()).randbytes(JOB_BYTES).hex().upper()
    return WriteJob(
        topic, nameservers, columns, buffer_bytes, f"{job_mark(topic)}{salt}", first_sequence(wall_ms)
    )
