"""Elastic entries of `brokers`: the brokers they stand for, and the refusal of invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.control.kinds import make_specs
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source, TopologyError, load_topology

ELASTIC = {"pattern": "broker-{n}", "min": 1, "max": 8, "resource": "broker_slot"}


def topology(brokers: Any, **keys: Any) -> Topology:
    return Topology.model_validate({"brokers": brokers, **keys})


def brokers_of(given: Topology) -> list[tuple[str, int, str | None]]:
    return [(name, e.listen_port, e.resource) for path, name, e in given.listeners() if path[0] == "brokers"]


def refusal(tmp_path: Path, brokers: str) -> str:
    file = tmp_path / "t.yaml"
    file.write_text(f"cluster: C\nbrokers: {brokers}\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(file)
    return str(caught.value).replace(str(file), "t.yaml")


def test_elastic_entry_starts_its_first_brokers() -> None:
    found = brokers_of(topology({**ELASTIC, "min": 2}))
    assert found == [("broker-1-0", 10911, "broker_slot"), ("broker-2-0", 10921, "broker_slot")]


def test_elastic_entry_stands_beside_brokers_of_the_list() -> None:
    found = brokers_of(topology([{"name": "fixed", "listen_port": 10800}, ELASTIC]))
    assert found == [("fixed-0", 10800, None), ("broker-1-0", 10911, "broker_slot")]


def test_running_elastic_brokers_are_kept_and_filled_up_to_min() -> None:
    given = topology({**ELASTIC, "min": 2}).with_running(["broker-5-0", "other-0", "broker-9-0"])
    assert [name for name, _, _ in brokers_of(given)] == ["broker-1-0", "broker-5-0"]
    given = topology(ELASTIC).with_running(["broker-5-0", "broker-3-0"])
    assert [name for name, _, _ in brokers_of(given)] == ["broker-3-0", "broker-5-0"]


def test_free_ports_are_kept_per_elastic_broker() -> None:
    given = topology({**ELASTIC, "listen_port": 0, "min": 2}).with_ports({"broker-2-0": 4000})
    assert [port for _, port, _ in brokers_of(given)] == [0, 4000]


def test_elastic_broker_takes_a_whole_unit_of_its_resource(tmp_path: Path) -> None:
    given = topology([{"name": "fixed", "listen_port": 10800}, {**ELASTIC, "listen_host": "node"}])
    specs = {spec.name: spec for spec in make_specs(given, tmp_path, {}, Source("t.yaml", {}, {}))}
    assert (specs["fixed-0"].slots, specs["broker-1-0"].slots) == (0, 1)
    assert specs["broker-1-0"].listen == ("node", 10911)
    assert specs["broker-1-0"].store == str(tmp_path / "store" / "broker-1-0")


def test_store_root_of_an_elastic_entry_replaces_that_of_the_topology(tmp_path: Path) -> None:
    specs = make_specs(topology({**ELASTIC, "store_root": "/disk"}), tmp_path, {}, Source("t.yaml", {}, {}))
    assert [spec.store for spec in specs if spec.store] == ["/disk/broker-1-0"]


RULES = {"rules": {"throughput_per_broker": 100}}


def test_autoscaler_is_one_more_actor_with_the_limits_of_the_brokers(tmp_path: Path) -> None:
    given = topology({**ELASTIC, "listen_port": 0}, autoscale=RULES).with_running(["broker-4-0"])
    given = given.with_ports({"nameserver-0": 9876, "broker-4-0": 4000})
    spec = make_specs(given, tmp_path, {}, Source("t.yaml", {}, {}))[-1]
    assert (spec.kind.name, spec.name) == ("autoscaler", "autoscaler")
    assert (spec.settings["rules"]["min"], spec.settings["rules"]["max"]) == (1, 8)
    again = Topology.model_validate(spec.settings["topology"])
    assert brokers_of(again) == [("broker-1-0", 0, "broker_slot")]
    assert again.nameservers[0].listen_port == 9876


@pytest.mark.parametrize(
    ("autoscale", "message"),
    [
        ({}, "autoscale.rules: this key is required"),
        (
            {"rules": {"max": 9, "throughput_per_broker": 1}},
            "autoscale.rules.max: 9 exceeds brokers[0].max 8",
        ),
        ({"rules": {"min": 5, "max": 4, "throughput_per_broker": 1}}, "autoscale.rules: min 5 is greater"),
        ({**RULES, "intervals": 5}, "autoscale.intervals: no such key; did you mean 'interval_s'?"),
    ],
)
def test_invalid_autoscaler_is_refused_with_key_path(
    tmp_path: Path, autoscale: dict[str, Any], message: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        make_specs(topology(ELASTIC, autoscale=autoscale), tmp_path, {}, Source("t.yaml", {}, {}))
    assert message in str(caught.value)


def test_autoscaler_without_elastic_brokers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="autoscale: there are no elastic brokers"):
        make_specs(topology([{"name": "b"}], autoscale=RULES), tmp_path, {}, Source("t.yaml", {}, {}))


@pytest.mark.parametrize(
    ("brokers", "message"),
    [
        ("{pattern: 'b-{n}', min: 9, max: 8, resource: s}",
         "t.yaml:2: brokers[0].min: min 9 is greater than max 8; lower min or raise max"),
        ("{pattern: b, max: 8, resource: s}",
         "t.yaml:2: brokers[0].pattern: 'b' must contain {n} once, for example broker-{n}"),
        ("{pattern: 'b/{n}', max: 8, resource: s}", "brokers[0].pattern: 'b/1' is not a valid name"),
        ("{pattern: 'b-{n}', max: 8}", "brokers[0].resource: this key is required"),
        ("[{name: b-3}, {pattern: 'b-{n}', max: 8, resource: s}]",
         "brokers[1].pattern: actor name 'b-3-0' is already used by brokers[0]"),
        ("[{pattern: 'b-{n}', mx: 8, resource: s}]", "brokers[0].mx: no such key; did you mean 'max'?"),
        ("[{name: b, listen_host: node}]", "brokers[0].listen_host: 'node' is possible only for elastic"),
        ("[{pattern: 'b-{n}', min: 0, max: 8, resource: s}]", "brokers: no broker would be started; set min"),
        ("[{pattern: 'b-{n}', max: 8, resource: s, listen_port: 65530}]",
         "brokers[0].listen_port: broker 8 would listen on port 65600, which is greater than 65535"),
        ("[{pattern: 'b-{n}', max: 8, resource: s, advertised_port: 7}]",
         "brokers[0].advertised_port: 7 cannot be the port of several brokers"),
    ],
)  # fmt: skip
def test_invalid_elastic_entry_is_refused_with_key_path(tmp_path: Path, brokers: str, message: str) -> None:
    assert message in refusal(tmp_path, brokers)
