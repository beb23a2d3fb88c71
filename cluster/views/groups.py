"""Views of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.views.offsets import QueueProgress, progress_in
from store.message.validate import RETRY_TOPIC_PREFIX, is_system_group

if TYPE_CHECKING:
    from actors.remoting.bodies.connected import ConsumerConnection
    from cluster.client import Admin


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The progress of a group in all of its topics; `tps` is that of the last minute."""

    group: str
    topics: Sequence[str]
    lag: int
    in_flight: int
    tps: float


@dataclass(frozen=True, slots=True)
class Member:
    """An online member of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group.

    Attributes:
        tps: Messages consumed per second in the last minute.
        retries: Messages that wait in the retry topic.
        dead_letters: Pending dead letters.
        queues: Progress in each queue.
        subscriptions: Filter expression by topic, of the online members.
        settings: Settings under RocketMQ's names.
    """

    group: str
    lag: int
    tps: float
    retries: int
    dead_letters: int
    queues: Sequence[QueueProgress]
    members: Sequence[Member]
    subscriptions: Mapping[str, str]
    settings: Mapping[str, Any]


def list_groups(admin: Admin, *, include_system: bool = False) -> list[GroupSummary]:
    """Return all groups, without those of RocketMQ's tools unless `include_system`. Raises `ClientError`."""
    progress = admin.all_group_stats()
    found = []
    for name in admin.groups():
        if is_system_group(name) and not include_system:
            continue
        stats = progress.get(name)
        topics = sorted({queue.topic for queue in stats.offsets}) if stats else []
        figures = (stats.lag, stats.in_flight, stats.consume_tps) if stats else (0, 0, 0.0)
        found.append(GroupSummary(name, topics, *figures))
    return found


def describe_group(admin: Admin, group: str, topic: str | None = None) -> GroupDetails | None:
    """Return the details of a group, in one topic or in all; None if it does not exist.

    Raises `ClientError`.
    """
    config = admin.groups().get(group)
    if config is None:
        return None
    stats, online = admin.group_stats(group, topic), admin.group_connection(group)
    return GroupDetails(
        group,
        stats.lag,
        stats.consume_tps,
        admin.group_stats(group, f"{RETRY_TOPIC_PREFIX}{group}").lag,
        admin.dead_letter_count(group),
        progress_in(stats),
        _members(online),
        {topic: wanted.sub_string for topic, wanted in online.subscriptions.items()} if online else {},
        config.to_json(),
    )


def members_of(admin: Admin, group: str) -> list[Member]:
    """Return the online members of a group. Raises `ClientError`."""
    return _members(admin.group_connection(group))


def _members(online: ConsumerConnection | None) -> list[Member]:
    return [
        Member(each.client_id, each.client_addr, each.language, each.version)
        for each in (online.connections if online else ())
    ]
