"""Draining: performs a drain of a running broker, as decided by `cluster.control.drain`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from actors.host.ray_port import ActorMethodFailed, ActorNotFound, ActorUnavailable
from cluster.control import fleet
from cluster.control.drain import Drain, DrainProgress, DrainStep
from cluster.control.kinds import BROKER
from cluster.control.launch_errors import LaunchFailed, LaunchRefused
from cluster.control.launch_report import Reporter
from cluster.control.plan import Running, full_name
from cluster.counted import counted
from cluster.waiting import SYSTEM_WAITING, Waiting

PAUSE_S = 0.3


@dataclass
class Draining:
    """The drain of one broker. On failure the broker becomes writable again."""

    namespace: str
    actor: Running
    report: Reporter
    timeout_s: float
    waiting: Waiting = SYSTEM_WAITING

    def show(self) -> None:
        """Print what a drain would do and wait for (--dry-run)."""
        if self.actor.replica.follows:
            self.report.line(f"would stop {self.actor.name}, a replica; its store is kept")
            return
        name, progress = self.actor.name, self._request("look")
        producers = counted(progress.producers, "producer")
        self.report.line(f"would make {name} not writable and wait for {producers}")
        if not progress.is_complete:
            self.report.line(
                f"{name} started {progress.up_s:.0f} s ago: not all of its clients have sent a heartbeat yet"
            )
        for group in progress.reading:
            self.report.line(
                f"would wait until group {group.group} has read {counted(group.unread, 'message')}"
            )
        self._report_absent_groups(progress)
        self.report.line(f"would stop {name}; its store is kept")

    def run(self) -> None:
        """Drain the broker and stop it.

        Raises LaunchFailed if that takes longer than `timeout_s`; the broker is then writable again.
        """
        progress = None
        if not self.actor.replica.follows:  # else other replicas serve its clients
            with self._cancel_on_failure():
                progress = self._wait()
        with self.report.working(f"stopping {self.actor.name}"):
            stop_error = fleet.stop(self.namespace, self.actor.name)
        if progress is not None:
            self._report_absent_groups(progress)
        unclean = f" (not stopped cleanly: {stop_error})" if stop_error else ""
        self.report.line(
            f"stopped {self.actor.name}{unclean}; its store is kept, `raymq up` starts the broker again"
        )

    def _wait(self) -> DrainProgress:
        name = self.actor.name
        drain = Drain(self.waiting.now_s(), self.timeout_s)
        with self.report.working(f"draining {name}") as show_progress:
            progress = self._request("start")
            self.report.line(f"{name} is registered as not writable")
            while (step := drain.step(progress, self.waiting.now_s())) is not DrainStep.STOP:
                if step is DrainStep.GIVE_UP:
                    raise LaunchFailed(
                        f"{name} is not drained after {self.timeout_s:g} s: {drain.remaining(progress)}; it"
                        " is writable again. Give a longer --timeout, or stop these clients"
                    )
                if step is DrainStep.CLOSE:
                    self.report.line(f"{name} refuses sends")
                else:
                    show_progress(drain.remaining(progress))
                    self.waiting.sleep(PAUSE_S)
                # Repeat the step each time: a broker that Ray has restarted does not know that it is drained.
                progress = self._request("close" if drain.is_closed else "start", progress)
        self.report.line(f"all groups have consumed the messages of {name}")
        return progress

    def _request(self, step: str, before: DrainProgress | None = None) -> DrainProgress:
        """Send the broker a drain step and return its progress.

        Returns `before` if the broker is unavailable. Raises LaunchFailed if it is and `before` is None.
        """
        try:
            return DrainProgress.of(fleet.drain(self.namespace, self.actor.name, step))
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
            # If this fails too, the broker cancels the drain itself when the drain lease expires.
            with contextlib.suppress(ActorNotFound, ActorUnavailable, ActorMethodFailed):
                fleet.drain(self.namespace, self.actor.name, "cancel")
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(
                    f"interrupted; {self.actor.name} is writable again, nothing was stopped"
                ) from None
            raise

    def _report_absent_groups(self, progress: DrainProgress) -> None:
        for group in progress.absent:
            unread = counted(group.unread, "unread message")
            self.report.line(
                f"group {group.group} has no online members and {unread} here: it can read them when the"
                " broker is started again",
                "yellow",
            )


def find_broker(running: Sequence[Running], name: str) -> Running:
    """Return the broker with this name, with or without its replica number.

    Raises LaunchRefused if no such broker is running.
    """
    brokers = {actor.name: actor for actor in running if actor.spec and actor.spec.kind is BROKER}
    found = brokers.get(full_name(name, brokers))
    if found is None:
        shown = ", ".join(sorted(brokers)) or "none"
        raise LaunchRefused(f"no broker {name!r} is running; running brokers: {shown}")
    return found
