"""Health probes of actors that accept only TLS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from cluster.client.transport.loop_thread import LoopThread
from cluster.control.health import probe
from cluster.control.kinds import NAMESERVER
from cluster.control.specs import ActorSpec
from store.common.clock import SystemClock
from tests.certificates import Authority


def test_probe_of_a_nameserver_that_accepts_only_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, other = Authority(tmp_path / "certificates"), Authority(tmp_path / "other")
    certificate, key = map(str, authority.issue())
    ca = str(authority.ca_file)
    settings = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_client_ca": ca}
    thread = LoopThread("nameserver")
    nameserver = build_nameserver(
        NameserverSettings.model_validate({"listen_port": 0, **settings}), SystemClock()
    )
    thread.run(nameserver.start())
    at = ("127.0.0.1", nameserver.server.port)
    spec = ActorSpec(NAMESERVER, "nameserver-0", "C", settings, at, at, "")
    assert probe(spec, []) == ""
    assert "closed" in probe(replace(spec, settings={}), [])
    monkeypatch.setenv("RAYMQ_TLS_CA", str(other.ca_file))
    assert "certificate is not valid" in probe(spec, [])
    monkeypatch.setenv("RAYMQ_TLS_CA", ca)
    monkeypatch.setenv("RAYMQ_TLS_CERTIFICATE", certificate)
    monkeypatch.setenv("RAYMQ_TLS_KEY", key)
    assert probe(spec, []) == ""
    thread.run(nameserver.stop())
    thread.stop()
