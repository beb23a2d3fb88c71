"""FaultInjector: each fault of an experiment is injected once, in its phase."""

from __future__ import annotations

from benchmarks.experiments.experiment import Fault
from benchmarks.experiments.faults import FaultInjector
from benchmarks.experiments.run import Injected


def test_controller_is_killed_once_in_each_wanted_phase() -> None:
    kills: list[str] = []
    faults = [Fault(kill="controller", during="scale_in"), Fault(kill="controller", during="scale_out")]
    injector = FaultInjector(
        faults, "test", "slot", kills.append, {"controller": lambda: kills.append("controller")}
    )

    injector.inject(1.0, {"b-1": "running"})
    assert kills == []
    injector.inject(2.0, {"b-1": "running", "b-2": "starting"})
    injector.inject(3.0, {"b-1": "running", "b-2": "starting"})
    assert kills == ["controller"]
    injector.inject(4.0, {"b-1": "running", "b-2": "draining"})

    assert kills == ["controller", "controller"]
    assert injector.injected == [
        Injected(2.0, "the controller was killed while b-2 started"),
        Injected(4.0, "the controller was killed while b-2 was drained"),
    ]
