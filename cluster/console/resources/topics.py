"""Resources of topics: the list, one topic with its queues and groups, and changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from cluster.client import Admin
from cluster.console.history import Curves
from cluster.console.resources.lists import Listing, ListParameters, listing
from cluster.console.routes import Change, Parameters, Route, Write, option
from cluster.console.sampler import Sampler
from cluster.views.topics import (
    TopicDetails,
    TopicProgress,
    describe_topic,
    list_topics,
    perm_name,
    plan_topic,
    topic_progress,
)
from store.message.validate import check_topic

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Queues = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
SORTABLE = ("topic", "kind", "queues", "messages", "put_tps", "lag")


class TopicsParameters(ListParameters, frozen=True, kw_only=True):
    """A part of the list of topics: those of users, or all."""

    kind: Literal["normal", "all"] = "normal"


class TopicParameters(Parameters, frozen=True):
    """A topic."""

    topic: Name


class PutTopic(Write, frozen=True, kw_only=True):
    """A topic and its settings; those that are not given keep their value. A new topic has 4 queues."""

    topic: Name
    queues: Queues | None = None
    read_queues: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None
    perm: Literal["r", "w", "rw", "none"] | None = None
    order: bool | None = None


class DeleteTopic(Write, frozen=True, kw_only=True):
    """A topic to delete."""

    topic: Name


@dataclass(frozen=True, slots=True)
class GroupOfTopic:
    """A group and its lag in one topic; None if it is unknown."""

    group: str
    lag: int | None
    in_flight: int | None


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list. What was not sampled yet is None.

    Attributes:
        at_ms: Time at which messages and rate were sampled, in milliseconds since the epoch.
        lag: The highest lag of a group.
    """

    topic: str
    kind: str
    queues: int
    perm: str
    brokers: Sequence[str]
    messages: int | None
    put_tps: float | None
    at_ms: int | None
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

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route(
                "GET", "/topics", self.topics, TopicsParameters, Listing[TopicRow], "Topics.",
                lambda given: ("topic", "list", *(("--system",) if given.kind == "all" else ())),
            ),
            Route(
                "GET", "/topics/{topic}", self.topic, TopicParameters, TopicPage, "One topic.",
                lambda given: ("topic", "stats", given.topic),
            ),
            Route("POST", "/topics", self.put, PutTopic, Change, "Create or change a topic.", _put_command),
            Route(
                "DELETE", "/topics/{topic}", self.delete, DeleteTopic, Change, "Delete a topic.",
                lambda given: ("topic", "delete", given.topic),
            ),
        )  # fmt: skip

    def topics(self, admin: Admin, given: TopicsParameters) -> Listing[TopicRow]:
        """Return a page of the list. Raises ClientError, ApiError."""
        sample = self._sampler.last
        groups: dict[str, list[GroupOfTopic]] = {}
        for name, progress in (sample.groups or {}).items():
            for topic, lag in progress.topics.items():
                groups.setdefault(topic, []).append(GroupOfTopic(name, lag.lag, lag.in_flight))
        rows = []
        for each in list_topics(admin):
            if each.kind != "normal" and given.kind == "normal":
                continue
            stored = sample.topics.get(each.topic)
            of_topic = groups.get(each.topic, []) if sample.groups is not None else None
            rows.append(
                TopicRow(
                    each.topic,
                    each.kind,
                    each.queues,
                    each.perm,
                    each.brokers,
                    stored.messages if stored else None,
                    stored.tps if stored else None,
                    stored.at_ms if stored else None,
                    of_topic,
                    max((group.lag or 0 for group in of_topic or ()), default=None),
                )
            )
        return listing(rows, given, lambda row: row.topic, SORTABLE)

    def topic(self, admin: Admin, given: TopicParameters) -> TopicPage:
        """Return a topic. Raises ClientError."""
        details, progress = describe_topic(admin, given.topic), topic_progress(admin, given.topic)
        sampled = self._sampler.last.groups or {}
        groups = []
        for group in details.groups:
            known = sampled[group].topics.get(given.topic) if group in sampled else None
            lag, in_flight = (known.lag, known.in_flight) if known is not None else (None, None)
            groups.append(GroupOfTopic(group, lag, in_flight))
        history = self._sampler.topic_history(given.topic)
        curves = history.curves() if history is not None else None
        return TopicPage(details, progress, progress.messages, groups, curves)

    def put(self, admin: Admin, given: PutTopic) -> Change:
        """Create or change a topic. Raises ClientError, MessageInvalid."""
        check_topic(given.topic)
        plan = plan_topic(
            admin,
            given.topic,
            queues=given.queues,
            read_queues=given.read_queues,
            perm=given.perm,
            order=given.order,
        )
        before = plan.before
        rows = [
            {"setting": name, "before": old, "after": new}
            for name, old, new in (
                ("queues on each broker", before and before.write_queue_nums, plan.queues),
                ("read queues on each broker", before and before.read_queue_nums, plan.read_queues),
                ("permission", before and perm_name(before.perm), perm_name(plan.perm)),
                ("order", before and before.order, plan.order),
            )
        ]
        brokers = ", ".join(admin.brokers())
        if given.dry_run:
            verb = "create" if before is None else "change"
            return Change(f"would {verb} topic {given.topic} on {brokers}", rows)
        admin.create_topic(
            given.topic, queues=plan.queues, read_queues=plan.read_queues, perm=plan.perm, order=plan.order
        )
        verb = "created" if before is None else "changed"
        return Change(f"{verb} topic {given.topic} on {brokers}", rows, done=True)

    def delete(self, admin: Admin, given: DeleteTopic) -> Change:
        """Delete a topic. Raises ClientError."""
        progress = topic_progress(admin, given.topic)
        groups = admin.groups_of_topic(given.topic)
        what = f"topic {given.topic}: {progress.messages:,} messages in {len(progress.queues)} queues"
        rows = [{"group": group, "loses": "its offsets in this topic"} for group in groups]
        if given.dry_run:
            return Change(f"would delete {what}", rows)
        admin.delete_topic(given.topic)
        return Change(f"deleted {what}", rows, done=True)


def _put_command(given: PutTopic) -> Sequence[str | None]:
    order = None if given.order is None else "--order" if given.order else "--no-order"
    return (
        "topic",
        "create",
        given.topic,
        *option("--queues", given.queues),
        *option("--read-queues", given.read_queues),
        *option("--perm", given.perm),
        order,
    )
