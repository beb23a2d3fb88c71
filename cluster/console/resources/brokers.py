"""Resources of brokers: the list, one broker with its figures and settings, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError
from cluster.console.resources.topics import Name
from cluster.console.routes import Change, NoParameters, Parameters, Route, Write
from cluster.driver.drain import DrainProgress, GroupLag
from cluster.views.brokers import BrokerView, list_brokers
from store.clock import Clock


class BrokerParameters(Parameters, frozen=True):
    """A broker."""

    broker: Name


class PutSettings(Write, frozen=True, kw_only=True):
    """Settings of a running broker, under RocketMQ's names."""

    broker: Name
    settings: Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=100)]


class SetWritable(Write, frozen=True, kw_only=True):
    """Allow or refuse writes to a broker in the routes, until its next registration."""

    broker: Name
    writable: bool


class Restart(Write, frozen=True, kw_only=True):
    """Stop a broker cleanly and start it again."""

    broker: Name


class DrainBroker(Write, frozen=True, kw_only=True):
    """Drain a broker, or cancel its drain."""

    broker: Name
    cancel: bool = False


@dataclass(frozen=True, slots=True)
class DrainPage:
    """The drain of a broker: its state in a word and in a sentence, and what is left to read."""

    state: str
    summary: str
    groups: Sequence[GroupLag]


@dataclass(frozen=True, slots=True)
class BrokerPage:
    """One broker: its figures and settings under RocketMQ's names."""

    broker: str
    runtime: Mapping[str, str]
    settings: Mapping[str, str]


class BrokerResources:
    """The brokers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route(
                "GET", "/brokers", lambda admin, _given: list_brokers(admin, self._clock), NoParameters,
                Sequence[BrokerView], "Brokers.",
                lambda _given: ("broker", "list"),
            ),
            Route(
                "GET", "/brokers/{broker}", self.broker, BrokerParameters, BrokerPage, "One broker.",
                lambda given: ("broker", "describe", given.broker),
            ),
            Route(
                "GET", "/brokers/{broker}/timers", lambda admin, given: admin.timer_counts(given.broker),
                BrokerParameters, Mapping[str, int],
                "Pending timer messages of a broker, by topic.",
                lambda given: ("broker", "timers", given.broker),
            ),
            Route(
                "POST", "/brokers/{broker}/settings", self.put_settings, PutSettings, Change,
                "Change live settings of a broker.",
                lambda given: (
                    "broker", "config", given.broker,
                    *(word for each in given.settings.items() for word in ("--set", "=".join(each))),
                ),
            ),
            Route(
                "POST", "/brokers/{broker}/writable", self.set_writable, SetWritable, Change,
                "Allow or refuse writes to a broker.",
                lambda given: ("broker", "writable", given.broker, "--on" if given.writable else "--off"),
            ),
            Route(
                "POST", "/brokers/{broker}/restart", self.restart, Restart, Change,
                "Restart a broker.",
                lambda given: ("broker", "restart", given.broker),
            ),
            Route(
                "GET", "/brokers/{broker}/drain", self.drain_page, BrokerParameters, DrainPage,
                "The drain of a broker.",
                lambda given: ("broker", "drain", given.broker, "--show"),
            ),
            Route(
                "POST", "/brokers/{broker}/drain", self.drain, DrainBroker, Change,
                "Drain a broker, or cancel its drain.",
                lambda given: ("broker", "drain", given.broker, "--cancel" if given.cancel else None),
            ),
        )  # fmt: skip

    def broker(self, admin: Admin, given: BrokerParameters) -> BrokerPage:
        """Return a broker. Raises ClientError."""
        runtime, settings = admin.broker_runtime(given.broker), admin.broker_config(given.broker)
        return BrokerPage(given.broker, dict(sorted(runtime.items())), dict(sorted(settings.items())))

    def put_settings(self, admin: Admin, given: PutSettings) -> Change:
        """Change settings. Raises ClientError, ApiError."""
        present = admin.broker_config(given.broker)
        unknown = [name for name in given.settings if name not in present]
        if unknown:
            raise ApiError(
                400,
                f"broker {given.broker} has no setting {unknown[0][:80]!r}",
                "Use a name that its page lists.",
            )
        rows = [
            {"setting": name, "before": present[name], "after": value}
            for name, value in given.settings.items()
        ]
        if given.dry_run:
            return Change(f"would change {len(rows)} settings of {given.broker}", rows)
        admin.change_broker_config(given.broker, given.settings)
        return Change(f"changed {len(rows)} settings of {given.broker}", rows, done=True)

    def restart(self, admin: Admin, given: Restart) -> Change:
        """Restart a broker. Raises ClientError."""
        admin.restart_broker(given.broker, dry_run=given.dry_run)
        if given.dry_run:
            return Change(
                f"{given.broker} would stop and start again within seconds; meanwhile producers use other "
                "brokers, and consumers wait for its messages"
            )
        return Change(f"{given.broker} restarts; it serves again within seconds", done=True)

    def drain_page(self, admin: Admin, given: BrokerParameters) -> DrainPage:
        """Return the drain of a broker. Raises ClientError."""
        progress = DrainProgress.of(admin.drain_broker(given.broker))
        return DrainPage(progress.state, progress.summary(given.broker), progress.unread)

    def drain(self, admin: Admin, given: DrainBroker) -> Change:
        """Drain a broker, or cancel its drain. Raises ClientError."""
        step: Literal["start", "cancel"] = "cancel" if given.cancel else "start"
        progress = DrainProgress.of(admin.drain_broker(given.broker, "look" if given.dry_run else step))
        what = progress.preview(given.broker, step) if given.dry_run else progress.summary(given.broker)
        return Change(what, () if given.cancel else progress.unread, done=not given.dry_run)

    def set_writable(self, admin: Admin, given: SetWritable) -> Change:
        """Allow or refuse writes. Raises ClientError."""
        state = "writable" if given.writable else "not writable"
        if given.dry_run:
            topics = len(admin.broker_topics(given.broker))
            return Change(f"{given.broker} would be {state} in {topics} topics")
        topics = admin.set_writable(given.broker, writable=given.writable)
        return Change(f"{given.broker} is {state} in {topics} topics", done=True)
