"""Resources of the overview: rates, lag, disks, brokers and warnings; their history; and the changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client import Admin
from cluster.console.changes import ChangeRecord, Changes
from cluster.console.history import Curves, Span
from cluster.console.routes import NoParameters, Parameters, Route
from cluster.console.sampler import Sampler, figures
from cluster.console.warnings import Notice, notices
from cluster.views.brokers import BrokerView
from store.clock import Clock

TOP = 8


class HistoryParameters(Parameters, frozen=True):
    """The time span of the curves."""

    span: Span = "hour"


@dataclass(frozen=True, slots=True)
class TopTopic:
    """A topic with a high rate."""

    topic: str
    put_tps: float | None
    messages: int


@dataclass(frozen=True, slots=True)
class TopGroup:
    """A group with a high lag."""

    group: str
    lag: int
    tps: float | None
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of the cluster in the last sample. What is unknown is None.

    Attributes:
        at_ms: Time of the sample in milliseconds since the epoch; None before the first one.
        in_tps: Messages stored per second.
        out_tps: Messages read per second.
        disk_used: Used part of the fullest disk, from 0 to 1.
        brokers_up: Number of masters that respond.
    """

    at_ms: int | None
    in_tps: float | None
    out_tps: float | None
    lag: int | None
    in_flight: int | None
    disk_used: float | None
    brokers_up: int | None
    brokers: Sequence[BrokerView] | None
    notices: Sequence[Notice]
    topics: Sequence[TopTopic]
    groups: Sequence[TopGroup]
    changes: Sequence[ChangeRecord]


def check_sees_cluster(admin: Admin, sampler: Sampler) -> None:
    """Raise PermissionDenied unless the user of `admin` may look at brokers and list topics.

    Samples are taken as another user, so they are shown only to users with these rights.
    """
    for each in sampler.last.brokers or ():
        if each.load is not None:
            admin.broker_runtime(each.broker)
            admin.system_topics()
            return


class OverviewResources:
    """Overview, history and changes."""

    def __init__(self, sampler: Sampler, changes: Changes, clock: Clock) -> None:
        self._sampler = sampler
        self._changes = changes
        self._clock = clock

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        top = lambda _given: ("top", "--once")  # noqa: E731 - a row of a table
        return (
            Route(
                "GET", "/overview", self.overview, NoParameters, Overview,
                "Rates, lag, disks, brokers and warnings.", top,
            ),
            Route(
                "GET", "/history", self.history, HistoryParameters, Curves,
                "Curves of in/s, out/s, lag, in flight, disk and brokers.", top,
            ),
            Route(
                "GET", "/changes", self.changes, NoParameters, Sequence[ChangeRecord],
                "Changes made through this console since it started.",
            ),
        )  # fmt: skip

    def overview(self, admin: Admin, given: NoParameters) -> Overview:
        """Return the last sample."""
        check_sees_cluster(admin, self._sampler)
        sample, now_ms = self._sampler.last, self._clock.wall_ms()
        put, get, lag, in_flight, disk, up = figures(sample)
        busy = sorted(sample.topics.items(), key=lambda each: -(each[1].tps or 0))[:TOP]
        late = sorted((sample.groups or {}).items(), key=lambda each: -each[1].lag)[:TOP]
        return Overview(
            sample.at_ms or None,
            put,
            get,
            None if lag is None else int(lag),
            None if in_flight is None else int(in_flight),
            disk,
            None if up is None else int(up),
            sample.brokers,
            notices(sample, now_ms),
            [TopTopic(name, each.tps, each.messages) for name, each in busy],
            [
                TopGroup(
                    name,
                    each.lag,
                    each.tps,
                    None if each.behind_since_ms is None else max(now_ms - each.behind_since_ms, 0),
                )
                for name, each in late
            ],
            self._changes.list()[:TOP],
        )

    def history(self, admin: Admin, given: HistoryParameters) -> Curves:
        """Return the curves of the overview."""
        check_sees_cluster(admin, self._sampler)
        return self._sampler.history.curves(given.span)

    def changes(self, admin: Admin, given: NoParameters) -> Sequence[ChangeRecord]:
        """Return the changes, the newest first."""
        check_sees_cluster(admin, self._sampler)
        return self._changes.list()
