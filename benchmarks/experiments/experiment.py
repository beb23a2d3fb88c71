"""Experiment: one load profile against one set of rules, read from `configs/experiments/NAME.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchmarks.experiments.profile import PROFILES, Period, Profile, Seconds
from cluster.autoscale.rules import Positive, Rules
from cluster.control.topology.topology import KeyPath, Problem
from cluster.control.topology.topology_file import (
    Source,
    TopologyError,
    apply_override,
    explain_invalid,
    read_yaml,
)

EXAMPLE = "configs/experiments/step.yaml"
SHIPPED = Path(__file__).parents[2] / "configs" / "experiments"


class ExperimentError(Exception):
    """The experiment is invalid; the message has one line per problem, with file, line and key path."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StartableNodes(_Model):
    """A type of node that Ray's autoscaler may start.

    Attributes:
        resources: Ray resources of one node, by name.
        max: Maximum number of nodes of this type.
        boot_delay_s: Seconds from the request for a node until it starts.
    """

    resources: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)]
    max: int = Field(ge=1)
    boot_delay_s: Seconds = 0


class Caps(_Model):
    """Limits of the rates, without which more brokers gain nothing on a machine with few cores.

    Attributes:
        broker_per_s: Messages per second that one broker accepts, and that it delivers.
        consumer_per_s: Messages per second that one consumer consumes.
    """

    broker_per_s: Positive
    consumer_per_s: Positive


class ClientLoad(_Model):
    """The programs that send and receive.

    Attributes:
        producers: Number of producers; they share the offered rate.
        consumers: Number of consumers, in one group.
        keys: Number of different message keys. Messages with the same key are consumed in order.
        body_bytes: Size of a message body.
        route_refresh_s: Interval at which clients refresh the routes.
    """

    producers: int = Field(1, ge=1)
    consumers: int = Field(1, ge=1)
    keys: int = Field(100, ge=1)
    body_bytes: int = Field(128, ge=1)
    route_refresh_s: Period = 2


class Model(_Model):
    """Times of the simulated nodes and brokers, as measured on one machine.

    Attributes:
        node_join_s: Seconds from the start of a node, after `boot_delay_s`, until it has joined the cluster.
        broker_start_s: Seconds from the request for a broker on a running node until it accepts messages.
        latency_s: End-to-end latency of a message that waits nowhere.
    """

    node_join_s: Seconds = 0
    broker_start_s: Seconds = 3
    latency_s: Seconds = 0.01


class Fault(_Model):
    """A fault that a measured run injects once.

    Attributes:
        kill: `node`: the node of the broker is lost, and its disk survives. `controller`: the controller is
            replaced by a new one, which knows only the brokers that it finds. `gcs`: Ray's GCS on the head
            node is killed and started again.
        during: As soon as an added broker starts (`scale_out`), or a broker is drained (`scale_in`).
    """

    kill: Literal["node", "controller", "gcs"]
    during: Literal["scale_out", "scale_in"]


class ExpectedLimits(_Model):
    """What must hold for the measures of the experiment; see `benchmarks.experiments.summary`.

    Attributes:
        relief_s: Maximum time from a rise of the load until the backlog shrinks, without node boots.
        delivered_ratio: Minimum of delivered ÷ offered messages.
        node_seconds_ratio: Maximum of the node-seconds ÷ those of a fixed cluster of `rules.max` brokers.
            None: not limited.
    """

    relief_s: Seconds = 15
    delivered_ratio: Annotated[float, Field(ge=0, le=1)] = 0.999
    node_seconds_ratio: Annotated[float, Field(gt=0)] | None = None


