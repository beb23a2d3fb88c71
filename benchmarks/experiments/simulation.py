"""Simulation of an experiment: the real controller against a model of brokers and nodes."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.experiments.experiment import Experiment
from benchmarks.experiments.model import ClusterModel
from benchmarks.experiments.run import Change, Trial
from benchmarks.experiments.series import Point
from cluster.autoscale.controller import Controller, FleetLimits


def simulate(experiment: Experiment, progress: Callable[[float], None] | None = None) -> Trial:
    """Run `experiment` against the model, with elastic brokers.

    Args:
        experiment: The experiment.
        progress: Called with the time of the run, in seconds, after each sample.
    """
    model = ClusterModel(experiment)
    before = experiment.rules.min
    model.start(before)
    controller = Controller(experiment.rules, FleetLimits(), model, lambda: model.now_s)
    run = Trial("simulated", [Point(0.0, target=before, brokers_running=before, nodes=before)])
    controller.tick()
    while not _is_over(experiment, model):
        model.advance(model.now_s + experiment.sample_interval_s)
        decision = controller.tick()
        target = controller.target or before
        if target != before:
            run.changes.append(Change(model.now_s, before, decision))
            before = target
        run.series.append(model.last._replace(target=target))
        if progress is not None:
            progress(model.now_s)
    return run


def simulate_fixed(experiment: Experiment) -> Trial:
    """Run the load of `experiment` against the model of a fixed cluster of `rules.max` brokers."""
    model = ClusterModel(experiment)
    size = experiment.rules.max
    model.start(size)
    run = Trial("simulated", [Point(0.0, target=size, brokers_running=size, nodes=size)])
    while not _is_over(experiment, model):
        model.advance(model.now_s + experiment.sample_interval_s)
        model.observe()
        run.series.append(model.last._replace(target=size))
    return run


def _is_over(experiment: Experiment, model: ClusterModel) -> bool:
    """Return True once the load has ended and all messages are delivered, or cannot be in time."""
    end_s = experiment.run_s
    return model.now_s >= end_s and (model.is_empty or model.now_s >= end_s + experiment.drain_s)
