"""Actors are bound by a resource, and what no node has is said with what the nodes do have."""

from __future__ import annotations

from actors.host.ray_port import Node
from cluster.driver.placement import place
from cluster.topology.topology import Topology

HEAD = Node("10.0.0.1", {"CPU": 2, "node:10.0.0.1": 1, "node:__internal_head__": 1}, is_head=True)
OTHER = Node("10.0.0.2", {"CPU": 2, "node:10.0.0.2": 1, "disk-b": 1}, is_head=False)


def topology(**broker: object) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b", **broker}]})


def test_without_a_resource_an_actor_is_bound_to_the_head_node() -> None:
    placement = place(topology(), [HEAD])
    assert not placement.problems
    assert set(placement.resources.values()) == {"node:10.0.0.1"}


def test_a_named_resource_binds_to_the_node_that_has_it() -> None:
    wanted = Topology.model_validate(
        {
            "listen_host": "10.0.0.1",
            "brokers": [{"name": "b", "resource": "disk-b", "listen_host": "10.0.0.2"}],
        }
    )
    placement = place(wanted, [HEAD, OTHER])
    assert not placement.problems
    assert placement.resources["b-0"] == "disk-b"


def test_a_resource_that_nobody_has_is_named_with_what_there_is() -> None:
    placement = place(topology(resource="disk-x"), [HEAD])
    assert placement.unplaceable
    (path, text), *_ = placement.problems
    assert path == ("brokers", 0, "resource")
    assert "no living node has the resource 'disk-x' (10.0.0.1 has node:10.0.0.1)" in text


def test_loopback_is_refused_where_other_nodes_must_dial_it() -> None:
    placement = place(topology(), [HEAD, OTHER])
    assert [path[0] for path, _ in placement.problems] == ["nameservers", "brokers", "rebalancers"]
    assert (
        "127.0.0.1 is advertised, which other nodes of this Ray cluster (it has 2) cannot dial"
        in placement.problems[0][1]
    )
    assert not placement.unplaceable


def test_an_address_that_nobody_can_dial_is_refused() -> None:
    placement = place(topology(listen_host="0.0.0.0"), [HEAD])
    assert placement.problems == [
        (
            ("brokers", 0, "advertised_host"),
            "0.0.0.0 cannot be dialed; set advertised_host to an address of its node",
        )
    ]
