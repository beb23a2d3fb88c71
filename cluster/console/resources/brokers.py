"""Resources of brokers: the list, one broker with its figures and settings, and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError
from cluster.console.rights import no_broker
from cluster.console.routes import Name, Prepared, plan, route
from cluster.control.drain import DrainProgress, GroupLag
from cluster.counted import counted
from cluster.views.brokers import BrokerView, list_brokers
from store.common.clock import Clock

Settings = Annotated[dict[str, str], msgspec.Meta(min_length=1, max_length=100)]


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

    @route("GET", "/brokers", "broker list")
    def brokers(self, admin: Admin) -> Sequence[BrokerView]:
        """Return the brokers. Raises ClientError, ApiError."""
        found = list_brokers(admin, self._clock)
        if not any(each.is_up for each in found):
            raise no_broker()
        return found

    @route("GET", "/brokers/{broker}", "broker describe {broker}")
    def broker(self, admin: Admin, broker: Name) -> BrokerPage:
        """Return one broker. Raises ClientError."""
        runtime, settings = admin.broker_runtime(broker), admin.broker_config(broker)
        return BrokerPage(broker, dict(sorted(runtime.items())), dict(sorted(settings.items())))

    @route("GET", "/brokers/{broker}/timers", "broker timers {broker}")
    def timers(self, admin: Admin, broker: Name) -> Mapping[str, int]:
        """Return the number of pending timer messages of a broker, by topic. Raises ClientError."""
        return admin.timer_counts(broker)

    @route("GET", "/brokers/{broker}/drain", "broker drain {broker} --show")
    def drain_page(self, admin: Admin, broker: Name) -> DrainPage:
        """Return the drain of a broker. Raises ClientError."""
        progress = DrainProgress.of(admin.drain_broker(broker))
        return DrainPage(progress.state, progress.summary(broker), progress.unread)

    @route("POST", "/brokers/{broker}/drain", "broker drain {broker} {cancel?--cancel}")
    def drain(self, admin: Admin, broker: Name, cancel: bool = False) -> Prepared:
        """Drain a broker, or cancel its drain. Raises ClientError."""
        step: Literal["start", "cancel"] = "cancel" if cancel else "start"
        progress = DrainProgress.of(admin.drain_broker(broker))
        return Prepared(
            progress.preview(broker, step),
            partial(admin.drain_broker, broker, step),
            lambda after: DrainProgress.of(after).summary(broker),
            () if cancel else progress.unread,
        )

    @route("POST", "/brokers/{broker}/settings", "broker config {broker} --set={settings}")
    def put_settings(self, admin: Admin, broker: Name, settings: Settings) -> Prepared:
        """Change live settings of a broker, under RocketMQ's names. Raises ClientError, ApiError."""
        present = admin.broker_config(broker)
        if unknown := settings.keys() - present.keys():
            what = f"broker {broker} has no setting {min(unknown)[:80]!r}"
            raise ApiError(400, what, "Use a name that its page lists.")
        rows = [{"setting": key, "before": present[key], "after": value} for key, value in settings.items()]
        act = partial(admin.change_broker_config, broker, settings)
        return plan("change", f"{counted(len(rows), 'setting')} of {broker}", act, rows)

    @route("POST", "/brokers/{broker}/restart", "broker restart {broker}")
    def restart(self, admin: Admin, broker: Name) -> Prepared:
        """Stop a broker cleanly and start it again. Raises ClientError."""
        admin.restart_broker(broker, dry_run=True)
        return Prepared(
            f"{broker} would stop and start again within seconds; meanwhile producers use other brokers, and "
            "consumers wait for its messages",
            partial(admin.restart_broker, broker),
            f"{broker} restarts; it serves again within seconds",
        )

    @route("POST", "/brokers/{broker}/writable", "broker writable {broker} {writable?--on:--off}")
    def set_writable(self, admin: Admin, broker: Name, writable: bool) -> Prepared:
        """Allow or refuse writes in the routes, until the next registration. Raises ClientError."""
        state = "writable" if writable else "not writable"
        return Prepared(
            f"{broker} would be {state} in {counted(len(admin.broker_topics(broker)), 'topic')}",
            partial(admin.set_writable, broker, writable=writable),
            lambda topics: f"{broker} is {state} in {counted(topics, 'topic')}",
        )
