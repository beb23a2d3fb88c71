"""`up` refuses public addresses without authentication, before it starts Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.control.driver import Driver
from cluster.control.exposure import exposed
from cluster.control.topology.topology import Topology
from cluster.control.topology.topology_file import TopologyError, load_with_source

ON = {"authentication_enabled": True}


def topology(**keys: object) -> Topology:
    return Topology.model_validate({"brokers": [{"name": "b"}], **keys})


def places(wanted: Topology) -> list[str]:
    return [".".join(map(str, path)) for path, _ in exposed(wanted)]


def test_loopback_addresses_need_no_authentication() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert places(topology(listen_host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "broker.example"])
def test_each_process_on_a_public_address_is_reported(host: str) -> None:
    assert places(topology(listen_host=host)) == ["listen_host"] * 3
    assert places(topology(brokers=[{"name": "b", "listen_host": host}])) == ["brokers.0.listen_host"]


def test_authentication_of_each_process_permits_public_addresses() -> None:
    processes = {"nameservers": [{"settings": ON}], "rebalancers": [{"settings": ON}]}
    assert places(topology(listen_host="10.0.0.1", **processes, broker_settings=ON)) == []
    brokers = [{"name": "b", "settings": {"authenticationEnabled": "true"}}]
    assert places(topology(listen_host="10.0.0.1", **processes, brokers=brokers)) == []
    off = [{"name": "b", "settings": {"authentication_enabled": False}}]
    assert places(topology(listen_host="10.0.0.1", **processes, broker_settings=ON, brokers=off)) == [
        "listen_host"
    ]


def test_enforced_tls_of_each_process_permits_public_addresses() -> None:
    enforced = {"tls": "enforced", "tls_certificate": "/c", "tls_key": "/k", "tls_ca": "/ca"}
    processes = {"nameservers": [{"settings": enforced}], "rebalancers": [{"settings": enforced}]}
    assert places(topology(listen_host="10.0.0.1", **processes, broker_settings=enforced)) == []
    permissive = {**enforced, "tls": "permissive"}  # accepts plain clients too
    assert places(topology(listen_host="10.0.0.1", **processes, broker_settings=permissive)) == [
        "listen_host"
    ]


@pytest.mark.parametrize("brokers", [{"broker_settings": ON}, {"brokers": [{"name": "b", "settings": ON}]}])
def test_gateway_of_brokers_with_authentication_must_have_it_too(brokers: dict[str, object]) -> None:
    keys = {"inner_credentials_file": "/k"}
    wanted = {"gateways": [{"settings": {**keys, **ON}}, {"settings": keys}], **brokers}
    assert places(topology(**wanted)) == ["gateways.1"]
    assert places(topology(**wanted, insecure=True)) == []
    assert places(topology(gateways=[{"settings": keys}])) == []


def test_insecure_topology_permits_public_addresses() -> None:
    assert places(topology(listen_host="0.0.0.0", insecure=True)) == []


def test_public_address_without_authentication_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "public.yaml"
    file.write_text("cluster: Public\nbrokers:\n  - {name: b, listen_host: 10.0.0.1}\n")
    loaded, source = load_with_source(file)
    with pytest.raises(TopologyError) as caught:
        Driver(loaded, source).up()
    text = str(caught.value)
    assert text.startswith(f"{file}:3: brokers[0].listen_host: b-0 would listen on 10.0.0.1")
    assert text.endswith("insecure: true")
