"""Controller: makes the number of elastic brokers follow the load. Target → compare → act, once per `tick`.

    observe ──> decide (pure, `cluster.autoscale.decisions`) ──> target
    too few:   cancel a drain that is not finished, else create a broker
    started:   once it serves, create the elastic topics on it; then it counts as running
    too many:  choose the emptiest broker ──> drain ──> stop it; its store is kept
               deadline passed ──> the broker stays, is reported, and the target is raised to it

The controller has no Ray and no clock of its own: it acts through a `Fleet`. It keeps nothing that a restart
could lose: brokers are observed, and a broker cancels its drain if no request renews it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.autoscale.decisions import Decision, choose_victim, next_decision
from cluster.autoscale.rules import Rules
from cluster.autoscale.samples import DRAINING, RUNNING, STARTING, BrokerSample, BrokerState, FleetSample
from cluster.control.drain import Drain, DrainProgress, DrainStep
from store.common.logs import get_logger

HISTORY_S = 600.0
"""Seconds of samples that are kept, or twice the cool-down if that is longer."""

RECENT_EVENTS = 50

_log = get_logger(__name__)


class BrokerUnavailable(Exception):
    """The broker does not respond at present. The message has the cause."""


@dataclass(frozen=True)
class Observed:
    """One elastic broker as it was found.

    Attributes:
        figures: Its name and rates; its state in it is not used.
        is_serving: True if clients can connect to it.
        reason: Why it does not serve.
        is_draining: True if it refuses new messages or will soon.
        is_misplaced: True if it waits for a node that is lost, or is on another node than its store.
    """

    figures: BrokerSample
    is_serving: bool = True
    reason: str = ""
    is_draining: bool = False
    is_misplaced: bool = False

    @property
    def name(self) -> str:
        """Return the name of the broker."""
        return self.figures.name


class Fleet(Protocol):
    """What the controller does with brokers. Methods raise BrokerUnavailable for what cannot be done now."""

    def observe(self) -> Sequence[Observed]:
        """Return all elastic brokers, those that wait for a node included."""

    def create(self, existing: Sequence[str]) -> str:
        """Create a broker beside the `existing` ones, without waiting for it. Return its name."""

    def equip(self, name: str) -> None:
        """Create the elastic topics on a broker that serves."""

    def drain(self, name: str, step: str) -> DrainProgress:
        """Send a drain step (`cluster.control.fleet.drain`) to a broker and return its progress."""

    def export(self, name: str) -> bool:
        """Export the messages of a drained broker, if that is wanted. Return False until it is finished."""

    def remove(self, name: str, unread: Mapping[str, int] | None) -> None:
        """Stop a broker and keep its store.

        `unread`: messages left for offline groups, by group; None if it never served.
        """

    def replace(self, name: str) -> None:
        """Create a misplaced broker again, on the node of its store if that is alive."""


@dataclass(frozen=True)
class FleetLimits:
    """How the controller acts.

    Attributes:
        drain_timeout_s: Maximum duration of a drain; the broker stays after it.
        ignore_offline_groups: Remove a broker even if groups without members have unread messages on it.
        dry_run: Decide and report, but do not act. The target is the number of brokers that are found.
    """

    drain_timeout_s: float = 300.0
    ignore_offline_groups: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class ControllerEvent:
    """One entry of the controller's report: time in monotonic seconds, what happened, and its figures."""

    time_s: float
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Controller:
    """Keeps as many elastic brokers as the rules demand. `tick` is called every few seconds by one thread."""

    def __init__(self, rules: Rules, limits: FleetLimits, fleet: Fleet, clock: Callable[[], float]) -> None:
        """Create a controller; the target is the number of brokers that the first tick finds.

        Args:
            rules: The rules.
            limits: How to act.
            fleet: Observes and changes the brokers.
            clock: Returns the time in monotonic seconds.
        """
        self.is_paused = False
        self.target: int | None = None
        self.decision = Decision(rules.min, "no sample yet")
        self.events: deque[ControllerEvent] = deque(maxlen=RECENT_EVENTS)
        self.counts: Counter[str] = Counter()
        """Number of events of each kind."""
        self.decisions = 0
        self.brokers: Sequence[Observed] = ()
        self._rules = rules
        self._limits = limits
        self._fleet = fleet
        self._clock = clock
        self._history: deque[FleetSample] = deque()
        self._last_change_s: float | None = None
        self._equipped: set[str] = set()
        self._begun_s: dict[str, float] = {}
        self._drains: dict[str, Drain] = {}

    def tick(self) -> Decision:
        """Observe, decide and act once, and return the decision."""
        now_s = self._clock()
        self.brokers = self._fleet.observe()
        sample = FleetSample(now_s, tuple(self._sampled(each) for each in self.brokers))
        self._remember(sample)
        if self.target is None or self._limits.dry_run:
            self.target = max(sum(broker.state != DRAINING for broker in sample.brokers), 1)
        before, self.decision = self.decision, next_decision(
            self._rules, self._history, self.target, self._last_change_s
        )  # fmt: skip
        acts = not (self.is_paused or self._limits.dry_run)
        previous = self.target if acts else before.target
        self.decisions += 1
        if (self.decision.target, self.decision.rule) != (previous, before.rule):
            self._note("target_decided", now_s, **self._figures_of_decision())
        if not acts:
            return self.decision
        if self.decision.target != self.target:
            self.target, self._last_change_s = self.decision.target, now_s
        self._repair(now_s)
        self._equip_started(now_s)
        self._compare(sample, now_s)
        for name in list(self._drains):
            self._advance_drain(name, now_s)
        return self.decision

    def status(self) -> dict[str, Any]:
        """Return the target, the last decision with its figures, the brokers and recent events."""
        return {
            "target": self.target,
            "is_paused": self.is_paused,
            "dry_run": self._limits.dry_run,
            "rules": self._rules.model_dump(mode="json"),
            "decision": {
                "target": self.decision.target, "rule": self.decision.rule, "reason": self.decision.reason,
                "figures": dict(self.decision.figures),
            },
            "brokers": [
                {**each.figures._asdict(), "state": self._state_of(each), "reason": each.reason}
                for each in self.brokers
            ],
            "events": [{"time_s": each.time_s, "event": each.event, **each.fields} for each in self.events],
        }  # fmt: skip

    def states(self) -> list[BrokerState]:
        """Return the states of the brokers that the last tick has found."""
        return [self._state_of(each) for each in self.brokers]

    def pause(self) -> None:
        """Stop acting until `resume`, and cancel the drains that are not finished."""
        self.is_paused = True
        for name in list(self._drains):
            self._cancel_drain(name, self._clock(), "paused")

    def resume(self) -> None:
        """Act again, from the number of brokers that are found then."""
        self.is_paused = False
        self.target = None

    # ---- observe -----------------------------------------------------------------------------------------

    def _sampled(self, broker: Observed) -> BrokerSample:
        return broker.figures._replace(state=self._state_of(broker))

    def _state_of(self, broker: Observed) -> BrokerState:
        if broker.is_draining or broker.name in self._drains:
            return DRAINING
        is_equipped = broker.name in self._equipped or self._limits.dry_run
        return RUNNING if broker.is_serving and is_equipped else STARTING

    def _remember(self, sample: FleetSample) -> None:
        self._history.append(sample)
        kept_s = max(HISTORY_S, 2 * self._rules.cool_down_s)
        while sample.time_s - self._history[0].time_s > kept_s:
            self._history.popleft()

    def _figures_of_decision(self) -> dict[str, Any]:
        decision = self.decision
        figures = {key: round(value, 3) for key, value in decision.figures.items()}
        return {
            "target": decision.target, "previous": self.target, "rule": decision.rule,
            "reason": decision.reason, "dry_run": self._limits.dry_run, "paused": self.is_paused, **figures,
        }  # fmt: skip

    # ---- act ---------------------------------------------------------------------------------------------

    def _repair(self, now_s: float) -> None:
        for broker in self.brokers:
            if broker.is_misplaced:  # a drain continues on its new node
                self._try("broker_replaced", now_s, self._fleet.replace, broker.name)

    def _equip_started(self, now_s: float) -> None:
        found = {broker.name for broker in self.brokers}
        self._equipped &= found
        for broker in self.brokers:
            if not broker.is_serving or broker.name in self._equipped or broker.is_draining:
                continue
            begun_s = self._begun_s.pop(broker.name, None)
            fields = {} if begun_s is None else {"after_s": round(now_s - begun_s, 3)}
            if self._try("broker_joined", now_s, self._fleet.equip, broker.name, **fields):
                self._equipped.add(broker.name)

    def _compare(self, sample: FleetSample, now_s: float) -> None:
        assert self.target is not None
        present = [broker.name for broker in self.brokers]
        missing = self.target - sum(broker.state != DRAINING for broker in sample.brokers)
        for name in list(self._drains)[: max(missing, 0)]:
            self._cancel_drain(name, now_s, "the target rose")
            missing -= 1
        for _ in range(missing):
            try:
                name = self._fleet.create(present)
            except BrokerUnavailable as error:
                self._note("broker_create_failed", now_s, error=str(error))
                return
            present.append(name)
            self._begun_s[name] = now_s
            self._note("broker_created", now_s, broker=name, target=self.target)
        if missing < 0 and not self._drains:
            victim = choose_victim(sample)
            if victim is not None:
                self._begin_drain(victim, now_s)

    def _begin_drain(self, victim: BrokerSample, now_s: float) -> None:
        observed = next(each for each in self.brokers if each.name == victim.name)
        if not observed.is_serving and victim.name in self._begun_s:
            # It never served, so it has received no messages.
            if self._try("broker_removed", now_s, self._fleet.remove, victim.name, None):
                del self._begun_s[victim.name]
            return
        waits = not self._limits.ignore_offline_groups
        self._drains[victim.name] = Drain(now_s, self._limits.drain_timeout_s, waits_for_offline_groups=waits)
        self._note(
            "drain_begun", now_s, broker=victim.name, lag_messages=victim.lag_messages, target=self.target
        )

    def _advance_drain(self, name: str, now_s: float) -> None:
        drain = self._drains[name]
        if not any(broker.name == name for broker in self.brokers):
            del self._drains[name]
            return
        try:
            progress = self._fleet.drain(name, "close" if drain.is_closed else "start")
            step = drain.step(progress, now_s)
            if step is DrainStep.CLOSE:
                progress = self._fleet.drain(name, "close")
                step = drain.step(progress, now_s)
            if step is DrainStep.STOP and not self._fleet.export(name):
                return  # the next tick renews the drain and looks again
        except BrokerUnavailable as error:
            if now_s - drain.begin_s > drain.timeout_s:
                self._give_up(name, now_s, str(error))
            return
        if step is DrainStep.GIVE_UP:
            self._give_up(name, now_s, drain.remaining(progress))
        elif step is DrainStep.STOP:
            unread = {group.group: group.unread for group in progress.absent}
            fields = {"after_s": round(now_s - drain.begin_s, 3), "unread_of_offline_groups": unread}
            if self._try("broker_removed", now_s, self._fleet.remove, name, unread, **fields):
                del self._drains[name]

    def _give_up(self, name: str, now_s: float, remaining: str) -> None:
        """Keep a broker whose drain took too long. It counts to the target again, until the next decision."""
        assert self.target is not None
        self._cancel_drain(name, now_s, f"not drained after {self._limits.drain_timeout_s:g} s: {remaining}")
        self.target, self._last_change_s = min(self.target + 1, self._rules.max), now_s

    def _cancel_drain(self, name: str, now_s: float, reason: str) -> None:
        del self._drains[name]
        # If the request fails, the broker cancels the drain itself when the drain lease expires.
        self._try("drain_cancelled", now_s, self._fleet.drain, name, "cancel", reason=reason)

    def _try(
        self, event: str, now_s: float, act: Callable[..., object], name: str, *arguments: Any, **fields: Any
    ) -> bool:
        """Call `act(name, *arguments)` and report it; report a failure too, which the next tick repeats."""
        try:
            act(name, *arguments)
        except BrokerUnavailable as error:
            self._note(f"{event}_failed", now_s, broker=name, error=str(error), **fields)
            return False
        self._note(event, now_s, broker=name, **fields)
        return True

    def _note(self, event: str, now_s: float, **fields: Any) -> None:
        self.events.append(ControllerEvent(now_s, event, fields))
        self.counts[event] += 1
        _log.info(event, **fields)
