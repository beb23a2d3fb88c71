"""Bulk reads over the network from brokers that require TLS and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, Producer
from jobs.job_errors import FetchFailed
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import Split
from tests.certificates import Authority
from tests.jobs.conftest import ClusterThread


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a cluster with access control and TLS; yield its nameserver. The environment has the keys."""
    authority, keys = Authority(tmp_path / "certificates"), tmp_path / "inner.key"
    write_credentials(keys, Credentials("inner", "inner-secret", is_inner=True))
    certificate, key = map(str, authority.issue())
    ca = str(authority.ca_file)
    monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))
    monkeypatch.setenv("RAYMQ_TLS_CA", ca)
    tls = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
    running = ClusterThread(tmp_path / "stores", brokers=1, tls=tls, inner_credentials_file=keys)
    yield running.cluster.nameserver_address
    running.stop()


def test_reads_over_the_network_use_tls_and_sign_their_requests(
    secured: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(secured) as admin, Producer(secured) as producer:
        admin.create_topic("orders", queues=1)
        for number in range(3):
            producer.send("orders", b"%d" % number)
    (state,) = describe_topic(secured, "orders")
    split = Split(state.queue, 0, 3, state.location)

    def bodies() -> list[bytes]:
        reader = SplitsReader([split], ("body",), fail_on_data_loss=True, map_files=False)
        return [body for batch in reader.read_all() for body in batch.column("body").to_pylist()]

    assert bodies() == [b"0", b"1", b"2"]
    monkeypatch.delenv("RAYMQ_CREDENTIALS")
    with pytest.raises(FetchFailed, match="is not signed"):
        bodies()
    monkeypatch.delenv("RAYMQ_TLS_CA")
    with pytest.raises(FetchFailed, match="closed the connection"):
        bodies()
