"""Stops of replicas that take away the majority of a Raft group. Without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.control.kinds import BROKER
from cluster.control.majorities import lost_majorities
from cluster.control.plan import Running
from cluster.control.specs import ActorSpec


def replica(number: int, state: str = "follower", voters: str = "0, 1, 2", **changes: Any) -> Running:
    none = ("", 0)
    settings = {"broker_name": "a", "replica": number, "replication": "raft"}
    spec = ActorSpec(BROKER, f"a-{number}", "C", settings, none, none, "", f"/store/a-{number}")
    details = {"raft_state": state, "raft_term": changes.pop("term", 7), "raft_voter_numbers": voters}
    details["raft_voters"] = len(voters.split(",")) if voters else 0
    return Running("raymq", spec.name, spec, **{"state": "serving", "details": details, **changes})


THREE = [replica(0, "leader"), replica(1), replica(2)]
LOST = replica(1, "this replica takes no part in its group: its log is damaged")
EMPTY = replica(2, voters="", term=0)
SILENT = replica(1, state="silent", details={})


@pytest.mark.parametrize(
    ("running", "stopped", "left"),
    [
        pytest.param(THREE, ["a-1"], None, id="one of three"),
        pytest.param(THREE, ["a-1", "a-2"], 1, id="two of three"),
        pytest.param(THREE, ["a-0", "a-1", "a-2"], 0, id="all"),
        pytest.param([THREE[0], LOST, THREE[2]], ["a-2"], 1, id="failed replica"),
        pytest.param([THREE[0], LOST, THREE[2]], ["a-1"], None, id="stop of the failed replica"),
        pytest.param([*THREE[:2], EMPTY], ["a-1"], 1, id="replica that lost its store"),
        pytest.param([THREE[0], SILENT, THREE[2]], ["a-0"], 1, id="silent replica"),
        pytest.param(THREE[:2], ["a-0"], 1, id="replica that does not run"),
        pytest.param(THREE[:1], ["a-0"], None, id="no majority before"),
        pytest.param([*THREE, replica(3)], ["a-3"], None, id="learner"),
        pytest.param([replica(0, "leader", "0"), *THREE[1:]], ["a-1", "a-2"], None, id="removed members"),
        pytest.param(
            [replica(0, "leader", "0", term=8), replica(1, "leader")], ["a-1"], None, id="former leader"
        ),
        pytest.param([], ["a-0"], None, id="nothing runs"),
    ],
)
def test_stop_of_a_majority_is_named(running: list[Running], stopped: list[str], left: int | None) -> None:
    found = list(lost_majorities(running, stopped))
    assert len(found) == (left is not None)
    assert left is None or f"the Raft group a would have {left} of its 3 voters left, needs 2" in found[0]


def test_group_that_is_removed_as_a_whole_may_lose_its_majority() -> None:
    assert not list(lost_majorities(THREE, ["a-0", "a-1", "a-2"], kept=["b"]))
    assert list(lost_majorities(THREE, ["a-1", "a-2"], kept=["a", "b"]))
