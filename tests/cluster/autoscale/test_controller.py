"""The controller: scale out, scale in, deadlines, pause and faults, with a fake fleet and a fake clock."""

from __future__ import annotations

import pytest

from cluster.autoscale.controller import Controller, FleetLimits
from cluster.autoscale.decisions import START_S
from cluster.autoscale.rules import Rules
from cluster.control.drain import GroupLag
from tests.cluster.autoscale.fake_fleet import FakeFleet

RULES = Rules(min=1, max=4, throughput_per_broker=100, cool_down_s=20, step=2)
TICK_S = 5.0


class Run:
    """A controller with its fleet and a clock that each tick advances by TICK_S."""

    def __init__(
        self, fleet: FakeFleet | None = None, limits: FleetLimits | None = None, rules: Rules = RULES
    ) -> None:
        self.fleet = fleet or FakeFleet()
        self.now_s = 0.0
        self.controller = Controller(
            rules, limits or FleetLimits(drain_timeout_s=30), self.fleet, lambda: self.now_s
        )

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.controller.tick()
            self.now_s += TICK_S

    def events(self, *names: str) -> list[str]:
        found = [each for each in self.controller.events if each.event in names]
        return [f"{each.event} {each.fields.get('broker', '')}".strip() for each in found]


def test_load_adds_brokers_and_equips_them_once_they_serve() -> None:
    run = Run(FakeFleet(boots=False))
    run.ticks(1)
    run.fleet.offered_per_s = 250
    run.ticks(2)
    assert run.fleet.calls == ["equip b-1", "create b-2", "create b-3"]
    run.fleet.serving |= {"b-2": True, "b-3": True}
    run.ticks(3)
    assert run.fleet.calls[3:] == ["equip b-2", "equip b-3"]
    assert run.controller.target == 3
    decided = next(each for each in run.controller.events if each.event == "target_decided")
    assert (decided.fields["target"], decided.fields["in_per_s"]) == (3, 250)


def test_lower_load_drains_the_emptiest_broker_and_removes_it() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}))
    run.ticks(10)
    steps = [call for call in run.fleet.calls if "equip" not in call]
    assert steps[0] == "start b-2"
    assert "close b-2" in steps
    assert steps[-1] == "remove b-2"
    assert list(run.fleet.serving) == ["b-1"]
    assert run.events("broker_removed") == ["broker_removed b-2"]


def test_broker_is_removed_after_its_export_and_stays_drained_until_then() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, ticks_of_export=9))
    run.ticks(25)
    calls = run.fleet.calls[run.fleet.calls.index("export b-2") :]
    assert calls == ["export b-2", *(["close b-2", "export b-2"] * 9), "remove b-2"]


def test_broker_that_cannot_be_exported_stays_after_the_deadline() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, unavailable={"export"}))
    run.ticks(13)
    assert "remove b-2" not in run.fleet.calls
    cancelled = next(each for each in run.controller.events if each.event == "drain_cancelled")
    assert cancelled.fields["reason"] == "not drained after 30 s: b-2 does not respond"


def test_broker_with_unread_messages_stays_after_the_deadline() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("slow", 1, 5)]))
    run.ticks(13)
    assert "remove b-2" not in run.fleet.calls
    assert run.fleet.calls.count("cancel b-2") == 1
    cancelled = next(each for each in run.controller.events if each.event == "drain_cancelled")
    assert cancelled.fields["reason"] == "not drained after 30 s: unread messages of slow: 5"
    assert run.controller.target == 2
    assert not run.fleet.draining


@pytest.mark.parametrize("ignores", [False, True])
def test_offline_group_blocks_a_drain_only_until_the_deadline(ignores: bool) -> None:
    fleet = FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("offline", 0, 9)])
    run = Run(fleet, FleetLimits(drain_timeout_s=30, ignore_offline_groups=ignores))
    run.ticks(13)
    assert ("remove b-2" in fleet.calls) is ignores
    assert ("cancel b-2" in fleet.calls) is not ignores


