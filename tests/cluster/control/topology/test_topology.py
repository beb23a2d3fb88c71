"""An invalid topology is refused with file, line, key path and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.control.kinds import BROKER, make_specs
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import (
    DEFAULT_TOPOLOGY,
    TopologyError,
    load_topology,
    load_with_source,
)
from cluster.paths import home_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def refusal(*overrides: str, file: Path | None = None) -> str:
    with pytest.raises(TopologyError) as caught:
        load_topology(file, overrides)
    return str(caught.value)


def test_default_topology_uses_rocketmq_ports() -> None:
    topology = load_topology(DEFAULT_TOPOLOGY)
    assert [(name, entry.listen_port) for _, name, entry in topology.listeners()] == [
        ("nameserver-0", 9876), ("broker-a-0", 10911), ("broker-b-0", 10921), ("rebalancer-0", 0),
    ]  # fmt: skip
    assert (topology.cluster, topology.flush, topology.auto_create_topics) == ("DefaultCluster", "sync", True)


def test_default_topology_is_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_topology() == load_topology("local.yaml")
    assert "no such file" in refusal(file=tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("flush=maybe", "--set flush=maybe: flush: 'maybe' is invalid: use 'sync' or 'async'"),
        ("nameservers.0.listen_port=99999", "[0].listen_port: 99999 is greater than the maximum 65535"),
        ("brokers.1.flush=async", "brokers[1].flush: no such key here: it belongs to the top of"),
        ("brokers.1.pull_max_bytes=9", "no such key here: it belongs to `settings` of an entry of `brokers`"),
        ("name=x", "name: no such key here: it belongs to an entry of `brokers`"),
        ("brokers.1.lisen_port=3", "brokers[1].lisen_port: no such key; did you mean 'listen_port'?"),
        ("brokers.1.listen_port=10911", "[1].listen_port: 127.0.0.1:10911 is already used by brokers[0]"),
        ("nameservers.0.listen_port=10921", "127.0.0.1:10921 is already used by nameservers[0]"),
        ("brokers.broker-b.name=broker-a", "actor name 'broker-a-0' is already used by brokers[0]"),
        ("brokers.1.name=a/b", "'a/b' is not a valid name"),
        ("broker_settings.brokerIP1=10.0.0.1", "set this with the topology's key: brokers[].advertised_host"),
        ("brokers.x.listen_port=1", "brokers has no 'x'; it has 0, 1, broker-a, broker-b"),
        ("flush.mode=sync", "flush is a single value and has no 'mode'"),
        ("flush", "use KEY=VALUE"),
        ("brokers=[]", "brokers: []: list should have at least 1 item"),
    ],
)  # fmt: skip
def test_invalid_override_is_refused_with_remedy(override: str, message: str) -> None:
    assert message in refusal(override)


def test_two_brokers_with_the_same_store_are_refused(home: Path) -> None:
    text = refusal("brokers.broker-b.store=store/broker-a-0")
    assert f"brokers[1].store: store {home}/store/broker-a-0 is the store of brokers[0]" in text
    assert "overlaps" in refusal("brokers.broker-b.store=store/broker-a-0/inner")


def test_error_in_file_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("cluster: C\nbrokers:\n  - name: a\n    listen_port: many\n")
    assert f"{file}:4: brokers[0].listen_port: 'many'" in refusal(file=file)
    file.write_text("cluster: C\ncluster: D\nbrokers: [{name: a}]\n")
    assert f"{file}:2: cluster: duplicate key, first in line 1" in refusal(file=file)
    file.write_text("cluster: [\n")
    assert "not valid YAML" in refusal(file=file)
    file.write_text("cluster: C\n")
    assert "brokers: this key is required" in refusal(file=file)


def test_unknown_broker_setting_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("brokers:\n  - name: a\n    settings:\n      pull_max_mesages: 3\n")
    topology, source = load_with_source(file)
    with pytest.raises(TopologyError) as caught:
        make_specs(topology, tmp_path, {}, source)
    assert f"{file}:4: brokers[0].settings.pull_max_mesages: no such key; did you mean" in str(caught.value)


def test_broker_settings_override_topology_settings(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        "flush: async\nbroker_settings: {defaultTopicQueueNums: 4, flushIntervalCommitLog: 100}\n"
        "brokers:\n  - {name: a, listen_port: 0}\n"
        "  - {name: b, listen_port: 0, settings: {default_topic_queues: 2, store: {flush: sync}}}\n"
    )
    topology, source = load_with_source(file)
    first, second = [spec for spec in make_specs(topology, tmp_path, {}, source) if spec.kind is BROKER]
    assert first.settings["default_topic_queues"] == 4
    assert first.settings["store"] == {"flush": "async", "flush_interval_ms": 100}
    assert second.settings["default_topic_queues"] == 2
    assert second.settings["store"] == {"flush": "sync", "flush_interval_ms": 100}


def test_vip_channel_is_off_if_its_port_belongs_to_another_broker(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("brokers:\n  - {name: a, listen_port: 10911}\n  - {name: b, listen_port: 10913}\n")
    topology, source = load_with_source(file)
    first, second = [spec for spec in make_specs(topology, tmp_path, {}, source) if spec.kind is BROKER]
    assert "vip_channel" not in first.settings
    assert second.settings["vip_channel"] is False


def test_relative_stores_are_resolved_against_the_home(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topology, source = load_with_source(overrides=["brokers.1.store=/elsewhere/b"])
    stores = [
        spec.store for spec in make_specs(topology, home_of(topology.cluster), {}, source) if spec.store
    ]
    assert stores == [str(home / "store" / "broker-a-0"), "/elsewhere/b"]
    monkeypatch.delenv("RAYMQ_HOME")
    assert home_of("Mine") == Path.home() / ".raymq" / "Mine"


def test_chosen_ports_replace_only_unset_ports() -> None:
    topology = Topology.model_validate(
        {"brokers": [{"name": "a", "listen_port": 0}, {"name": "b", "listen_port": 5}]}
    )
    settled = topology.with_ports({"a-0": 7, "b-0": 8, "rebalancer-0": 9})
    assert [entry.listen_port for _, _, entry in settled.listeners()] == [9876, 7, 5, 9]
