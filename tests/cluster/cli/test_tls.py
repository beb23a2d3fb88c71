"""`raymq` commands against a cluster that accepts only TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.cluster.cli.conftest import Raymq
from tests.cluster.client.conftest import Cluster


def test_commands_use_the_tls_settings_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "certificates")
    certificate, key = authority.issue()
    ca = authority.ca_file
    tls = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
    cluster = Cluster(tmp_path, brokers=1, tls=tls)
    raymq = Raymq(cluster)
    monkeypatch.setenv("RAYMQ_TLS_CA", str(ca))
    raymq.ok("topic", "create", "orders", "--queues", "1")
    raymq.ok("send", "orders", "4 apples")
    assert raymq.ok("tail", "orders", "--from", "earliest", "--no-follow")["body"] == "4 apples"
    monkeypatch.setenv("RAYMQ_TLS_CA", str(tmp_path / "missing.pem"))
    assert "missing.pem: No such file" in raymq.refused("topic", "list", code=2)
    monkeypatch.delenv("RAYMQ_TLS_CA")
    assert "closed the connection" in raymq.refused("topic", "list")
    cluster.stop()
