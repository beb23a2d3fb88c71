"""Placement of elastic brokers: resources that no node has yet, and the reasons why brokers wait."""

from __future__ import annotations

import pytest
from ray.core.generated.autoscaler_pb2 import AutoscalingState

from actors.host.node_address import located_settings, located_spec
from actors.host.ray_port import Node
from actors.host.store_binding import StoreBinding, may_start
from cluster.control.autoscaler import from_state
from cluster.control.placement import RayAutoscaler, pending_reason, place
from cluster.control.topology.topology import Topology

HEAD = Node("10.0.0.1", {"node:10.0.0.1": 1, "node:__internal_head__": 1}, is_head=True)
SLOT = Node("10.0.0.2", {"broker_slot": 1}, is_head=False)
ELASTIC = {"pattern": "b-{n}", "min": 1, "max": 8, "resource": "broker_slot"}
TOPOLOGY = Topology.model_validate({"brokers": ELASTIC})
ANY, OTHERS = RayAutoscaler(is_running=True), RayAutoscaler(is_running=True, offered={"gpu_slot"})


def test_resource_that_the_autoscaler_may_add_is_accepted() -> None:
    for autoscaler in (ANY, RayAutoscaler(is_running=True, offered={"broker_slot"})):
        placement = place(TOPOLOGY, [HEAD], autoscaler)
        assert not placement.problems
        assert placement.resources["b-1-0"] == "broker_slot"


def test_resource_that_no_node_type_offers_is_refused() -> None:
    (path, text), *_ = place(TOPOLOGY, [HEAD], OTHERS).problems
    assert path == ("brokers", 0, "resource")
    assert "no running node has the resource 'broker_slot'" in text
    assert "Ray's autoscaler can only add gpu_slot" in text
    assert place(TOPOLOGY, [HEAD], RayAutoscaler()).unplaceable == ["b-1-0"]


def test_resource_of_a_fixed_broker_must_exist_despite_an_autoscaler() -> None:
    fixed = Topology.model_validate({"brokers": [{"name": "b", "resource": "disk-b"}]})
    assert place(fixed, [HEAD], ANY).unplaceable == ["b-0"]


def test_loopback_is_accepted_if_all_nodes_have_loopback_addresses() -> None:
    first = Node("127.0.0.1", {"node:__internal_head__": 1, "node:127.0.0.1": 1}, is_head=True)
    second = Node("127.0.1.1", {"broker_slot": 1}, is_head=False)
    assert not place(TOPOLOGY, [first, second]).problems
    assert [path[-1] for path, _ in place(TOPOLOGY, [first, SLOT]).problems] == ["advertised_host"] * 3


@pytest.mark.parametrize(
    ("nodes", "free", "autoscaler", "reason"),
    [
        ([HEAD, SLOT], 1.0, ANY, ""),
        (
            [HEAD], 0.0, RayAutoscaler(),
            "no live node has the resource 'broker_slot'; no autoscaler of Ray runs",
        ),
        ([HEAD, SLOT], 0.0, ANY, "all 1 units of 'broker_slot' on 1 node are taken; waiting for Ray's auto"),
        ([HEAD], 0.0, OTHERS, "no node type of Ray's autoscaler has it; add a node type"),
        ([HEAD], 0.0, RayAutoscaler(is_running=True, infeasible={"broker_slot"}), "no node type of Ray's"),
        ([HEAD], 0.0, RayAutoscaler(is_running=True, starting=2), "Ray's autoscaler is starting 2 nodes"),
        ([HEAD], 0.0, RayAutoscaler(is_running=True, failures=["b: quota"]), "could not start a node (b: q"),
    ],
)  # fmt: skip
def test_pending_broker_has_a_reason(
    nodes: list[Node], free: float, autoscaler: RayAutoscaler, reason: str
) -> None:
    found = pending_reason("broker_slot", nodes, free, autoscaler)
    assert reason in found
    assert bool(found) == bool(reason)


def test_infeasible_requests_are_read_from_the_state_of_the_autoscaler() -> None:
    state = AutoscalingState(autoscaler_state_version=3)
    state.infeasible_resource_requests.add().resources_bundle.update({"gpu_slot": 1.0, "node:10.0.0.1": 0.01})
    state.pending_instance_requests.add(count=2)
    state.failed_instance_requests.add(ray_node_type_name="big", reason="quota")
    assert from_state(state, {"broker_slot": 4, "gpu_slot": 0}) == RayAutoscaler(
        is_running=True,
        offered=frozenset({"broker_slot"}),
        infeasible=frozenset({"gpu_slot"}),
        starting=2,
        failures=["big: quota"],
    )


def test_broker_starts_only_with_its_store_or_a_released_binding() -> None:
    held = StoreBinding("10.0.0.2", "/disk/b-1-0")
    assert may_start(None, has_store=False)
    assert may_start(held, has_store=True)
    assert not may_start(held, has_store=False)
    assert may_start(StoreBinding("10.0.0.2", "/disk/b-1-0", is_released=True), has_store=False)
    assert StoreBinding.decode(held.encode()) == held


def test_store_is_in_use_until_its_broker_is_removed_or_released() -> None:
    assert StoreBinding("10.0.0.2", "/disk/b-1-0").is_in_use
    assert not StoreBinding("10.0.0.2", "/disk/b-1-0", is_released=True).is_in_use
    assert not StoreBinding("10.0.0.2", "/disk/b-1-0", unread={"offline": 3}).is_in_use


def test_node_address_replaces_the_host_name_node() -> None:
    settings = {"listen_host": "node", "advertised_host": "node", "listen_port": 1}
    assert located_settings(settings, "10.0.0.2") == {
        "listen_host": "10.0.0.2", "advertised_host": "10.0.0.2", "listen_port": 1,
    }  # fmt: skip
    spec = {"listen": ["node", 1], "advertised": ["node", 1], "settings": settings}
    assert located_spec(spec, "10.0.0.2") == {
        "listen": ["10.0.0.2", 1], "advertised": ["10.0.0.2", 1], "settings": settings,
    }  # fmt: skip
