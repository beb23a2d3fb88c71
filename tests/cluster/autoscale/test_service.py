"""AutoscalerService in its host: its loop, a pause that outlives a restart, failures and the stop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from actors.host.service_host import EXIT_SERVICE_FAILED, ServiceHost
from cluster.autoscale.autoscaler_settings import AutoscalerSettings
from cluster.autoscale.controller import Controller, FleetLimits, Observed
from cluster.autoscale.rules import Rules
from cluster.autoscale.service import AutoscalerService
from cluster.control.drain import GroupLag
from tests.actors.host.metrics.scrapes import sent
from tests.cluster.autoscale.fake_fleet import FakeFleet
from tests.eventually import eventually

RULES = Rules(min=1, max=4, throughput_per_broker=100, cool_down_s=20, step=2)
TICK_S = 10


class BrokenFleet(FakeFleet):
    """A fleet with a bug: observing it raises an exception that no controller expects."""

    def observe(self) -> Sequence[Observed]:
        raise KeyError("messages_in")


class Autoscaler:
    """A service in its host, as an actor runs it. Each reading of its clock advances it by TICK_S."""

    def __init__(self, fleet: FakeFleet, directory: Path) -> None:
        self.exits: list[int] = []
        self._seconds = itertools.count(step=TICK_S)
        self._fleet = fleet
        self._directory = directory
        self.host = ServiceHost(self._make, exit_process=self.exits.append)

    def _make(self) -> AutoscalerService:
        def controller() -> Controller:
            return Controller(RULES, FleetLimits(), self._fleet, lambda: next(self._seconds))

        settings = AutoscalerSettings(rules=RULES, interval_s=0.1, metrics_port=0)
        self.service = AutoscalerService(
            controller, settings, self._directory, lambda why: self.host.fail(why)
        )
        return self.service

    def status(self) -> dict[str, Any]:
        return self.host.call_async(self.service.status)

    def set_paused(self, *, paused: bool) -> None:
        self.host.call_async(lambda: self.service.set_paused(paused=paused))


@contextmanager
def running(fleet: FakeFleet, directory: Path) -> Iterator[Autoscaler]:
    autoscaler = Autoscaler(fleet, directory)
    eventually(lambda: autoscaler.host.is_serving, "the service")
    try:
        yield autoscaler
    finally:
        autoscaler.host.stop()


def test_service_calls_its_controller_and_reports_its_status(tmp_path: Path) -> None:
    fleet = FakeFleet(offered_per_s=250)
    with running(fleet, tmp_path) as autoscaler:
        eventually(lambda: "equip b-3" in fleet.calls, "three brokers")
        status = autoscaler.status()
    assert (status["target"], status["is_paused"], status["rules"]["max"]) == (3, False, 4)


def test_service_serves_metrics_of_its_decisions(tmp_path: Path) -> None:
    fleet = FakeFleet(offered_per_s=250)
    with running(fleet, tmp_path) as autoscaler:
        eventually(lambda: "equip b-3" in fleet.calls, "three brokers")
        autoscaler.set_paused(paused=True)
        pages = [
            autoscaler.host.call_async(
                lambda path=path: sent(autoscaler.service.metrics.port, b"GET %b HTTP/1.1\r\n\r\n" % path)
            ).decode()
            for path in (b"/metrics", b"/healthz")
        ]
    own = 'node_type="autoscaler",node_id="autoscaler"'
    for line in (
        f"target_brokers{{{own}}} 3", f'brokers{{{own},state="running"}} 3', f"paused{{{own}}} 1",
        f'events_total{{{own},event="broker_created"}} 2',
    ):  # fmt: skip
        assert f"raymq_autoscaler_{line}\n" in pages[0]
    assert f"raymq_autoscaler_decisions_total{{{own}}} 0\n" not in pages[0]
    assert "serving" in pages[1]


def test_pause_outlives_a_restart_until_it_is_resumed(tmp_path: Path) -> None:
    fleet = FakeFleet()
    with running(fleet, tmp_path / "new") as autoscaler:
        autoscaler.set_paused(paused=True)
        autoscaler.set_paused(paused=True)
    fleet.offered_per_s = 250
    with running(fleet, tmp_path / "new") as autoscaler:
        eventually(lambda: autoscaler.status()["decision"]["target"] == 3, "a decision")
        assert autoscaler.status()["is_paused"]
        assert not any("create" in call for call in fleet.calls)
        autoscaler.set_paused(paused=False)
        autoscaler.set_paused(paused=False)
        eventually(lambda: "create b-3" in fleet.calls, "three brokers")
    with running(fleet, tmp_path / "new") as autoscaler:
        assert not autoscaler.status()["is_paused"]


def test_stop_cancels_the_drain_that_is_not_finished(tmp_path: Path) -> None:
    fleet = FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("slow", 1, 5)])
    with running(fleet, tmp_path):
        eventually(lambda: "b-2" in fleet.draining, "a drain")
    assert fleet.calls[-1] == "cancel b-2"
    assert not fleet.draining


def test_unexpected_exception_ends_the_process_with_its_reason(tmp_path: Path) -> None:
    with running(FakeFleet(), tmp_path) as autoscaler:
        eventually(lambda: autoscaler.status()["target"] == 1, "a tick")
    broken = Autoscaler(BrokenFleet(), tmp_path)
    eventually(lambda: broken.exits == [EXIT_SERVICE_FAILED], "the end of the process")
    assert broken.host.reason == "KeyError: 'messages_in'"
    broken.host.stop()
