"""WriteJob: the parameters of a write that all its tasks share, and the UNIQ_KEYs of its messages.

The UNIQ_KEY of a row is made of job, partition and row. Therefore a task that is retried, or that Spark runs
twice, gives each row the same UNIQ_KEY again. The key has RocketMQ's layout of 16 bytes. Its first byte, FF,
marks the message as written by a job; ordinary keys begin with the IP address of a client:

    0   1       3     6           10              16
    | FF | topic | job | partition | start time, row |

`topic` is a checksum of the topic's name. If the message is copied to another topic, the checksum does not
match there, and the copy is read like an ordinary message. The last field is the start time plus the row
number; in RocketMQ, a counter is added to the start time instead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cluster.client.config import MIB, Nameservers
from jobs.job_errors import OptionInvalid
from jobs.option_values import as_integer
from jobs.reading.write_manifest import job_mark
from store.message.message_id import UniqKeyBlock, UniqKeySequence, first_sequence
from store.message.validate import check_topic
from store.store_errors import MessageInvalid

BUFFER_BYTES = 4 * MIB
PARTITION_HEX = 8
DELAYED = 16**PARTITION_HEX // 2
"""Added to the partition in the UNIQ_KEYs of delayed rows. Spark's partition numbers are smaller."""
JOB_BYTES = 3


@dataclass(frozen=True)
class WriteColumns:
    """Names of the columns from which messages are made. None means that the messages have no such part.

    `delay` is a column or a constant, in milliseconds.
    """

    body: str = "body"
    key: str | None = None
    tag: str | None = None
    sharding_key: str | None = None
    properties: str | None = None
    delay: str | int | None = None

    def named(self) -> dict[str, str]:
        """Return {parameter name: column name} of the columns that are not None."""
        given = {
            "body": self.body,
            "key": self.key,
            "tag": self.tag,
            "sharding_key": self.sharding_key,
            "properties": self.properties,
            "delay": self.delay if isinstance(self.delay, str) else None,
        }
        return {parameter: column for parameter, column in given.items() if column is not None}

    def check(self, available: list[str]) -> None:
        """Raise `OptionInvalid` if a column is not in `available`, the columns of the data, exactly once."""
        for parameter, column in self.named().items():
            if (found := available.count(column)) != 1:
                fault = f"the name of {found} columns: rename them" if found else "not a column of the data"
                raise OptionInvalid(f"{parameter}={column!r} is {fault}: use one of {', '.join(available)}")


@dataclass(frozen=True)
class WriteJob:
    """One write of rows to `topic`.

    Attributes:
        topic: The topic to write to.
        nameservers: Addresses of the nameservers, which the tasks connect to.
        columns: The columns to write.
        buffer_bytes: Size of the rows that a task sends in one call. A task holds two such buffers in memory.
        prefix: First characters of the UNIQ_KEYs, up to the partition.
        first: Last field of the UNIQ_KEY of row 0 in each partition: the start time.
    """

    topic: str
    nameservers: Nameservers
    columns: WriteColumns
    buffer_bytes: int
    prefix: str
    first: int

    @property
    def job_id(self) -> str:
        """Return the id of the job, which is unique among the jobs of this topic."""
        return f"{self.prefix}-{self.first:X}"

    def uniq_keys(self, partition: int) -> UniqKeySequence:
        """Return the UNIQ_KEYs of the rows of a partition. Each call returns the same keys."""
        return UniqKeySequence(UniqKeyBlock(f"{self.prefix}{partition:0{PARTITION_HEX}X}", self.first))


def new_job(
    topic: str,
    nameservers: Nameservers,
    columns: WriteColumns,
    buffer_bytes: int,
    wall_ms: int,
    rng: random.Random | None = None,
) -> WriteJob:
    """Return a new job that starts at `wall_ms` (ms since the epoch).

    `rng` is the source of the random part of the job id; the default is the random source of the operating
    system. Raises `OptionInvalid` if an argument is invalid.
    """
    try:
        check_topic(topic)
    except MessageInvalid as error:
        raise OptionInvalid(str(error)) from error
    if topic.startswith("%"):
        raise OptionInvalid(
            f"topic {topic} is a retry or dead-letter topic, which jobs cannot write to: use another topic"
        )
    delay = columns.delay
    if not isinstance(delay, str | None) and (type(delay) is not int or delay < 0):
        raise OptionInvalid(f"delay={delay!r} must be a column, or an integer of at least 0, milliseconds")
    buffer_bytes = as_integer("buffer_bytes", buffer_bytes, 1)
    salt = (rng or random.SystemRandom()).randbytes(JOB_BYTES).hex().upper()
    return WriteJob(
        topic, nameservers, columns, buffer_bytes, f"{job_mark(topic)}{salt}", first_sequence(wall_ms)
    )
