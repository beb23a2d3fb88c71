"""Placement of actors on nodes by resources, and its error messages."""

from __future__ import annotations

from actors.host.ray_port import Node
from cluster.control.placement import place
from cluster.control.topology.topology import Topology

HEAD = Node("10.0.0.1", {"CPU": 2, "node:10.0.0.1": 1, "node:__internal_head__": 1}, is_head=True)
OTHER = Node("10.0.0.2", {"CPU": 2, "node:10.0.0.2": 1, "disk-b": 1}, is_head=False)


def topology(**broker: object) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b", **broker}]})


def test_actor_without_resource_is_bound_to_the_head_node() -> None:
    placement = place(topology(), [HEAD])
    assert not placement.problems
    assert set(placement.resources.values()) == {"node:10.0.0.1"}


def test_actor_with_resource_is_bound_to_its_node() -> None:
    wanted = Topology.model_validate(
        {
            "listen_host": "10.0.0.1",
            "brokers": [{"name": "b", "resource": "disk-b", "listen_host": "10.0.0.2"}],
        }
    )
    placement = place(wanted, [HEAD, OTHER])
    assert not placement.problems
    assert placement.resources["b-0"] == "disk-b"


def test_missing_resource_error_lists_the_resources_of_the_nodes() -> None:
    placement = place(topology(resource="disk-x"), [HEAD])
    assert placement.unplaceable
    (path, text), *_ = placement.problems
    assert path == ("brokers", 0, "resource")
    assert "no running node has the resource 'disk-x' (10.0.0.1 has node:10.0.0.1)" in text


def test_advertised_loopback_is_rejected_on_several_nodes() -> None:
    placement = place(topology(), [HEAD, OTHER])
    assert [path[0] for path, _ in placement.problems] == ["nameservers", "brokers", "rebalancers"]
    assert (
        "advertised address 127.0.0.1 is not reachable from other nodes of this Ray cluster (2 nodes)"
        in placement.problems[0][1]
    )
    assert not placement.unplaceable


def test_advertised_wildcard_address_is_rejected() -> None:
    placement = place(topology(listen_host="0.0.0.0"), [HEAD])
    assert placement.problems == [
        (
            ("brokers", 0, "advertised_host"),
            "clients cannot connect to 0.0.0.0; set advertised_host to an address of its node",
        )
    ]
