"""Draining a broker of a running cluster: what `cluster.driver.drain` decides is done, or undone, here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.host.ray_port import ActorMethodFailed, ActorNotFound, ActorUnavailable
from cluster.driver import fleet
from cluster.driver.drain import Drain, Seen, Step
from cluster.driver.driver import LaunchFailed, LaunchRefused
from cluster.driver.plan import Kind, Running, full_name
from cluster.launch_report import Report

PAUSE_S = 0.3


@dataclass
class Draining:
    """One broker's way out."""

    namespace: str
    actor: Running
    report: Report
    timeout_s: float

    def show(self) -> None:
        """Say what a drain would wait for."""
        name, seen = self.actor.name, self._request("look")
        self.report.line(f"would take {name} out of the routes, and wait for {seen.producers} producers")
        if not seen.is_complete:
            self.report.line(
                f"it serves for {seen.up_s:.0f} s only: not all of its clients have told of themselves"
            )
        for group in seen.reading:
            self.report.line(f"would wait until group {group.group} has read {group.unread:,} messages")
        self._report_absent_groups(seen)
        self.report.line(f"would stop {name}; its store stays")

    def run(self) -> None:
        """Drain the broker and take it down; raises LaunchFailed, and lets it be written again, if that takes
        longer than the time given.
        """
        with self._cancel_on_failure():
            seen = self._wait()
        with self.report.working(f"stopping {self.actor.name}"):
            stop_error = fleet.stop(self.namespace, self.actor.name)
        self._report_absent_groups(seen)
        not_clean = f" (not stopped cleanly: {stop_error})" if stop_error else ""
        self.report.line(f"stopped {self.actor.name}{not_clean}; its store stays, `raymq up` starts it again")

    def _wait(self) -> Seen:
        name = self.actor.name
        drain = Drain(time.monotonic(), self.timeout_s)
        with self.report.working(f"draining {name}") as tell:
            seen = self._request("start")
            self.report.line(f"{name} is out of the routes for producers")
            while (step := drain.step(seen, time.monotonic())) is not Step.DOWN:
                if step is Step.GIVE_UP:
                    raise LaunchFailed(
                        f"{name} is not drained after {self.timeout_s:g} s: {drain.remaining(seen)}; it is"
                        " written again. Give it a longer --timeout, or stop those who need it"
                    )
                if step is Step.CLOSE:
                    self.report.line(f"{name} takes no more sends")
                else:
                    tell(drain.remaining(seen))
                    time.sleep(PAUSE_S)
                # Said each time: a broker that Ray has started again meanwhile knows nothing of it.
                seen = self._request("close" if drain.is_closed else "start", seen)
        self.report.line(f"the groups have read everything of {name}")
        return seen

    def _request(self, step: str, before: Seen | None = None) -> Seen:
        """Have the broker take a step, and see what it tells; `before` where it does not answer now."""
        try:
            return Seen.of(fleet.drain(self.namespace, self.actor.name, step))
        except ActorUnavailable as error:
            if before is None:
                raise LaunchFailed(f"{self.actor.name} cannot be drained: {error}") from error
            return before
        except (ActorNotFound, ActorMethodFailed) as error:
            raise LaunchFailed(f"{self.actor.name} cannot be drained: {error}") from error

    @contextlib.contextmanager
    def _cancel_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # Where even this fails, the broker does it by itself when nobody asks any more.
            with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
                fleet.drain(self.namespace, self.actor.name, "cancel")
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(
                    f"interrupted; {self.actor.name} is written again, nothing was taken down"
                ) from None
            raise

    def _report_absent_groups(self, seen: Seen) -> None:
        for group in seen.absent:
            self.report.line(
                f"group {group.group} has no members and {group.unread:,} unread messages here: they wait for"
                " the broker to come back",
                "yellow",
            )


def find_broker(running: Sequence[Running], name: str) -> Running:
    """The broker that is meant; raises LaunchRefused with those that there are."""
    brokers = {actor.name: actor for actor in running if actor.spec and actor.spec.kind is Kind.BROKER}
    found = brokers.get(full_name(name, brokers))
    if found is None:
        shown = ", ".join(sorted(brokers)) or "none"
        raise LaunchRefused(f"no broker {name!r} runs; there are: {shown}")
    return found
