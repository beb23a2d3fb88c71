"""The console as a process of a topology: its spec, its checks, and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.host.ray_port import Node
from actors.host.saved_spec import directory_of
from cluster.console.console_settings import ConsoleSettings
from cluster.control.exposure import exposed
from cluster.control.kinds import make_specs
from cluster.control.placement import place
from cluster.control.topology.problems import find_problems
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import Source, TopologyError

HEAD = Node("127.0.0.1", {"node:127.0.0.1": 1}, is_head=True)
SOURCE = Source("t.yaml", {}, {})


def topology(**console: object) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b"}], "consoles": [console]})


def test_console_of_a_topology_gets_its_address_and_nameservers(tmp_path: Path) -> None:
    given = topology(settings={"read_only": True})
    assert find_problems(given, tmp_path) == []
    specs = make_specs(given, tmp_path, place(given, [HEAD]).resources, SOURCE)
    assert [spec.name for spec in specs] == ["nameserver-0", "rebalancer-0", "b-0", "console-0"]
    settings = ConsoleSettings.model_validate(specs[-1].settings)
    assert (settings.nameservers, settings.read_only) == (["127.0.0.1:9876"], True)
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 8085)
    assert specs[-1].address == "127.0.0.1:8085"
    assert directory_of(specs[-1].to_json()) == tmp_path / "console-0"


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"nosuch": 1}, r"consoles\[0\]\.settings\.nosuch"),
        ({"bodies": "some"}, r"consoles\[0\]\.settings\.bodies"),
    ],
)
def test_invalid_settings_of_a_console_name_their_place(
    tmp_path: Path, settings: dict[str, object], part: str
) -> None:
    with pytest.raises(TopologyError, match=part):
        make_specs(topology(settings=settings), tmp_path, {}, SOURCE)


def test_public_console_of_a_topology_needs_a_login(tmp_path: Path) -> None:
    assert [path for path, _ in exposed(topology(listen_host="10.0.0.1"))] == [("consoles", 0, "listen_host")]
    with pytest.raises(TopologyError, match="other machines can reach"):
        make_specs(topology(listen_host="10.0.0.1"), tmp_path, {}, SOURCE)
    protected = topology(listen_host="10.0.0.1", settings={"login": True})
    assert exposed(protected) == []
    assert make_specs(protected, tmp_path, {}, SOURCE)[-1].settings["login"] is True
