"""Resources of the overview: rates, lag, disks, brokers and warnings; their history; and the changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client import Admin
from cluster.console.changes import ChangeLog, ChangeRecord
from cluster.console.history import Curves, Span
from cluster.console.resources.groups import GroupRow, since
from cluster.console.rights import Rights
from cluster.console.routes import route
from cluster.console.sampler import Sampler, figures
from cluster.views.brokers import BrokerView
from cluster.views.samples import GroupSample, stale_ms
from cluster.views.top import TopicRate, topic_rates
from cluster.views.warnings import Notice, notices
from store.common.clock import Clock

TOP = 8


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the cluster in the last sample. What is unknown is None.

    Attributes:
        at_ms: Time of the sample in milliseconds since the epoch; None before the first one.
        stale_ms: Age of the sample if it is older than `STALE_MS`, else None.
        in_tps: Messages stored per second.
        out_tps: Messages read per second.
        disk_used: Used part of the fullest disk, from 0 to 1.
        brokers_up: Number of masters that respond.
        topics: The topics with the highest rates.
        groups: The groups with the highest lags.
    """

    at_ms: int | None
    stale_ms: int | None
    in_tps: float | None
    out_tps: float | None
    lag: float | None
    in_flight: float | None
    disk_used: float | None
    brokers_up: float | None
    brokers: Sequence[BrokerView] | None
    notices: Sequence[Notice]
    topics: Sequence[TopicRate]
    groups: Sequence[GroupRow]
    changes: Sequence[ChangeRecord]


class OverviewResources:
    """Overview, history and changes.

    They are collected as another user, and shown to users that may see everything (`rights`).
    """

    def __init__(self, sampler: Sampler, changes: ChangeLog, rights: Rights, clock: Clock) -> None:
        self._rights = rights
        self._sampler = sampler
        self._changes = changes
        self._clock = clock

    @route("GET", "/overview", "top --once")
    def overview(self, admin: Admin) -> Overview:
        """Return rates, lag, disks, brokers and warnings of the last sample. Raises ClientError, ApiError."""
        self._rights.check_sees_cluster(admin)
        sample, now_ms = self._sampler.last, self._clock.wall_ms()
        late = sorted((sample.groups or {}).items(), key=lambda each: -(each[1].lag or 0))[:TOP]
        return Overview(
            sample.at_ms or None,
            stale_ms(sample.at_ms, now_ms) if sample.at_ms else None,
            *figures(sample),
            sample.brokers,
            notices(sample, now_ms),
            topic_rates(sample, now_ms)[:TOP],
            [_row(name, each, now_ms) for name, each in late],
            self._changes.list()[:TOP],
        )

    @route("GET", "/history", "top --once")
    def history(self, admin: Admin, span: Span = "hour") -> Curves:
        """Return the curves of in/s, out/s, lag, in flight, disk, brokers. Raises ClientError, ApiError."""
        self._rights.check_sees_cluster(admin)
        return self._sampler.history.curves(span)

    @route("GET", "/changes")
    def changes(self, admin: Admin) -> Sequence[ChangeRecord]:
        """Return the changes made through this console, the newest first. Raises ClientError, ApiError."""
        self._rights.check_sees_cluster(admin)
        return self._changes.list()


def _row(name: str, sample: GroupSample, now_ms: int) -> GroupRow:
    behind_ms = since(sample.behind_since_ms, now_ms)
    return GroupRow(name, list(sample.topics), sample.lag, sample.in_flight, sample.tps, behind_ms)
