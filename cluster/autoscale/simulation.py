"""Simulation of an experiment: the decisions of the real controller against a model of brokers and nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.autoscale.decisions import actions, decide
from cluster.autoscale.experiment import Experiment
from cluster.autoscale.model import ClusterModel
from cluster.autoscale.run import Change, Run
from cluster.autoscale.samples import Sample
from cluster.autoscale.series import Point

HISTORY_S = 3_600
"""Age of the oldest sample that the decisions read, in seconds, unless the cool-down is longer."""


def simulate(experiment: Experiment, progress: Callable[[float], None] | None = None) -> Run:
    """Run `experiment` against the model, with elastic brokers.

    Args:
        experiment: The experiment.
        progress: Called with the time of the run, in seconds, after each sample.
    """
    model = ClusterModel(experiment)
    target = experiment.rules.min
    model.start(target)
    history: deque[Sample] = deque()
    keep_s = max(HISTORY_S, experiment.rules.cool_down_s)
    last_change_s: float | None = None
    run = Run("simulated", [Point(0.0, target=target, brokers_running=target, nodes=target)])
    while not _is_over(experiment, model):
        model.advance(model.now_s + experiment.sample_interval_s)
        sample = model.observe()
        history.append(sample)
        while history[0].time_s < sample.time_s - keep_s:
            history.popleft()
        decision = decide(experiment.rules, history, target, last_change_s)
        if decision.target != target:
            run.changes.append(Change(sample.time_s, target, decision))
            target, last_change_s = decision.target, sample.time_s
        wanted = actions(sample, target, "broker-{}".format)
        for name in wanted.drain:
            model.drain(name)
        for name in wanted.create:
            model.create(name)
        run.series.append(model.last._replace(target=target))
        if progress is not None:
            progress(sample.time_s)
    return run


def simulate_fixed(experiment: Experiment) -> Run:
    """Run the load of `experiment` against the model of a fixed cluster of `rules.max` brokers."""
    model = ClusterModel(experiment)
    size = experiment.rules.max
    model.start(size)
    run = Run("simulated", [Point(0.0, target=size, brokers_running=size, nodes=size)])
    while not _is_over(experiment, model):
        model.advance(model.now_s + experiment.sample_interval_s)
        model.observe()
        run.series.append(model.last._replace(target=size))
    return run


def _is_over(experiment: Experiment, model: ClusterModel) -> bool:
    """Return True once the load has ended and all messages are delivered, or cannot be in time."""
    end_s = experiment.run_s
    return model.now_s >= end_s and (model.is_empty or model.now_s >= end_s + experiment.drain_s)
