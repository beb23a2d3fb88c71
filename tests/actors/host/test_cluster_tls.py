"""A cluster with TLS: its processes connect to each other by TLS, and verify each other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.transport.tls.contexts import ClientTls, OwnCertificate
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.remoting_errors import Closed, ConnectFailed
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, run, settings_of
from tests.certificates import Authority
from tests.eventually import eventually_async

LIMITS = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)


def enforced(authority: Authority, name: str = "server") -> dict[str, Any]:
    """Return the settings of a process that accepts only TLS, from processes with a certificate."""
    certificate, key = authority.issue(name)
    ca = authority.ca_file
    return {
        "tls": "enforced",
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_ca": ca,
        "tls_client_ca": ca,
    }


@asynccontextmanager
async def tls_cluster(
    root: Path, tls: dict[str, Any]
) -> AsyncIterator[tuple[NameserverService, RebalancerService, BrokerService]]:
    """Start a nameserver, a rebalancer and a broker with the same TLS settings."""
    clock = SystemClock()
    nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0, **tls}), clock)
    await nameserver.start()
    wanted = {"nameservers": [nameserver.address], "data_dir": root / "rebalancer", **tls}
    rebalancer = build_rebalancer(RebalancerSettings.model_validate(wanted), clock)
    await rebalancer.start()
    addresses = {"nameservers": [nameserver.address], "rebalancers": [rebalancer.address]}
    broker = BrokerService(settings_of(root, **addresses, **tls), clock)
    await broker.start()
    try:
        yield nameserver, rebalancer, broker
    finally:
        await broker.stop()
        await rebalancer.stop()
        await nameserver.stop()


def test_processes_of_a_cluster_work_together_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    tls = enforced(authority)

    async def story() -> None:
        async with tls_cluster(tmp_path, tls) as (nameserver, rebalancer, broker):
            own = OwnCertificate(tls["tls_certificate"], tls["tls_key"])
            client = RemotingClient(SystemClock(), None, LIMITS, tls=ClientTls(authority.ca_file, own))
            ext = SendMessageHeader("PG", "T", 0).to_ext()
            send = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, b"hello")
            await client.ask(broker.address, send, TIMEOUT_MS)

            async def is_registered() -> bool:
                route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                return (await client.invoke(nameserver.address, route, TIMEOUT_MS)).code == 0

            await eventually_async(is_registered)
            body = SyncGroupRequest("G", "client-1", subscriptions={"T": "*"}).encode()
            request = RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body)
            synced = await client.ask(broker.address, request, TIMEOUT_MS)
            assert SyncGroupReply.decode(synced.body).members == ["client-1"]
            plain = RemotingClient(SystemClock(), None, LIMITS)
            for address in (nameserver.address, rebalancer.address, broker.address):
                with pytest.raises(Closed):
                    await plain.ask(address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_MS)
            await plain.close()
            await client.close()

    run(story)


def test_permissive_processes_accept_processes_with_and_without_tls(tmp_path: Path) -> None:
    """A running cluster changes to TLS in steps: first `permissive`, then `tls_ca`, then `enforced`."""
    permissive = {**enforced(Authority(tmp_path / "certificates")), "tls": "permissive"}
    plain = {**permissive, "tls_ca": None}

    async def story() -> None:
        async with tls_cluster(tmp_path, plain) as (nameserver, rebalancer, _broker):
            for name, tls in (("encrypted", permissive), ("unchanged", {})):
                settings = settings_of(
                    tmp_path / name,
                    broker_name=name,
                    nameservers=[nameserver.address],
                    rebalancers=[rebalancer.address],
                    **tls,
                )
                broker = BrokerService(settings, SystemClock())
                await broker.start()
                assert name in nameserver.routes.cluster_info().brokers
                await broker.stop()

    run(story)


def test_broker_does_not_register_at_a_nameserver_of_another_ca(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "certificates"), Authority(tmp_path / "other")

    async def story() -> None:
        async with tls_cluster(tmp_path, enforced(authority)) as (nameserver, _, _broker):
            settings = settings_of(
                tmp_path / "stranger",
                broker_name="stranger",
                nameservers=[nameserver.address],
                **enforced(other),
            )
            stranger = BrokerService(settings, SystemClock())
            await stranger.start()
            assert set(nameserver.routes.cluster_info().brokers) == {"broker-a"}
            await stranger.stop()

    run(story)


def test_tls_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    authority, clock = Authority(tmp_path / "certificates"), SystemClock()
    certificate, key = authority.issue()
    with pytest.raises(ValidationError, match="tls: permissive needs tls_certificate and tls_key"):
        NameserverSettings.model_validate({"tls": "permissive"})
    with pytest.raises(ValidationError, match="belong together"):
        NameserverSettings.model_validate({"tls_certificate": certificate})
    with pytest.raises(ValidationError, match=r"tls_ca ca\.pem is a relative path"):
        NameserverSettings.model_validate({"tls_ca": "ca.pem"})
    with pytest.raises(ValidationError, match=r"disabled.*permissive.*enforced"):
        NameserverSettings.model_validate({"tls": "required"})
    own = {"tls.server.mode": "enforced", "tls.server.certPath": certificate, "tls.server.keyPath": key}
    with pytest.raises(StoreError, match="tls: enforced needs tls_ca"):
        build_rebalancer(RebalancerSettings.model_validate({"data_dir": tmp_path, **own}), clock)
    certificate.write_text("damaged")
    with pytest.raises(StoreError, match=r"server\.crt .* are not a PEM certificate"):
        build_nameserver(NameserverSettings.model_validate(own), clock)


def test_running_nameserver_loads_a_renewed_certificate(tmp_path: Path) -> None:
    authority, renewed = Authority(tmp_path / "certificates"), Authority(tmp_path / "renewed")
    tls = enforced(authority)
    tls["tls_client_ca"] = None

    async def story() -> None:
        nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_port": 0, **tls}), SystemClock()
        )
        await nameserver.start()
        for path, new in zip(authority.issue(), renewed.issue(), strict=True):
            new.replace(path)
        command = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)

        async def is_renewed() -> bool:
            client = RemotingClient(SystemClock(), None, LIMITS, tls=ClientTls(renewed.ca_file))
            try:
                return (await client.invoke(nameserver.address, command, TIMEOUT_MS)).code == 0
            except ConnectFailed:  # the previous certificate
                return False
            finally:
                await client.close()

        await eventually_async(is_renewed)
        await nameserver.stop()

    run(story)
