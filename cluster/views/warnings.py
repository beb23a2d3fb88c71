"""Warnings about a cluster: what an operator should look at, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.counted import counted
from cluster.views.samples import ClusterState, GroupSample
from store.message.validate import RETRY_TOPIC_PREFIX

BEHIND_MS = 60_000
"""Groups that are further behind are reported."""
DISK_FULL = 0.75
"""Used part of a disk above which it is reported; RocketMQ deletes old files early above it."""
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning; `page` is the path of the page that shows more."""

    level: Literal["warning", "error"]
    text: str
    page: str


def notices(sample: ClusterState, now_ms: int) -> Sequence[Notice]:
    """Return the warnings for a sample, the most severe first. `now_ms`: milliseconds since the epoch."""
    if not sample.at_ms:
        return []
    found = [Notice("error", problem, "brokers") for problem in sample.problems]
    for broker in sample.brokers or ():
        load = broker.load
        if load is None:
            continue
        if load.disk_used is not None and load.disk_used >= DISK_FULL:
            text = f"the disk of {broker.broker} is {load.disk_used:.0%} full: it will delete old files early"
            found.append(Notice("warning", text, f"brokers/{broker.broker}"))
        if load.is_bare_majority:
            voters = f"{load.raft_active_voters} of {load.raft_voters} replicas"
            text = (
                f"{broker.broker} runs on a bare majority, {voters}: it does not survive the loss of another"
            )
            found.append(Notice("warning", text, f"brokers/{broker.broker}"))
    dead = sum(each.load.dead_letters or 0 for each in sample.brokers or () if each.load is not None)
    if dead:
        found.append(
            Notice("warning", f"{counted(dead, 'dead letter')} to be resent or purged", "dead-letters")
        )
    late = [
        (now_ms - group.behind_since_ms, name, group)
        for name, group in (sample.groups or {}).items()
        if group.behind_since_ms is not None and now_ms - group.behind_since_ms >= BEHIND_MS
    ]
    for behind_ms, name, group in sorted(late, key=lambda each: -each[0]):
        found.append(Notice("warning", _late(name, group, behind_ms), f"groups/{name}"))
    return found[:SHOWN]


def _late(name: str, group: GroupSample, behind_ms: int) -> str:
    topics = [
        topic for topic, each in group.topics.items() if each.lag and not topic.startswith(RETRY_TOPIC_PREFIX)
    ]
    where = ", ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")
    return f"{name} is {_span(behind_ms // 1000)} behind on {where}: {_messages(group.lag)}"


def _messages(lag: int | None) -> str:
    return "an unknown number of messages" if lag is None else counted(lag, "message")


def _span(seconds: int) -> str:
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size_s:
            return f"{seconds // size_s} {unit}"
    return f"{seconds} s"
