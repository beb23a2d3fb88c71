"""A lake reads by TLS as a user, with rights on its topics and its group."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.wire.signing import Credentials, write_credentials
from cluster.client import Admin, Producer
from jobs.lake_service.lake_rounds import LakeRounds
from jobs.reading import mapped
from tests.certificates import Authority
from tests.conftest import ClockAtRest
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake_service.test_lake_rounds import GROUP, offsets_of, rows_of, settings_of, threads


def test_lake_needs_rights_on_its_topics_and_its_group(
    tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, own = tmp_path / "inner.key", tmp_path / "lake.key"
    write_credentials(inner, Credentials("inner", "inner-secret", is_inner=True))
    write_credentials(own, Credentials("lake", "lake-secret"))

    def sign_with(keys: Path) -> None:
        monkeypatch.setenv("RAYMQ_CREDENTIALS", str(keys))

    sign_with(inner)
    monkeypatch.setattr(mapped, "machine_id", lambda: "another machine")  # so that it fetches
    authority = Authority(tmp_path / "certificates")
    certificate, key = map(str, authority.issue())
    ca = str(authority.ca_file)
    monkeypatch.setenv("RAYMQ_TLS_CA", ca)
    tls = {"tls": "enforced", "tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
    running = ClusterThread(tmp_path / "stores", brokers=1, tls=tls, inner_credentials_file=inner)
    try:
        nameserver = running.cluster.nameserver_address
        settings = settings_of(tmp_path, nameserver, topics=["orders"])
        rounds = LakeRounds(settings, threads, clock)
        with Admin(nameserver) as admin, Producer(nameserver) as producer:
            admin.create_topic("orders", queues=1)
            producer.send("orders", b"1")
            admin.put_user("lake", "lake-secret")
            for resource, problem in (
                ("Topic:other", "User:lake has no permission to get on topic 'orders'"),
                ("Topic:orders", "User:lake has no permission to sub on group 'RAYMQ_BULK_READER'"),
                ("Group:RAYMQ_BULK_READER", f"User:lake has no permission to get on group '{GROUP}'"),
                (f"Group:{GROUP}", ""),
            ):
                admin.permit("lake", [resource], ["Sub"])
                sign_with(own)
                rounds.tick()
                assert problem in rounds.tables["orders"].problem
                assert (rounds.tables["orders"].failures > 0) == bool(problem)
                sign_with(inner)
            with monkeypatch.context() as without_tls:
                without_tls.delenv("RAYMQ_TLS_CA")
                rounds.tick()
            assert nameserver in rounds.problem
            rounds.tick()
            assert rounds.problem == ""
        assert rows_of(settings, "orders") == 1
        ends, committed = offsets_of(nameserver, "orders")
        assert committed == ends
    finally:
        running.stop()
