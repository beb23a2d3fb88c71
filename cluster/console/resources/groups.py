"""Resources of consumer groups: the list, one group with queues and members, and changes of offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from cluster.client import Admin, MessageQueue
from cluster.console.api_errors import ApiError
from cluster.console.history import Curves
from cluster.console.resources.lists import Listing, ListParameters, listing
from cluster.console.resources.topics import Name
from cluster.console.routes import Change, Parameters, Route, Write, option
from cluster.console.sampler import Sampler
from cluster.views import offsets
from cluster.views.groups import GroupDetails, describe_group, list_groups, members_of
from cluster.views.times import parse_position
from store.clock import Clock
from store.message.group_config import SubscriptionGroupConfig
from store.message.validate import check_group

SORTABLE = ("group", "lag", "in_flight", "tps", "behind_ms")


class GroupsParameters(ListParameters, frozen=True, kw_only=True):
    """A part of the list of groups."""

    system: bool = False


class GroupParameters(Parameters, frozen=True):
    """A group."""

    group: Name


class PutGroup(Write, frozen=True, kw_only=True):
    """A group and its settings; those that are not given keep their value."""

    group: Name
    max_retries: Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)] | None = None
    enabled: bool | None = None
    broadcast: bool | None = None


class DeleteGroup(Write, frozen=True, kw_only=True):
    """A group to delete, with its offsets unless `keep_offsets`."""

    group: Name
    keep_offsets: bool = False


class ResetOffsets(Write, frozen=True, kw_only=True):
    """A new position of a group in a topic.

    `to` is earliest, latest or a time; `queue` is `broker:queue`, with `offset` or with `to`.
    """

    group: Name
    topic: Name
    to: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    queue: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SkipMessages(Write, frozen=True, kw_only=True):
    """A group that skips all messages of a topic that it has not consumed yet."""

    group: Name
    topic: Name


class CloneOffsets(Write, frozen=True, kw_only=True):
    """A group whose offsets are copied to the group `target`, in one topic or in all."""

    group: Name
    target: Name
    topic: Name | None = None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group in the list. What is unknown is None; `behind_ms` is its lag in time."""

    group: str
    topics: Sequence[str]
    lag: int | None
    in_flight: int | None
    tps: float | None
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Store times of the oldest, newest and last consumed message, in ms since the epoch, or None."""

    broker: str
    queue: int
    oldest_ms: int | None
    newest_ms: int | None
    consumed_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One group. `curves` are its lag and rate, or None if they are not kept."""

    details: GroupDetails
    spans: Mapping[str, Sequence[QueueSpan]]
    curves: Curves | None


