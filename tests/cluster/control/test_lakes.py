"""Lakes of a topology: their specs, what brokers keep for them, and secrets that no output shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from actors.host.ray_port import Node
from cluster.control.exposure import exposed
from cluster.control.kinds import KINDS, is_live_setting, make_specs
from cluster.control.placement import place
from cluster.control.plan import Running, make_plan
from cluster.control.scrape_targets import targets_of
from cluster.control.specs import ActorSpec
from cluster.control.topology.problems import find_problems
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source, TopologyError, load_topology

HEAD = Node("10.0.0.1", {"node:10.0.0.1": 1}, is_head=True)
OTHER = Node("10.0.0.2", {"node:10.0.0.2": 1, "lake": 1}, is_head=False)
SOURCE = Source("t.yaml", {}, {})


def topology(*lakes: dict[str, Any], **keys: Any) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b"}], "lakes": list(lakes), **keys})


def specs_of(given: Topology, home: Path) -> dict[str, ActorSpec]:
    resources = place(given, [HEAD, OTHER]).resources
    return {spec.name: spec for spec in make_specs(given, home, resources, SOURCE)}


def test_lake_gets_a_spec_after_all_other_processes(tmp_path: Path) -> None:
    given = topology({"topics": ["orders", "pay*"], "resource": "lake"}, {"topics": ["x"], "freshness_s": 5})
    assert find_problems(given, tmp_path) == []
    specs = specs_of(given, tmp_path)
    assert list(specs)[-2:] == ["lake-0", "lake-1"]
    first, second = specs["lake-0"], specs["lake-1"]
    assert (first.kind, first.resource, second.resource) == (KINDS["lake"], "lake", "node:10.0.0.1")
    assert first.settings == {
        "topics": ["orders", "pay*"], "nameservers": ["127.0.0.1:9876"], "cluster_name": "DefaultCluster",
        "data_dir": str(tmp_path / "lake-0"), "home": str(tmp_path), "group": "raymq-lake-0",
    }  # fmt: skip
    assert second.settings["freshness_s"] == 5
    assert second.settings["metrics_port"] != 9088
    targets = {each["labels"]["raymq_actor"]: each["targets"] for each in targets_of(list(specs.values()))}
    assert targets["lake-0"] == ["127.0.0.1:9088"]
    assert ActorSpec.from_json(first.to_json(), KINDS).kind is KINDS["lake"]


@pytest.mark.parametrize(
    ("lake", "text"),
    [
        ({}, r"lakes\[0\].topics: .*required"),
        ({"topics": []}, r"lakes\[0\].topics: "),
        ({"topics": ["a b"]}, r"lakes\[0\].topics\[0\]: 'a b' is no topic"),
        ({"topics": ["a"], "freshnes_s": 3}, r"lakes\[0\].freshnes_s: .*freshness_s"),
        ({"topics": ["a"], "freshness_s": 0}, r"lakes\[0\].freshness_s: 0 is less than the minimum 0.1"),
        ({"topics": ["a"], "engine": "flink"}, r"lakes\[0\].engine: "),
        ({"topics": ["a"], "warehouse": " "}, r"warehouse is empty"),
        ({"topics": ["a"], "credentials_file": "k"}, r"credentials_file k is a relative path"),
        ({"topics": ["a"], "schema": "id NUMBER"}, r"lakes\[0\]: schema='id NUMBER' .* found 'NUMBER'"),
        ({"topics": ["a"], "schema": ""}, r"lakes\[0\]: schema='' is invalid: Expected the name"),
        ({"topics": ["a"], "schema": "id INT", "format": "xml"}, r"lakes\[0\].format: 'xml' is invalid"),
        ({"topics": ["a"], "schema": "id INT", "format": "avro"}, r"format='avro' needs avroSchema"),
        ({"topics": ["a"], "format": "msgpack"}, r"lakes\[0\]: the format of bodies is given, but no schema"),
        ({"topics": ["a"], "catalog": "sqlite://"}, r"lakes\[0\].catalog: it must be a mapping"),
    ],
)  # fmt: skip
def test_invalid_settings_of_a_lake_are_refused_with_their_place(
    lake: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(TopologyError, match=text):
        make_specs(topology(lake), tmp_path, {}, SOURCE)


@pytest.mark.parametrize("key", ["nameservers", "cluster_name", "data_dir", "home", "group"])
def test_settings_of_a_lake_that_its_topology_gives_are_refused(key: str, tmp_path: Path) -> None:
    [(path, text)] = find_problems(topology({"topics": ["a"], key: "x"}), tmp_path)
    assert path == ("lakes", 0, key)
    assert text.startswith("set this with the topology's key: ")


@pytest.mark.parametrize("lakes", ["orders", {"topics": ["a"]}, ["orders"]])
def test_lakes_that_are_no_list_of_mappings_are_refused(lakes: Any, tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(f"brokers: [{{name: b}}]\nlakes: {lakes}\n")
    with pytest.raises(TopologyError, match=r"t.yaml:2: lakes"):
        load_topology(file)


@pytest.mark.parametrize(
    "catalog",
    [
        {"type": "rest", "credential": "id:hunter2"},
        {"uri": "postgresql://lake:hunter2@db/lake"},
        {"s3.secret-access-key": "hunter2"},
        {"token": 4711},
        "hunter2",
    ],
)
def test_secret_of_a_catalog_is_refused_and_not_shown(catalog: Any, tmp_path: Path) -> None:
    with pytest.raises(TopologyError) as caught:
        make_specs(topology({"topics": ["a"], "catalog": catalog}), tmp_path, {}, SOURCE)
    assert "hunter2" not in str(caught.value)
    assert "4711" not in str(caught.value)


def test_reference_to_a_secret_stays_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "hunter2")
    catalog = {"type": "rest", "uri": "https://catalog", "credential": "env:LAKE_SECRET"}
    spec = specs_of(topology({"topics": ["a"], "catalog": catalog}), tmp_path)["lake-0"]
    assert spec.settings["catalog"] == catalog
    assert "hunter2" not in str(spec.to_json())


def test_brokers_keep_the_log_for_the_topics_of_lakes_that_wait(tmp_path: Path) -> None:
    def waits(*lakes: dict[str, Any], **keys: Any) -> Any:
        return specs_of(topology(*lakes, **keys), tmp_path)["b-0"].settings.get("retention_waits_for")

    assert waits() is None
    assert waits({"topics": ["a", "b*"]}, {"topics": ["c"]}) == [
        "a@raymq-lake-0", "b*@raymq-lake-0", "c@raymq-lake-1",
    ]  # fmt: skip
    assert waits({"topics": ["a"], "retention_waits": False}) is None
    own = {"broker_settings": {"retention_waits_for": ["x@audit"]}}
    assert waits(**own) == ["x@audit"]
    assert waits({"topics": ["a"]}, **own) == ["a@raymq-lake-0", "x@audit"]


def test_topics_of_a_lake_change_what_brokers_keep_without_a_restart(tmp_path: Path) -> None:
    def verbs(*lakes: dict[str, Any]) -> dict[str, str]:
        before = specs_of(topology({"topics": ["a"]}), tmp_path)
        running = [Running("raymq", each.name, each, "serving", code_version="1") for each in before.values()]
        after = list(specs_of(topology(*lakes), tmp_path).values())
        plan = make_plan(
            after, running, namespace="raymq", code_version="1", is_live=is_live_setting, prune=True
        )
        return {action.name: str(action.verb) for action in plan.actions}

    changed = verbs({"topics": ["a", "b"]})
    assert (changed["b-0"], changed["lake-0"]) == ("adjust", "roll")
    removed = verbs()
    assert (removed["b-0"], removed["lake-0"]) == ("adjust", "remove")


def test_lake_listens_for_no_clients(tmp_path: Path) -> None:
    """It has no address that must be protected, and needs none that other nodes reach."""
    given = topology({"topics": ["a"]}, listen_host="10.0.0.1", insecure=True)
    assert not any(path[0] == "lakes" for path, _ in place(given, [HEAD, OTHER]).problems)
    shown = topology({"topics": ["a"], "metrics_host": "10.0.0.1"})
    assert [path for path, _ in exposed(shown)] == [("lakes", 0, "metrics_host")]


def test_missing_dependency_of_a_lake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("jobs.lake")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(TopologyError, match=r"lakes\[0\]: .*pip install 'raymq\[lake\]'"):
        make_specs(topology({"topics": ["a"]}), tmp_path, {}, SOURCE)
    assert make_specs(topology(), tmp_path, {}, SOURCE)
