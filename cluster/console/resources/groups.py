"""Resources of clients and consumer groups: lists, one group or member, and changes of groups and offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from cluster.client import Admin, MessageQueue
from cluster.console.api_errors import ApiError
from cluster.console.history import Curves
from cluster.console.resources.lists import Listing, Page, Size, listing
from cluster.console.rights import Rights
from cluster.console.routes import Name, Prepared, Short, plan, route
from cluster.console.sampler import Sampler
from cluster.counted import counted
from cluster.views import offsets
from cluster.views.clients import Connected, MemberState, QueueOwner, list_clients, member_state, queue_owners
from cluster.views.groups import GroupDetails, describe_group, list_groups, members_of
from cluster.views.samples import stale_ms
from cluster.views.times import date_of_position
from store.common.clock import Clock
from store.message.group_config import SubscriptionGroupConfig
from store.message.validate import check_group

ClientId = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Retries = Annotated[int, msgspec.Meta(ge=-1, le=1_000_000)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
SORTABLE = ("group", "lag", "in_flight", "tps", "behind_ms")


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
class RetainedQueue:
    """A queue, and the store time of its oldest message in milliseconds since the epoch, or None."""

    topic: str
    broker: str
    queue: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupPage:
    """One group. `curves` are its lag and rate, or None if they are not kept."""

    details: GroupDetails
    retained: Sequence[RetainedQueue]
    curves: Curves | None


class GroupResources:
    """The consumer groups, and all clients."""

    def __init__(self, sampler: Sampler, rights: Rights, clock: Clock) -> None:
        self._rights = rights
        self._sampler = sampler
        self._clock = clock

    @route("GET", "/groups", "group list {system?--system} --match={match}")
    def groups(
        self, admin: Admin, match: Short = "", sort: Short = "", page: Page = 1, size: Size = 50,
        system: bool = False,
    ) -> Listing[GroupRow]:  # fmt: skip
        """Return a page of the list of groups. Raises ClientError, ApiError."""
        now_ms, sample = self._clock.wall_ms(), self._sampler.last
        sampled = {} if stale_ms(sample.at_ms, now_ms) else sample.groups or {}
        rows = []
        for each in list_groups(admin, include_system=system):
            known = sampled.get(each.group)
            tps = known.tps if known is not None and known.tps is not None else each.tps
            behind_ms = since(each.behind_since_ms, now_ms)
            rows.append(GroupRow(each.group, each.topics, each.lag, each.in_flight, tps, behind_ms))
        return listing(
            rows, match, sort, page, size, lambda row: " ".join((row.group, *row.topics)), SORTABLE
        )

    @route("GET", "/groups/{group}", "group describe {group}")
    def group(self, admin: Admin, group: Name) -> GroupPage:
        """Return one group. Raises ClientError, ApiError."""
        details = describe_group(admin, group)
        if details is None:
            raise _no_group(group)
        retained = [
            RetainedQueue(topic, each.broker_name, each.queue_id, max(span.min_timestamp, 0) or None)
            for topic in sorted({queue.topic for queue in details.queues})
            for span in admin.group_time_spans(group, topic)
            for each in (span.queue,)
        ]
        curves = self._sampler.curves_of_group(group) if self._rights.sees_cluster(admin) else None
        return GroupPage(details, retained, curves)

    @route("GET", "/clients")
    def clients(self, admin: Admin) -> Connected:
        """Return the connected clients. Raises ClientError."""
        return list_clients(admin)

    @route("GET", "/groups/{group}/owners", "group owners {group}")
    def owners(self, admin: Admin, group: Name) -> Sequence[QueueOwner]:
        """Return owner and generation of each queue of a group. Raises ClientError, ApiError."""
        _check_exists(admin, group)
        return queue_owners(admin, group)

    @route("GET", "/groups/{group}/members/{client}", "group member {group} {client} {stack?--stack}")
    def member(self, admin: Admin, group: Name, client: ClientId, stack: bool = False) -> MemberState:
        """Return the state of a member, with the stacks of its threads if `stack`. Raises ClientError."""
        return member_state(admin, group, client, stack=stack)

    @route(
        "POST",
        "/groups",
        "group create {group} --max-retries={max_retries} {enabled?--enabled:--no-enabled} "
        "{broadcast?--broadcast:--no-broadcast}",
    )
    def put_group(
        self, admin: Admin, group: Name, max_retries: Retries | None = None, enabled: bool | None = None,
        broadcast: bool | None = None,
    ) -> Prepared:  # fmt: skip
        """Create or change a group; a setting that is not given keeps its value. Raises ClientError."""
        check_group(group)
        before = admin.groups().get(group)
        names = ("retry_max_times", "consume_enable", "consume_broadcast_enable")
        wanted: dict[str, Any] = dict(zip(names, (max_retries, enabled, broadcast), strict=True))
        given = {name: value for name, value in wanted.items() if value is not None}
        after = replace(before or SubscriptionGroupConfig(group), **given)
        rows = [
            {"setting": name, "before": before and getattr(before, name), "after": getattr(after, name)}
            for name in wanted
        ]
        verb = "create" if before is None else "change"
        return plan(verb, f"group {group}", partial(admin.put_group, after), rows)

    @route("DELETE", "/groups/{group}", "group delete {group} {keep_offsets?--keep-offsets}")
    def delete_group(self, admin: Admin, group: Name, keep_offsets: bool = False) -> Prepared:
        """Delete a group without members. Raises ClientError, ApiError."""
        _check_exists(admin, group)
        if members := [member.client_id for member in members_of(admin, group)]:
            shown = ", ".join(members[:5])
            raise ApiError(409, f"group {group!r} has members online: {shown}", "Stop them first.")
        kept = "; its offsets are kept" if keep_offsets else ""
        rows = [] if keep_offsets else [{"topic": each} for each in admin.topics_of_group(group)]
        act = partial(admin.delete_group, group, offsets=not keep_offsets)
        return plan("delete", f"group {group}{kept}", act, rows)

    @route(
        "POST",
        "/groups/{group}/offsets",
        "offset reset {group} {topic} --to={to} --queue={queue} --offset={offset}",
    )
    def reset(
        self, admin: Admin, group: Name, topic: Name, to: Short | None = None, queue: Short | None = None,
        offset: Offset | None = None,
    ) -> Prepared:  # fmt: skip
        """Reset the offsets of a group in a topic.

        `to` is earliest, latest or a time; `queue` is `broker:queue`, with `offset` or with `to`. Raises
        ClientError, ApiError.
        """
        return _move(admin, group, offsets.targets(admin, topic, to, queue, offset), date_of_position(to))

    @route("POST", "/groups/{group}/skip", "offset skip {group} {topic}")
    def skip(self, admin: Admin, group: Name, topic: Name) -> Prepared:
        """Skip all messages of a topic that a group has not consumed yet. Raises ClientError, ApiError."""
        return _move(admin, group, offsets.offsets_at(admin, topic, "latest"))

    @route("POST", "/groups/{group}/clone", "offset clone {group} {target} --topic={topic}")
    def clone(self, admin: Admin, group: Name, target: Name, topic: Name | None = None) -> Prepared:
        """Copy the offsets of a group to the group `target`. Raises ClientError, ApiError."""
        _check_exists(admin, group)
        rows = offsets.preview_clone(admin, group, target, topic)
        what = f"the offsets of {group} to {target} in {counted(len(rows), 'queue')}"
        return plan("copy", what, partial(admin.clone_offsets, group, target, topic), rows)


def since(time_ms: int | None, now_ms: int) -> int | None:
    """Return the milliseconds since a time, or None if it is unknown."""
    return None if time_ms is None else max(now_ms - time_ms, 0)


def _move(admin: Admin, group: str, targets: Mapping[MessageQueue, int], date: str | None = None) -> Prepared:
    def act() -> None:
        for queue, target in targets.items():
            admin.reset_offset(group, queue, target)

    _check_exists(admin, group)
    rows = offsets.preview(admin, group, targets)
    to = "" if date is None else f" to {date}"
    what = f"the offsets of {group}{to} in {counted(len(rows), 'queue')}: {_moved(rows)}"
    return plan("set", what, act, rows)


def _moved(rows: Sequence[offsets.OffsetChange]) -> str:
    steps = [row.after - row.before for row in rows if row.before is not None]
    again, skipped = -sum(min(step, 0) for step in steps), sum(max(step, 0) for step in steps)
    new = sum(row.before is None for row in rows)
    parts = [f"{counted(again, 'message')} consumed again", f"{skipped:,} skipped"]
    return ", ".join(parts + ([f"{counted(new, 'queue')} without an offset"] if new else []))


def _check_exists(admin: Admin, group: str) -> None:
    if group not in admin.groups():
        raise _no_group(group)


def _no_group(group: str) -> ApiError:
    return ApiError(404, f"group {group[:255]!r} does not exist", "The page Groups lists all groups.")
