"""RocketMQ requests that replace RayMQ's own requests when the peer is an Apache RocketMQ broker.

    PULL_RECORDS    PULL_MESSAGE: up to 32 messages, without generations
    COMMIT_OFFSETS  UPDATE_CONSUMER_OFFSET: one request for each queue
    SYNC_GROUP      no replacement: each member computes the assignment from the broker's list of members

The client falls back to these requests if a broker responds that it does not support RayMQ's (NotSupported).
"""

from __future__ import annotations

from collections.abc import Iterable

from actors.wire.codes import RequestCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.headers import PullRecordsHeader, UpdateConsumerOffsetHeader
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.raymq_requests import OffsetCommit
from store.message.record import TOTAL_SIZE

PULL_MESSAGES = 32
"""Maximum number of messages that RocketMQ brokers return to one pull (maxTransferCountOnMessageInMemory)."""

PLAIN_LATE_MS = 5_000
"""RocketMQ brokers check held pulls every 5 s, so the response to a long poll may be late by this much."""

_SUSPEND, _SUBSCRIPTION = 0x2, 0x4  # RocketMQ PullSysFlag


def plain_pull(wanted: PullRecordsHeader) -> RemotingCommand:
    """Return the PULL_MESSAGE request that corresponds to a PULL_RECORDS request."""
    header = PullMessageHeader(
        wanted.consumer_group,
        wanted.topic,
        wanted.queue_id,
        wanted.queue_offset,
        max_msg_nums=min(wanted.max_messages, PULL_MESSAGES),
        sys_flag=_SUSPEND | _SUBSCRIPTION,
        suspend_timeout_millis=wanted.wait_ms,
        expression_type=wanted.expression_type,
        subscription=wanted.subscription,
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext())


def plain_commits(group: str, commits: Iterable[OffsetCommit]) -> list[RemotingCommand]:
    """Return one UPDATE_CONSUMER_OFFSET request for each of `commits`."""
    return [
        RemotingCommand(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            UpdateConsumerOffsetHeader(group, each.topic, each.queue_id, each.offset).to_ext(),
        )
        for each in commits
    ]


def count_records(records: Buffer) -> int:
    """Return the number of consecutive records, using only their size fields."""
    count, position, end = 0, 0, len(records)
    while position + TOTAL_SIZE + 4 <= end:
        size_bytes = int.from_bytes(records[position + TOTAL_SIZE : position + TOTAL_SIZE + 4], "big")
        count += 1
        position += max(size_bytes, 4)  # at least 4, so that the loop ends even if a size is damaged
    return count