class Experiment(_Model):
    """A load profile, rules, nodes and clients.

    Times of the profile and `duration_s` pass `time_scale` times faster in the run; all other times are
    those of the run.

    Attributes:
        name: Name of the experiment; by default that of its file.
        profile: The offered load.
        duration_s: Duration of the load, in the profile's time.
        time_scale: Seconds of the profile that pass in one second of the run.
        rules: The rules of the elastic brokers.
        resource: Ray resource of which each elastic broker takes 1.
        node_types: Node types by name; at least one offers `resource`.
        idle_timeout_s: Seconds after which Ray's autoscaler removes an unused node.
        sample_interval_s: Seconds between two samples, each followed by one decision.
        caps: Limits of the rates.
        clients: Producers and consumers.
        model: Times of the simulated nodes and brokers.
        baseline: How the comparison with a fixed cluster of `rules.max` brokers is made: by another measured
            run, or by a simulation. A simulated experiment always has a simulated baseline.
        limits: What must hold for the measures.
        faults: Faults that a measured run on this machine injects.
        drain_s: Maximum time, after the load has ended, until all messages are delivered.
    """

    name: str = ""
    profile: Profile
    duration_s: Period
    time_scale: Positive = 1
    rules: Rules
    resource: str = "broker_slot"
    node_types: Annotated[dict[str, StartableNodes], Field(min_length=1)]
    idle_timeout_s: Seconds = 5
    sample_interval_s: Period = 1
    caps: Caps
    clients: ClientLoad = ClientLoad()
    model: Model = Model()
    baseline: Literal["measure", "simulate"] = "simulate"
    limits: ExpectedLimits = ExpectedLimits()
    faults: tuple[Fault, ...] = ()
    drain_s: Seconds = 60

    @property
    def run_s(self) -> float:
        """The duration of the load in the run, in seconds."""
        return self.duration_s / self.time_scale

    @property
    def boot_delay_s(self) -> float:
        """The boot delay of the node type on which the brokers run."""
        return self.broker_node.boot_delay_s

    @property
    def broker_node(self) -> StartableNodes:
        """The first node type that offers `resource`."""
        return next(each for each in self.node_types.values() if each.resources.get(self.resource, 0) >= 1)

    def offered_per_s(self, run_time_s: float) -> float:
        """Return the offered rate at a time of the run; 0 once the load has ended."""
        return self.profile.rate_per_s(run_time_s * self.time_scale) if run_time_s < self.run_s else 0.0


def load_experiment(file: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment and validate it.

    Args:
        file: Path of the YAML file, or the name of a shipped experiment.
        overrides: Replaced values as `key.path=value`.

    Raises:
        ExperimentError: The file cannot be read, or the experiment is invalid.
    """
    path = _find(file)
    try:
        data, lines = read_yaml(path, "an experiment", EXAMPLE)
        source = Source(str(file), lines, {})
        for override in overrides:
            apply_override(data, override, source)
        data.setdefault("name", path.stem)
        return _validate(data, path.parent, source)
    except TopologyError as error:
        raise ExperimentError(str(error)) from None


def _find(file: str | Path) -> Path:
    path = Path(file)
    if path.is_file():
        return path
    shipped = SHIPPED / f"{path.stem}.yaml"
    if path.parts[:-1] in ((), ("configs", "experiments")) and shipped.is_file():
        return shipped
    known = ", ".join(sorted(each.stem for each in SHIPPED.glob("*.yaml")))
    raise ExperimentError(f"{path}: no such file; pass an experiment file, or one of {known}")


def _validate(data: dict[str, Any], directory: Path, source: Source) -> Experiment:
    at: KeyPath = ()
    model: type[BaseModel] = Experiment
    context = {"directory": directory}
    try:
        profile = data.get("profile")
        if isinstance(profile, dict):
            if (kind := profile.get("kind")) not in PROFILES:
                text = f"{kind!r} is invalid: use {', '.join(PROFILES)}"
                raise source.error([(("profile", "kind"), text)])
            # validated by itself: errors of pydantic's union would name no keys of the chosen kind
            at, model = ("profile",), PROFILES[kind]
            data["profile"] = model.model_validate(profile, context=context)
            at, model = (), Experiment
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        raise source.error(explain_invalid(error, model, at)) from None
    if problems := find_problems(experiment):
        raise source.error(problems)
    return experiment


def find_problems(experiment: Experiment) -> list[Problem]:
    """Return contradictions between keys: a resource without node type, too few nodes, unreachable rules."""
    problems: list[Problem] = []
    rules, caps, resource = experiment.rules, experiment.caps, experiment.resource
    offering = [each for each in experiment.node_types.values() if each.resources.get(resource, 0) >= 1]
    if not offering:
        offered = sorted({name for each in experiment.node_types.values() for name in each.resources})
        text = f"no node type offers 1 of {resource!r}, only {', '.join(offered)}: add it to a node type"
        problems.append((("resource",), text))
    elif (slots := sum(int(each.resources[resource]) * each.max for each in offering)) < rules.max:
        text = f"{rules.max} brokers need {rules.max} of {resource!r}, but the node types offer {slots}"
        problems.append((("rules", "max"), f"{text}: lower it, or raise max of a node type"))
    if rules.throughput_per_broker > caps.broker_per_s:
        text = (
            f"{rules.throughput_per_broker:,g} exceeds caps.broker_per_s {caps.broker_per_s:,g}, "
            "the highest rate of a broker: lower it, or raise the cap"
        )
        problems.append((("rules", "throughput_per_broker"), text))
    if experiment.sample_interval_s > experiment.run_s:
        text = f"{experiment.sample_interval_s} is longer than the run of {experiment.run_s} s"
        problems.append((("sample_interval_s",), f"{text}: shorten it, or lengthen duration_s"))
    return problems
