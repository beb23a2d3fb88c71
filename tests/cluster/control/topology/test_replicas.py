"""Entries of `brokers` with replicas: the actors they stand for, and the refusal of invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.host.ray_port import Node
from cluster.control.driver import demand_of
from cluster.control.kinds import make_specs
from cluster.control.placement import place
from cluster.control.specs import ActorSpec
from cluster.control.topology.problems import find_problems
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source, TopologyError, load_topology, load_with_source
from tests.certificates import Authority

THREE_ON_ONE_NODE = "replicas: 3, replication: sync, replicas_on_one_node: true"
RAFT_KEYS = "replicas: 3, replication: raft, replicas_on_one_node: true"
PAIR_KEYS = "replicas: 2, replication: async, resources: [x, y]"
RAFT = {"name": "a", "replicas": 3, "replication": "raft", "resources": ["x", "y", "z"]}
PAIR = {"name": "a", "replicas": 2, "replication": "async", "resources": ["disk-1", "disk-2"]}


def topology(entry: dict[str, Any], **keys: Any) -> Topology:
    return Topology.model_validate({"brokers": [entry], **keys})


def specs(given: Topology, home: Path) -> list[ActorSpec]:
    names = {name: entry.resource or "node:1" for _, name, entry in given.listeners()}
    found = make_specs(given, home, names, Source("t.yaml", {}, {}))
    return [spec for spec in found if spec.kind.name == "broker"]


def refusal(tmp_path: Path, entry: str, more: str = "") -> str:
    file = tmp_path / "t.yaml"
    file.write_text(f"cluster: C\n{more}\nbrokers: [{{name: a, {entry}}}]\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    return str(caught.value).replace(str(file), "t.yaml")


def test_each_replica_has_its_own_node_store_ports_and_role(tmp_path: Path) -> None:
    master, slave = specs(topology({**PAIR, "replication": "sync", "in_sync_replicas": 2}), tmp_path)
    assert (master.name, slave.name) == ("a-0", "a-1")
    assert (master.resource, slave.resource) == ("disk-1", "disk-2")
    assert (master.store, slave.store) == (f"{tmp_path}/store/a-0", f"{tmp_path}/store/a-1")
    assert (master.listen[1], slave.listen[1]) == (10911, 10921)
    first, second = (BrokerSettings.model_validate(each.settings) for each in (master, slave))
    assert (first.role, first.replica, first.replication, first.in_sync_replicas) == ("master", 0, "sync", 2)
    assert (second.role, second.replica, second.replication) == ("slave", 1, "")
    assert (first.broker_name, second.broker_name) == ("a", "a")
    assert demand_of(slave).identity == demand_of(slave, slave).identity
    assert demand_of(slave).identity.replica == 1  # type: ignore[union-attr]


def test_single_broker_keeps_its_name_and_settings(tmp_path: Path) -> None:
    (plain,) = specs(topology({"name": "a"}), tmp_path)
    (also,) = specs(topology({"name": "a", "replicas": 1}), tmp_path)
    assert plain == also
    assert plain.name == "a-0"
    assert not {"role", "replica", "replication"} & plain.settings.keys()


def test_single_broker_with_replication_opens_the_ha_port(tmp_path: Path) -> None:
    (only,) = specs(topology({"name": "a", "replication": "async"}), tmp_path)
    assert (only.name, only.settings["replication"]) == ("a-0", "async")


def test_ha_port_of_a_new_master_must_be_free(tmp_path: Path) -> None:
    master, slave = specs(topology(PAIR), tmp_path)
    (single,) = specs(topology({"name": "a"}), tmp_path)
    assert [demand_of(spec).ha_port for spec in (master, slave, single)] == [10912, 0, 0]
    assert demand_of(master, master).ha_port == 0
    assert demand_of(master, single).ha_port == 10912
    assert demand_of(master, freed=[master.ha_listen]).ha_port == 0
    (elsewhere,) = specs(
        topology({"name": "a", "listen_port": 0, "settings": {"replication": "async", "haListenPort": 7}}),
        tmp_path,
    )
    assert demand_of(elsewhere).ha_port == 7
    open_port = topology({**PAIR, "listen_port": 0})
    assert [demand_of(spec).ha_port for spec in specs(open_port, tmp_path)] == [0, 0]


def test_replica_0_keeps_the_store_of_a_single_broker(tmp_path: Path) -> None:
    found = specs(topology({**PAIR, "store": "/data/a"}), tmp_path)
    assert [spec.store for spec in found] == ["/data/a", "/data/a-1"]


def test_free_ports_are_kept_per_replica(tmp_path: Path) -> None:
    given = topology({**PAIR, "listen_port": 0}).with_ports({"a-0": 4000, "a-1": 5000})
    assert [spec.listen[1] for spec in specs(given, tmp_path)] == [4000, 5000]
    assert [spec.name for spec in specs(Topology.model_validate(given.plain()), tmp_path)] == ["a-0", "a-1"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("replicas: 2, replicas_on_one_node: true", "2 replicas need the key replication: async"),
        ("replicas: 2, replication: async", "[0].replicas: 2 replicas need resources: [...]"),
        ("replicas: 0", "[0].replicas: 0 is less than the minimum 1"),
        ("replicas: 17, replication: async", "17 is greater than the maximum 16"),
        ("replicas: 3, replication: paxos", "'paxos' is invalid: use 'async', 'sync' or 'raft'"),
        ("replication: raft", "[0].replication: raft needs replicas: 3 or more, not 1"),
        ("replicas: 2, replication: raft, resources: [x, y]", "raft needs replicas: 3 or more, not 2"),
        ("replicas: 3, replication: raft", "[0].replicas: 3 replicas need resources: [...]"),
        ("settings: {replication: raft}", "settings.replication: raft is not possible for a single broker"),
        (f"{RAFT_KEYS}, in_sync_replicas: 2", "only with replication: sync"),
        (f"{RAFT_KEYS}, settings: {{raft_members: [x]}}", "`raymq up` finds the ids of the stores"),
        ("replication: sync", "[0].replication: sync needs replicas: 2 or more"),
        (f"{PAIR_KEYS}, in_sync_replicas: 2", "only with replication: sync"),
        ("replicas: 2, replication: sync, resources: [x, y], in_sync_replicas: 3", "3 exceeds replicas 2"),
        (f"{THREE_ON_ONE_NODE}, in_sync_replicas: 3", "address once; use 2"),
        ("replicas: 2, replication: async, resources: [x]", "1 resources for 2 replicas"),
        ("replicas: 2, replication: async, resources: [x, x]", "[0].resources: 'x' is named twice"),
        ("resources: [x], resource: y", "either resource or resources"),
        (f"{PAIR_KEYS}, advertised_port: 9", "port of several replicas"),
        (f"{PAIR_KEYS}, listen_port: 65525", "would be 65536"),
        (f"{PAIR_KEYS}, settings: {{role: slave}}", "none: it depends on"),
        (f"{PAIR_KEYS}, settings: {{replication: sync}}", "brokers[].replication"),
    ],
)  # fmt: skip
def test_invalid_replicas_are_refused_with_remedy(tmp_path: Path, entry: str, message: str) -> None:
    found = refusal(tmp_path, entry)
    assert message in found
    assert "t.yaml:3: brokers[0]" in found


@pytest.mark.parametrize(
    ("entry", "more", "message"),
    [
        (PAIR_KEYS, "nameservers: [{resource: x, listen_port: 10912}]", "HA port 127.0.0.1:10912 is already"),
        (PAIR_KEYS, "nameservers: [{resource: y, listen_port: 10922}]", "HA port 127.0.0.1:10922 is already"),
        (PAIR_KEYS, "gateways: [{resource: y, listen_port: 10922}]", "by brokers[0] for slaves; use another"),
        (f"{THREE_ON_ONE_NODE}, settings: {{ha_listen_port: 7}}", "", "HA port 127.0.0.1:7 is already used"),
        ("settings: {replication: sync, haListenPort: 9876}", "", "or set ha_listen_port in its setti"),
    ],
)  # fmt: skip
def test_ha_port_of_another_process_is_refused(tmp_path: Path, entry: str, more: str, message: str) -> None:
    assert message in refusal(tmp_path, entry, more)


def test_ha_ports_on_different_nodes_may_be_equal(tmp_path: Path) -> None:
    given = topology({**PAIR, "settings": {"ha_listen_port": 7}}, nameservers=[{"listen_port": 10912}])
    assert find_problems(given, tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        (
            "replication: sync, resources: [x, y, z]",
            "in_sync_replicas: 2 of 3 replicas: if a slave is promoted",
        ),
        ("replication: sync, resources: [x, y, z], in_sync_replicas: 3", ""),
        ("replication: async, resources: [x, y, z]", ""),
        ("replication: sync, replicas_on_one_node: true", ""),
    ],
)
def test_group_that_acknowledges_on_both_sides_of_a_division_is_named(
    tmp_path: Path, keys: str, warned: str
) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"cluster: C\nbrokers: [{{name: a, replicas: 3, {keys}}}]\n")
    warnings = load_with_source(file)[1].warnings
    assert len(warnings) == bool(warned)
    assert all(f"t.yaml:2: brokers[0].{warned}" in each for each in warnings)


def test_elastic_brokers_with_replicas_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("brokers: {pattern: 'b-{n}', max: 2, resource: r, replicas: 2}\n")
    with pytest.raises(TopologyError, match="elastic brokers have one replica each, so replicas is not"):
        load_topology(file)


def test_group_with_users_and_a_closed_ha_port_is_refused(tmp_path: Path) -> None:
    protected = topology({**PAIR, "settings": {"authentication_enabled": True}})
    with pytest.raises(TopologyError, match=r"\[0\].replication: authentication_enabled closes the HA port"):
        specs(protected, tmp_path)
    settings = {"authentication_enabled": True, "ha_allow_unauthenticated": True}
    assert specs(topology({**PAIR, "settings": settings}), tmp_path)
    tls = {"tls_certificate": "/c", "tls_key": "/k", "tls_ca": "/ca", "ha_tls": True}
    settings = {"authentication_enabled": True, **tls}
    assert specs(topology({**PAIR, "settings": settings}), tmp_path)


@pytest.mark.parametrize("replication", ["async", "sync"])
def test_pair_whose_clients_could_pass_for_replicas_is_refused(tmp_path: Path, replication: str) -> None:
    tls = {"tls_certificate": "/c", "tls_key": "/k", "tls_ca": "/ca", "ha_tls": True}
    authority, others = Authority(tmp_path / "pki"), Authority(tmp_path / "clients")
    copy = tmp_path / "copy.pem"
    copy.write_bytes(authority.ca_file.read_bytes())
    for cas, is_refused in (
        (("/ca", "/ca"), True),
        ((authority.ca_file, copy), True),
        ((authority.ca_file, others.ca_file), False),
        (("/ca", "/clients"), False),  # files of other machines are compared there
    ):
        settings = tls | {"tls_ca": str(cas[0]), "tls_client_ca": str(cas[1])}
        given = {**PAIR, "replication": replication, "settings": settings}
        if is_refused:
            with pytest.raises(TopologyError, match=r"\[0\].replication: tls_ca .* also trusts the CA of"):
                specs(topology(given), tmp_path)
        else:
            assert specs(topology(given), tmp_path)
    given["settings"] = tls | {"ha_tls": False, "tls_client_ca": "/ca"}
    assert specs(topology(given), tmp_path)


def test_two_replicas_that_fit_on_one_node_only_are_refused() -> None:
    both = [
        Node("10.0.0.1", {"disk-1": 1, "disk-2": 1}, is_head=True),
        Node("10.0.0.2", {"other": 1}, is_head=False),
    ]
    given = {**PAIR, "listen_host": "node", "advertised_host": "10.0.0.1"}
    found = place(topology(given), both)
    assert any("a-0 and a-1 would run on the same node 10.0.0.1" in text for _, text in found.problems)
    found = place(topology({**given, "replicas_on_one_node": True}), both)
    assert not any("same node" in text for _, text in found.problems)


def test_promoted_replica_is_the_master_and_cannot_be_removed(tmp_path: Path) -> None:
    masters = {"a": (3, 1)}
    pair = topology({**PAIR, "replication": "sync", "in_sync_replicas": 2}).with_masters(masters)
    old, new = (BrokerSettings.model_validate(each.settings) for each in specs(pair, tmp_path))
    assert (old.role, old.replica, old.group_epoch, old.replication) == ("slave", 0, 3, "")
    assert (new.role, new.replica, new.group_epoch, new.replication) == ("master", 1, 3, "sync")
    assert (pair.without_master(masters), pair.with_ports({}).without_master(masters)) == ([], [])
    (text,) = topology({"name": "a"}).without_master(masters)
    assert "a-1 was promoted" in text
    assert "promote a-0 before you remove it" in text


def test_replicas_of_a_raft_group_have_the_same_members(tmp_path: Path) -> None:
    members = ["1@h:10911", "2@h:10921", "3@h:10931"]
    found = specs(topology(RAFT).with_raft_members({f"a-{n}": members for n in range(3)}), tmp_path)
    settings = [BrokerSettings.model_validate(each.settings) for each in found]
    assert [(each.replication, each.role, each.replica) for each in settings] == [
        ("raft", "master", 0), ("raft", "master", 1), ("raft", "master", 2),
    ]  # fmt: skip
    assert all(each.raft_members == members for each in settings)
    assert [demand_of(spec).ha_port for spec in found] == [0, 0, 0]
    assert [each.resource for each in found] == ["x", "y", "z"]


@pytest.mark.parametrize("place", ["topology", "all", "own"])
def test_raft_group_without_sync_flush_is_refused(tmp_path: Path, place: str) -> None:
    flush = {"store": {"flush": "async"}}
    keys: dict[str, Any] = {"topology": {"flush": "async"}, "all": {"broker_settings": flush}}.get(place, {})
    entry = RAFT if place != "own" else {**RAFT, "settings": {"flushDiskType": "ASYNC_FLUSH"}}
    with pytest.raises(TopologyError, match=r"\[0\].replication: raft needs flush: sync, not async"):
        specs(topology(entry, **keys), tmp_path)
