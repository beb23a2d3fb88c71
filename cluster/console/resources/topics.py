"""Resources of topics: the list, one topic with its queues and groups, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import msgspec

from cluster.client import Admin
from cluster.console.history import Curves
from cluster.console.resources.lists import Listing, Page, Size, listing
from cluster.console.rights import Rights
from cluster.console.routes import Name, Prepared, Short, plan, route
from cluster.console.sampler import Sampler
from cluster.counted import counted
from cluster.views import topics as views
from cluster.views.lite import LiteTopics, list_lite_topics
from cluster.views.samples import GroupSample
from cluster.views.topics import TopicDetails, TopicProgress, TopicSummary, plan_topic
from store.common.clock import Clock
from store.message.validate import check_topic

Queues = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
ReadQueues = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
SORTABLE = ("topic", "kind", "queues", "messages", "put_tps", "lag")


@dataclass(frozen=True, slots=True)
class GroupOfTopic:
    """A group and its lag in one topic; None if it is unknown."""

    group: str
    lag: int | None
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class TopicRow(TopicSummary):
    """A topic in the list, with the highest lag of a group. What was not sampled yet is None.

    `stale_ms` is the age of messages and rate if they are older than `STALE_MS`, else None.
    """

    messages: int | None
    put_tps: float | None
    stale_ms: int | None
    groups: Sequence[GroupOfTopic] | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """One topic. `curves` are messages per second and stored messages, or None if they are not kept."""

    details: TopicDetails
    progress: TopicProgress
    messages: int
    groups: Sequence[GroupOfTopic]
    curves: Curves | None


class TopicResources:
    """The topics."""

    def __init__(self, sampler: Sampler, rights: Rights, clock: Clock) -> None:
        self._rights = rights
        self._clock = clock
        self._sampler = sampler

    @route("GET", "/topics", "topic list {system?--system} --match={match}")
    def topics(
        self, admin: Admin, match: Short = "", sort: Short = "", page: Page = 1, size: Size = 50,
        system: bool = False,
    ) -> Listing[TopicRow]:  # fmt: skip
        """Return a page of the list of topics: those of users, or all. Raises ClientError, ApiError."""
        sample, sampled, now_ms = self._sampler.last, self._groups_for(admin), self._clock.wall_ms()
        groups: dict[str, list[GroupOfTopic]] = {}
        for name, progress in (sampled or {}).items():
            for topic, lag in progress.topics.items():
                groups.setdefault(topic, []).append(GroupOfTopic(name, lag.lag, lag.in_flight))
        rows = []
        for each in views.list_topics(admin):
            if each.kind != "normal" and not system:
                continue
            stored = sample.topics.get(each.topic)
            messages, tps = (stored.messages, stored.tps) if stored else (None, None)
            age_ms = stored.stale_ms(now_ms) if stored else None
            of_topic = groups.get(each.topic, []) if sampled is not None else None
            highest = max((each.lag for each in of_topic or () if each.lag is not None), default=None)
            known = (each.topic, each.kind, each.queues, each.perm, each.brokers)
            rows.append(TopicRow(*known, messages, tps, age_ms, of_topic, highest))
        return listing(rows, match, sort, page, size, lambda row: row.topic, SORTABLE)

    @route("GET", "/topics/{topic}", "topic stats {topic}")
    def topic(self, admin: Admin, topic: Name) -> TopicPage:
        """Return one topic. Raises ClientError."""
        details, progress = views.topic_description(admin, topic), views.topic_progress(admin, topic)
        sampled = self._groups_for(admin) or {}
        groups = []
        for group in details.groups:
            known = sampled[group].topics.get(topic) if group in sampled else None
            lag, in_flight = (known.lag, known.in_flight) if known is not None else (None, None)
            groups.append(GroupOfTopic(group, lag, in_flight))
        curves = self._sampler.curves_of_topic(topic) if details.brokers else None
        return TopicPage(details, progress, progress.messages, groups, curves)

    @route("GET", "/topics/{topic}/lite", "lite list {topic} --match={match}")
    def lite_topics(self, admin: Admin, topic: Name, match: Short = "") -> LiteTopics:
        """Return the first lite topics of a topic with a text in their names. Raises ClientError."""
        return list_lite_topics(admin, topic, match)

    def _groups_for(self, admin: Admin) -> Mapping[str, GroupSample] | None:
        """Return the sampled groups if the user may see all groups; None if not, or without a sample."""
        return self._sampler.last.groups if self._rights.sees_cluster(admin) else None

    @route(
        "POST",
        "/topics",
        "topic create {topic} --queues={queues} --read-queues={read_queues} --perm={perm} "
        "{order?--order:--no-order}",
    )
    def put_topic(
        self, admin: Admin, topic: Name, queues: Queues | None = None, read_queues: ReadQueues | None = None,
        perm: Literal["r", "w", "rw", "none"] | None = None, order: bool | None = None,
    ) -> Prepared:  # fmt: skip
        """Create or change a topic; a setting that is not given keeps its value. Raises ClientError."""
        check_topic(topic)
        wanted = plan_topic(admin, topic, queues=queues, read_queues=read_queues, perm=perm, order=order)
        before = wanted.before
        rows = [
            {"setting": name, "before": old, "after": new}
            for name, old, new in (
                ("queues on each broker", before and before.write_queue_nums, wanted.queues),
                ("read queues on each broker", before and before.read_queue_nums, wanted.read_queues),
                ("permission", before and views.perm_name(before.perm), views.perm_name(wanted.perm)),
                ("order", before and before.order, wanted.order),
            )
        ]
        create = partial(
            admin.create_topic, topic, queues=wanted.queues, read_queues=wanted.read_queues, perm=wanted.perm,
            order=wanted.order,
        )  # fmt: skip
        verb = "create" if before is None else "change"
        return plan(verb, f"topic {topic} on {', '.join(admin.brokers())}", create, rows)

    @route("DELETE", "/topics/{topic}", "topic delete {topic}")
    def delete_topic(self, admin: Admin, topic: Name) -> Prepared:
        """Delete a topic. Raises ClientError."""
        progress = views.topic_progress(admin, topic)
        messages, queues = counted(progress.messages, "message"), counted(len(progress.queues), "queue")
        what = f"topic {topic}: {messages} in {queues}"
        rows = [
            {"group": group, "loses": "its offsets in this topic"} for group in admin.groups_of_topic(topic)
        ]
        return plan("delete", what, partial(admin.delete_topic, topic), rows)
