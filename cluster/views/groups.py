"""Views of consumer groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.views.offsets import QueueProgress, known_sum, progress_in
from store.message.validate import RETRY_TOPIC_PREFIX, is_system_group

if TYPE_CHECKING:
    from actors.wire.bodies.connected import ConsumerConnection
    from actors.wire.bodies.progress import ConsumeStats
    from cluster.client import Admin


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The progress of a group in all of its topics.

    Attributes:
        lag: Messages that the group has not acknowledged; None if it is unknown in one queue, or if no
            broker knows of a topic that the group consumes.
        in_flight: Messages that are delivered but not acknowledged; None if it is unknown.
        tps: Messages consumed per second in the last minute.
        behind_since_ms: Store time of the last message consumed in the queue that is furthest behind, in
            milliseconds since the epoch; None without lag, or if it is unknown.
    """

    group: str
    topics: Sequence[str]
    lag: int | None
    in_flight: int | None
    tps: float | None
    behind_since_ms: int | None

    @property
    def text(self) -> str:
        """The names of the group and its topics, in which a filter looks."""
        return " ".join((self.group, *self.topics))


@dataclass(frozen=True, slots=True)
class OnlineMember:
    """An online member of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A group.

    Attributes:
        lag: Messages that the group has not acknowledged; None if it is unknown in one queue.
        tps: Messages consumed per second in the last minute.
        retries: Messages that wait in the retry topic.
        dead_letters: Pending dead letters.
        queues: Progress in each queue.
        subscriptions: Filter expression by topic, of the online members.
        settings: Settings under RocketMQ's names.
    """

    group: str
    lag: int | None
    tps: float
    retries: int
    dead_letters: int
    queues: Sequence[QueueProgress]
    members: Sequence[OnlineMember]
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
        if stats is None or not stats.offsets:
            found.append(GroupSummary(name, [], None, None, None, None))
            continue
        topics = sorted({queue.topic for queue in stats.offsets})
        pulled = known_sum(each.in_flight for each in stats.offsets.values())
        figures = (stats.lag, pulled, stats.consume_tps, behind_since_ms(stats))
        found.append(GroupSummary(name, topics, *figures))
    return found


def behind_since_ms(stats: ConsumeStats) -> int | None:
    """Return `OffsetWrapper.behind_since_ms` of the queue that is furthest behind, or None.

    Retry topics do not count: their messages wait on purpose.
    """
    times_ms = [
        since_ms
        for queue, offset in stats.offsets.items()
        if (since_ms := offset.behind_since_ms) is not None and not queue.topic.startswith(RETRY_TOPIC_PREFIX)
    ]
    return min(times_ms, default=None)


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
        admin.group_stats(group, f"{RETRY_TOPIC_PREFIX}{group}").lag or 0,
        admin.dead_letter_count(group),
        progress_in(stats),
        _members(online),
        {topic: wanted.sub_string for topic, wanted in online.subscriptions.items()} if online else {},
        config.to_json(),
    )


def members_of(admin: Admin, group: str) -> list[OnlineMember]:
    """Return the online members of a group. Raises `ClientError`."""
    return _members(admin.group_connection(group))


def _members(online: ConsumerConnection | None) -> list[OnlineMember]:
    return [
        OnlineMember(each.client_id, each.client_addr, each.language, each.version)
        for each in (online.connections if online else ())
    ]
