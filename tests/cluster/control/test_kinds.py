"""A kind of process is one row of the table of kinds, and one key of the topology."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from actors.host.ray_port import Node
from cluster.control.exposure import exposed
from cluster.control.health import accepts_connections, probe
from cluster.control.kinds import KINDS, is_live_setting, make_specs
from cluster.control.placement import place
from cluster.control.plan import Running, make_plan
from cluster.control.specs import ActorSpec, ProcessKind, listener_specs
from cluster.control.topology.problems import find_problems
from cluster.control.topology.topology import Listener, Topology
from cluster.control.topology.topology_file import Source, TopologyError
from store.common.live_settings import LIVE
from store.common.settings_model import SettingsModel
from tests import settings_page

HEAD = Node("127.0.0.1", {"node:127.0.0.1": 1}, is_head=True)
SOURCE = Source("t.yaml", {}, {})


class GatewaySettings(SettingsModel):
    """The settings of the new kind: `nameservers` is set by the topology."""

    listen_host: str = "127.0.0.1"
    """Address on which it listens."""
    listen_port: int = 8081
    """Port on which it listens."""
    nameservers: list[str] = Field(default_factory=list)
    """Its nameservers."""
    title: str = ""
    """Its title."""
    max_streams: Annotated[int, LIVE] = Field(100, ge=1)
    """Largest number of streams."""


class Gateway(Listener):
    """An entry of the topology's new key."""


class WithGateways(Topology):
    """A topology with the new key."""

    gateways: list[Gateway] = Field(default_factory=list)


@pytest.fixture(autouse=True)
def gateway(monkeypatch: pytest.MonkeyPatch) -> ProcessKind:
    row = ProcessKind(
        name="gateway", key="gateways", actor="tests.gateway:Gateway", settings=f"{__name__}:GatewaySettings",
        order=2, specs=listener_specs, probe=accepts_connections,
    )  # fmt: skip
    monkeypatch.setitem(KINDS, "gateway", row)
    return row


def topology(**gateway: object) -> WithGateways:
    return WithGateways.model_validate({"brokers": [{"name": "b"}], "gateways": [gateway]})


def test_processes_of_a_new_kind_get_specs_in_the_order_of_creation(
    gateway: ProcessKind, tmp_path: Path
) -> None:
    given = topology(listen_port=0, settings={"max_streams": 7}).with_ports({"gateway-0": 8099})
    assert find_problems(given, tmp_path) == []
    specs = make_specs(given, tmp_path, place(given, [HEAD]).resources, SOURCE)
    assert [spec.name for spec in specs] == ["nameserver-0", "rebalancer-0", "gateway-0", "b-0"]
    found = specs[2]
    assert found.kind is gateway
    assert (found.address, found.resource) == ("127.0.0.1:8099", "node:127.0.0.1")
    assert found.settings == {
        "listen_host": "127.0.0.1", "listen_port": 8099, "nameservers": ["127.0.0.1:9876"], "max_streams": 7,
    }  # fmt: skip
    assert ActorSpec.from_json(found.to_json(), KINDS).kind is gateway


def test_entries_of_a_new_kind_are_checked_as_those_of_any_other(tmp_path: Path) -> None:
    with pytest.raises(
        TopologyError, match=r"gateways\[0\].settings.max_streams: 0 is less than the minimum 1"
    ):
        make_specs(topology(settings={"max_streams": 0}), tmp_path, {}, SOURCE)
    ((path, text),) = find_problems(topology(listen_port=9876), tmp_path)
    assert (path, "already used by nameservers[0]" in text) == (("gateways", 0, "listen_port"), True)
    assert [path for path, _ in exposed(topology(listen_host="10.0.0.1"))] == [("gateways", 0, "listen_host")]


def test_live_settings_of_a_new_kind_are_changed_without_a_restart(tmp_path: Path) -> None:
    def planned(**settings: object) -> str:
        before, after = (make_specs(topology(settings=each), tmp_path, {}, SOURCE) for each in ({}, settings))
        running = [Running("raymq", spec.name, spec, "serving", code_version="1") for spec in before]
        plan = make_plan(after, running, namespace="raymq", code_version="1", is_live=is_live_setting)
        return str(next(action.verb for action in plan.actions if action.name == "gateway-0"))

    assert planned() == "adopt"
    assert planned(max_streams=5) == "adjust"
    assert planned(title="shop") == "roll"


def test_new_kind_is_probed_at_its_socket(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        spec = make_specs(topology(listen_port=port), tmp_path, {}, SOURCE)[2]
        assert probe(spec, [spec]) == ""
    assert probe(spec, [spec]).startswith(f"127.0.0.1:{port}: ")


def test_settings_page_has_a_section_for_a_new_kind() -> None:
    assert "## Gateway\n" in settings_page.page()
    assert "| `max_streams` |  | 100 | live | Largest number of streams. |" in settings_page.page()


def test_process_with_an_advertised_address_knows_it_as_a_receiver(tmp_path: Path) -> None:
    """Its peers name the address that they have dialled, which is translated on the way."""
    given = {
        "brokers": [{"name": "b", "listen_port": 10911}],
        "nameservers": [
            {"listen_port": 9876},
            {
                "listen_port": 9877,
                "advertised_host": "names.example",
                "settings": {"receiver_addresses": ["10.0.0.9:1"]},
            },
        ],
    }
    specs = make_specs(Topology.model_validate(given), tmp_path, {}, SOURCE)
    found = {each.name: each.settings.get("receiver_addresses") for each in specs}
    assert (found["nameserver-0"], found["nameserver-1"]) == (None, ["10.0.0.9:1", "names.example:9877"])