def test_rising_load_cancels_a_drain_before_it_adds_a_broker() -> None:
    fleet = FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("slow", 1, 5)])
    run = Run(fleet, rules=RULES.model_copy(update={"step": 1}))
    run.ticks(6)
    assert list(run.fleet.draining) == ["b-2"]
    run.fleet.offered_per_s = 150
    run.ticks(2)
    assert run.fleet.calls[-1] == "cancel b-2"
    assert not any("create" in call for call in run.fleet.calls)
    assert run.controller.target == 2


def test_broker_that_never_served_is_removed_without_a_drain() -> None:
    run = Run(FakeFleet(boots=False, offered_per_s=150))
    run.ticks(1)
    assert list(run.fleet.serving) == ["b-1", "b-2"]
    run.fleet.offered_per_s = 10
    run.ticks(int(START_S / TICK_S) - 1)
    assert list(run.fleet.serving) == ["b-1", "b-2"]
    run.ticks(1)
    assert list(run.fleet.serving) == ["b-1"]
    assert not any("start" in call for call in run.fleet.calls)
    # the store that it may have from an earlier time stays as it is
    assert run.fleet.calls[-1] == "remove unused b-2"


def test_paused_controller_and_dry_run_decide_but_do_not_act() -> None:
    dry = Run(limits=FleetLimits(dry_run=True))
    paused = Run()
    paused.controller.pause()
    for run in (dry, paused):
        run.fleet.offered_per_s = 250
        run.ticks(3)
        assert run.fleet.calls == []
        assert run.controller.status()["decision"]["target"] == 3
        assert [each.event for each in run.controller.events] == ["target_decided"]
    paused.controller.resume()
    paused.ticks(1)
    assert "create b-2" in paused.fleet.calls


def test_dry_run_would_remove_brokers_without_load() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}), FleetLimits(dry_run=True))
    run.ticks(6)
    status = run.controller.status()
    assert (status["target"], status["decision"]["target"]) == (2, 1), status["decision"]["reason"]
    assert run.fleet.calls == []


def test_pause_cancels_an_unfinished_drain() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("slow", 1, 5)]))
    run.ticks(6)
    run.controller.pause()
    assert run.fleet.calls[-1] == "cancel b-2"


def test_misplaced_broker_is_created_again() -> None:
    run = Run(FakeFleet(misplaced={"b-1"}))
    run.ticks(2)
    assert run.fleet.calls.count("replace b-1") == 1


def test_misplaced_broker_is_created_again_while_it_is_drained() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, groups=[GroupLag("slow", 1, 5)]))
    run.ticks(6)
    run.fleet.misplaced.add("b-2")
    run.ticks(1)
    assert "replace b-2" in run.fleet.calls
    assert list(run.fleet.draining) == ["b-2"]


def test_failed_actions_are_reported_and_repeated() -> None:
    run = Run(FakeFleet(offered_per_s=150, unavailable={"create", "equip"}))
    run.ticks(2)
    assert run.events("broker_create_failed", "broker_joined_failed")
    run.fleet.unavailable.clear()
    run.ticks(1)
    assert {"create b-2", "equip b-1"} <= set(run.fleet.calls)


def test_unavailable_broker_keeps_its_drain_until_the_deadline() -> None:
    run = Run(FakeFleet(serving={"b-1": True, "b-2": True}, unavailable={"start"}))
    run.ticks(13)
    assert run.events("drain_begun", "drain_cancelled")[:2] == ["drain_begun b-2", "drain_cancelled b-2"]


def test_new_controller_takes_over_the_brokers_that_it_finds() -> None:
    fleet = FakeFleet(serving={"b-1": True, "b-2": True, "b-3": True}, offered_per_s=250)
    fleet.draining["b-3"] = "start"
    run = Run(fleet)
    run.ticks(1)
    assert run.controller.target == 3  # two brokers that accept messages, and one more for the load
    status = run.controller.status()
    assert [broker["state"] for broker in status["brokers"]][:2] == ["running", "running"]
    assert status["rules"]["max"] == 4
