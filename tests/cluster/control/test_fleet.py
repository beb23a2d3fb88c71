"""Calls of the driver to actors. Without Ray: what it would be asked for is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from actors.host import ray_port
from actors.host.ray_port import ActorMethodFailed, ActorName, ActorNotFound, ActorUnavailable
from cluster.control import fleet
from cluster.control.kinds import BROKER
from cluster.control.specs import ActorSpec

SPEC = ActorSpec(BROKER, "a-0", "C", {"broker_name": "a"}, ("h", 1), ("h", 1), "r", "/s")


class RecordingRay:
    """Replaces the functions of `ray_port` that change actors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.arguments: list[Mapping[str, Any]] = []
        self.failures: dict[str, Exception] = {}
        monkeypatch.setattr(ray_port, "call", self._call)
        monkeypatch.setattr(ray_port, "kill", lambda _: self.done.append("kill"))
        monkeypatch.setattr(ray_port, "create", self._create)

    def _call(self, _: ActorName, method: str, *arguments: Mapping[str, Any], timeout_s: float) -> None:
        self.done.append(method)
        self.arguments += arguments
        if method in self.failures:
            raise self.failures[method]

    def _create(
        self, _class: type, _: ActorName, arguments: tuple[Mapping[str, Any]], resources: Mapping[str, float]
    ) -> None:
        self.done.append("create")
        self.arguments += arguments


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> RecordingRay:
    return RecordingRay(monkeypatch)


def test_clean_stop_keeps_the_process_that_starts_again(ray: RecordingRay) -> None:
    assert fleet.stop("n", "a-0", keeps_process=True) == ""
    fleet.start_again("n", SPEC)
    assert ray.done == [fleet.STOP, fleet.START]


def test_actor_that_has_not_stopped_cleanly_is_removed(ray: RecordingRay) -> None:
    ray.failures[fleet.STOP] = ActorMethodFailed("TimeoutError")
    assert fleet.stop("n", "a-0", keeps_process=True) == "TimeoutError"
    assert ray.done == [fleet.STOP, "kill"]


@pytest.mark.parametrize(
    "failure",
    [ActorNotFound("gone"), ActorUnavailable("silent"), ActorMethodFailed("ValueError")],
    ids=["gone", "silent", "refused"],
)
def test_actor_that_cannot_start_again_is_replaced(ray: RecordingRay, failure: Exception) -> None:
    ray.failures[fleet.START] = failure
    fleet.start_again("n", SPEC)
    assert ray.done == [fleet.START, fleet.STOP, "kill", "create"]


def test_actor_knows_its_namespace_after_each_change_of_its_spec(ray: RecordingRay) -> None:
    """An elastic broker needs it to bind its store, when Ray restarts it with the changed spec."""
    fleet.create("n", SPEC)
    fleet.start_again("n", SPEC)
    assert fleet.change("n", SPEC) == ""
    assert [argument["namespace"] for argument in ray.arguments] == ["n", "n", "n"]
