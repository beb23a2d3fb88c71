"""What RayMQ's brokers are asked by requests of our own, in RocketMQ's words: its brokers know no others.

PULL_RECORDS    PULL_MESSAGE: 32 messages at a time, and no generations
COMMIT_OFFSETS  UPDATE_CONSUMER_OFFSET, one a queue
SYNC_GROUP      nothing: members average by themselves over the list that the broker has of them

A broker is taken for one of RocketMQ's when it answers that it does not support the request (NotSupported).
"""

from __future__ import annotations

from collections.abc import Iterable

from actors.remoting.codes import RequestCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.headers import PullRecordsHeader, UpdateConsumerOffsetHeader
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.raymq_requests import OffsetCommit
from store.message.record import TOTAL_SIZE

PULL_MESSAGES = 32
"""A pull (RocketMQ maxTransferCountOnMessageInMemory: its brokers give no more)."""

PLAIN_LATE_MS = 5_000
"""RocketMQ's brokers look every 5 s whether a pull has waited long enough: its answer may come so late."""

_SUSPEND, _SUBSCRIPTION = 0x2, 0x4  # RocketMQ PullSysFlag


def plain_pull(wanted: PullRecordsHeader) -> RemotingCommand:
    """The PULL_MESSAGE for what a PULL_RECORDS asks."""
    header = PullMessageHeader(
        wanted.consumer_group,
        wanted.topic,
        wanted.queue_id,
        wanted.queue_offset,
        max_msg_nums=min(wanted.max_messages, PULL_MESSAGES),
        sys_flag=_SUSPEND | _SUBSCRIPTION,
        suspend_timeout_millis=wanted.wait_ms,
        subscription=wanted.subscription,
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())


def plain_commits(group: str, commits: Iterable[OffsetCommit]) -> list[RemotingCommand]:
    """The commits of several queues, one by one."""
    return [
        RemotingCommand(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(group, each.topic, each.queue_id, each.offset).to_ext(),
        )
        for each in commits
    ]


def count_records(records: Buffer) -> int:
    """How many records lie back to back, by their sizes; those that are damaged are not looked at."""
    count, position, end = 0, 0, len(records)
    while position + TOTAL_SIZE + 4 <= end:
        size_bytes = int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        count += 1
        position += max(size_bytes, 4)  # whatever it says, this ends
    return count