class GroupResources:
    """The consumer groups."""

    def __init__(self, sampler: Sampler, clock: Clock) -> None:
        self._sampler = sampler
        self._clock = clock

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route(
                "GET", "/groups", self.groups, GroupsParameters, Listing[GroupRow], "Consumer groups.",
                lambda given: ("group", "list", "--system" if given.system else None),
            ),
            Route(
                "GET", "/groups/{group}", self.group, GroupParameters, GroupPage, "One consumer group.",
                lambda given: ("group", "describe", given.group),
            ),
            Route("POST", "/groups", self.put, PutGroup, Change, "Create or change a group.", _put_command),
            Route(
                "DELETE", "/groups/{group}", self.delete, DeleteGroup, Change, "Delete a group.",
                lambda given: (
                    "group", "delete", given.group, "--keep-offsets" if given.keep_offsets else None,
                ),
            ),
            Route(
                "POST", "/groups/{group}/offsets", self.reset, ResetOffsets, Change,
                "Reset the offsets of a group.",
                lambda given: (
                    "offset", "reset", given.group, given.topic, *option("--to", given.to),
                    *option("--queue", given.queue), *option("--offset", given.offset),
                ),
            ),
            Route(
                "POST", "/groups/{group}/skip", self.skip, SkipMessages, Change,
                "Skip all messages of a topic that a group has not consumed yet.",
                lambda given: ("offset", "skip", given.group, given.topic),
            ),
            Route(
                "POST", "/groups/{group}/clone", self.clone, CloneOffsets, Change,
                "Copy the offsets of a group to another.",
                lambda given: ("offset", "clone", given.group, given.target, *option("--topic", given.topic)),
            ),
        )  # fmt: skip

    def groups(self, admin: Admin, given: GroupsParameters) -> Listing[GroupRow]:
        """Return a page of the list. Raises ClientError, ApiError."""
        now_ms, sampled = self._clock.wall_ms(), self._sampler.last.groups or {}
        rows = []
        for each in list_groups(admin, include_system=given.system):
            known = sampled.get(each.group)
            since_ms = each.behind_since_ms
            rows.append(
                GroupRow(
                    each.group,
                    each.topics,
                    each.lag,
                    each.in_flight,
                    known.tps if known is not None and known.tps is not None else each.tps,
                    None if since_ms is None else max(now_ms - since_ms, 0),
                )
            )
        return listing(rows, given, lambda row: " ".join((row.group, *row.topics)), SORTABLE)

    def group(self, admin: Admin, given: GroupParameters) -> GroupPage:
        """Return a group. Raises ClientError, ApiError."""
        details = describe_group(admin, given.group)
        if details is None:
            raise _no_group(given.group)
        spans = {}
        for topic in {queue.topic for queue in details.queues}:
            spans[topic] = [
                QueueSpan(
                    span.queue.broker_name,
                    span.queue.queue_id,
                    _known(span.min_timestamp),
                    _known(span.max_timestamp),
                    _known(span.consume_timestamp),
                )
                for span in admin.group_time_spans(given.group, topic)
            ]
        history = self._sampler.group_history(given.group)
        return GroupPage(details, spans, history.curves() if history is not None else None)

    def put(self, admin: Admin, given: PutGroup) -> Change:
        """Create or change a group. Raises ClientError, MessageInvalid."""
        check_group(given.group)
        before = admin.groups().get(given.group)
        wanted: dict[str, Any] = {
            "retry_max_times": given.max_retries,
            "consume_enable": given.enabled,
            "consume_broadcast_enable": given.broadcast,
        }
        after = replace(
            before or SubscriptionGroupConfig(given.group),
            **{name: value for name, value in wanted.items() if value is not None},
        )
        rows = [
            {"setting": name, "before": before and getattr(before, name), "after": getattr(after, name)}
            for name in wanted
        ]
        verb = "create" if before is None else "change"
        if given.dry_run:
            return Change(f"would {verb} group {given.group}", rows)
        admin.put_group(after)
        return Change(f"{verb}d group {given.group}", rows, done=True)

    def delete(self, admin: Admin, given: DeleteGroup) -> Change:
        """Delete a group without members. Raises ClientError, ApiError."""
        _check_exists(admin, given.group)
        members = [member.client_id for member in members_of(admin, given.group)]
        if members:
            raise ApiError(
                409,
                f"group {given.group!r} has members online: {', '.join(members[:5])}",
                "Stop them first.",
            )
        kept = "; its offsets are kept" if given.keep_offsets else ""
        rows = [] if given.keep_offsets else [{"topic": each} for each in admin.topics_of_group(given.group)]
        if given.dry_run:
            return Change(f"would delete group {given.group}{kept}", rows)
        admin.delete_group(given.group, offsets=not given.keep_offsets)
        return Change(f"deleted group {given.group}{kept}", rows, done=True)

    def reset(self, admin: Admin, given: ResetOffsets) -> Change:
        """Reset offsets. Raises ClientError, ApiError."""
        if (given.to is None) == (given.offset is None):
            raise ApiError(400, "a target is required", "Give `to`, or `queue` with `offset`.")
        queue = None if given.queue is None else _queue(given.queue, given.topic)
        if given.offset is not None:
            if queue is None:
                raise ApiError(400, "an offset is one of a queue", "Give `queue` too, as broker:queue.")
            return self._move(admin, given.group, {queue: given.offset}, dry_run=given.dry_run)
        targets = offsets.offsets_at(admin, given.topic, parse_position(given.to or ""))
        if queue is not None and queue not in targets:
            raise ApiError(400, f"topic {given.topic!r} has no queue {given.queue}", "Choose another queue.")
        wanted = targets if queue is None else {queue: targets[queue]}
        return self._move(admin, given.group, wanted, dry_run=given.dry_run)

    def skip(self, admin: Admin, given: SkipMessages) -> Change:
        """Skip messages. Raises ClientError, ApiError."""
        targets = offsets.offsets_at(admin, given.topic, "latest")
        return self._move(admin, given.group, targets, dry_run=given.dry_run)

    def clone(self, admin: Admin, given: CloneOffsets) -> Change:
        """Copy offsets. Raises ClientError, ApiError."""
        _check_exists(admin, given.group)
        rows = offsets.preview_clone(admin, given.group, given.target, given.topic)
        what = f"the offsets of {given.group} to {given.target} in {len(rows)} queues"
        if given.dry_run:
            return Change(f"would copy {what}", rows)
        admin.clone_offsets(given.group, given.target, given.topic)
        return Change(f"copied {what}", rows, done=True)

    def _move(
        self, admin: Admin, group: str, targets: Mapping[MessageQueue, int], *, dry_run: bool
    ) -> Change:
        _check_exists(admin, group)
        rows = offsets.preview(admin, group, targets)
        what = f"the offsets of {group} in {len(rows)} queues: {_moved(rows)}"
        if dry_run:
            return Change(f"would set {what}", rows)
        for queue, target in targets.items():
            admin.reset_offset(group, queue, target)
        return Change(f"set {what}", rows, done=True)


def _moved(rows: Sequence[offsets.OffsetChange]) -> str:
    steps = [row.after - row.before for row in rows if row.before is not None]
    again, skipped = -sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    new = sum(row.before is None for row in rows)
    parts = [f"{again:,} messages are consumed again", f"{skipped:,} are skipped"]
    return ", ".join(parts + ([f"{new} queues had no offset"] if new else []))


def _queue(text: str, topic: str) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    if not broker or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise ApiError(400, f"{text[:80]!r} is not a queue", "Use broker:queue, for example broker-a:3.")
    return MessageQueue(topic, broker, int(number))


def _check_exists(admin: Admin, group: str) -> None:
    if group not in admin.groups():
        raise _no_group(group)


def _no_group(group: str) -> ApiError:
    return ApiError(404, f"group {group[:255]!r} does not exist", "The page Groups lists all groups.")


def _known(time_ms: int) -> int | None:
    return time_ms if time_ms > 0 else None


def _put_command(given: PutGroup) -> Sequence[str | None]:
    return (
        "group",
        "create",
        given.group,
        *option("--max-retries", given.max_retries),
        None if given.enabled is None else "--enabled" if given.enabled else "--no-enabled",
        None if given.broadcast is None else "--broadcast" if given.broadcast else "--no-broadcast",
    )
