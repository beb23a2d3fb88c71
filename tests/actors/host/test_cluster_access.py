"""A cluster with authentication: its processes sign their requests to each other as the inner user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import RebalancerService, build_rebalancer
from actors.transport.client import RemotingClient, SigningClient
from actors.transport.limits import RemotingLimits
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.signing import Credentials, Signer
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, run, settings_of
from tests.actors.broker.core.auth.access_peers import DENIED, INNER, inner_file
from tests.eventually import eventually_async

Cluster = tuple[NameserverService, RebalancerService, BrokerService]
REGISTRATION = {
    "brokerName": "evil",
    "brokerAddr": "10.0.0.1:1",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
    "haServerAddr": "",
}


def client_of(credentials: Credentials | None) -> RemotingClient:
    limits = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
    if credentials is None:
        return RemotingClient(SystemClock(), None, limits)
    return SigningClient(SystemClock(), Signer(credentials), None, limits)


@asynccontextmanager
async def protected_cluster(root: Path, **more: Any) -> AsyncIterator[Cluster]:
    """Start a nameserver, a rebalancer and a broker, all with authentication."""
    clock = SystemClock()
    access = {"authentication_enabled": True, "inner_credentials_file": inner_file(root), **more}
    nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0, **access}), clock)
    await nameserver.start()
    wanted = {"nameservers": [nameserver.address], "data_dir": root / "rebalancer", **access}
    rebalancer = build_rebalancer(RebalancerSettings.model_validate(wanted), clock)
    await rebalancer.start()
    addresses = {"nameservers": [nameserver.address], "rebalancers": [rebalancer.address]}
    broker = BrokerService(
        settings_of(root, authorization_enabled=access["authentication_enabled"], **addresses, **access),
        clock,
    )
    await broker.start()
    try:
        yield nameserver, rebalancer, broker
    finally:
        await broker.stop()
        await rebalancer.stop()
        await nameserver.stop()


def test_processes_of_a_cluster_work_together_with_signatures(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as (nameserver, _, broker):
            inner = client_of(INNER)
            ext = SendMessageHeader("PG", "T", 0).to_ext()
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, b"hello")
            await inner.ask(broker.address, command, TIMEOUT_MS)

            async def is_registered() -> bool:
                route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                return (await inner.invoke(nameserver.address, route, TIMEOUT_MS)).code == 0

            await eventually_async(is_registered)
            body = SyncGroupRequest("G", "client-1", subscriptions={"T": "*"}).encode()
            request = RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body)
            synced = await inner.ask(broker.address, request, TIMEOUT_MS)
            assert SyncGroupReply.decode(synced.body).members == ["client-1"]
            await inner.close()

    run(story)


@pytest.mark.parametrize("credentials", [None, Credentials("inner", "guess"), Credentials("other", "x")])
def test_nameserver_accepts_changes_only_from_the_inner_user(
    tmp_path: Path, credentials: Credentials | None
) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as (nameserver, _, _broker):
            stranger, inner = client_of(credentials), client_of(INNER)
            table = nameserver.server.chain.table.rows
            changes = (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.PUT_KV_CONFIG)
            ext = {**REGISTRATION, "namespace": "n", "key": "k", "value": "v"}
            assert set(changes) <= set(table)
            for code in changes:
                command = RemotingCommand(code, dict(ext))
                assert (await stranger.invoke(nameserver.address, command, TIMEOUT_MS)).code == DENIED
            topics = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert (await stranger.invoke(nameserver.address, topics, TIMEOUT_MS)).code == 0
            command = RemotingCommand(RequestCode.PUT_KV_CONFIG, dict(ext))
            assert (await inner.invoke(nameserver.address, command, TIMEOUT_MS)).code == 0
            await stranger.close()
            await inner.close()

    run(story)


def test_rebalancer_accepts_only_the_inner_user(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as (_, rebalancer, _broker):
            stranger, inner = client_of(None), client_of(INNER)
            ext = {
                "consumerGroup": "G",
                "brokerName": "b",
                "clientId": "c",
                "language": "JAVA",
                "version": "0",
            }
            ext |= {"connectionClosed": "false", "clientLanguage": "JAVA", "clientVersion": "0"}
            for code in rebalancer.server.chain.table.rows:
                command = RemotingCommand(code, dict(ext), b"{}")
                response = await stranger.invoke(rebalancer.address, command, TIMEOUT_MS)
                assert response.code == DENIED, (code, response.remark)
            members = RemotingCommand(RayMQRequestCode.GROUP_MEMBERS, {"consumerGroup": "G"})
            assert (await inner.invoke(rebalancer.address, members, TIMEOUT_MS)).code == 0
            await stranger.close()
            await inner.close()

    run(story)


def test_inner_user_does_not_use_the_signature_of_rocketmq(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as (nameserver, rebalancer, broker):
            stranger = client_of(None)
            for address, code in (
                (nameserver.address, RequestCode.REGISTER_BROKER),
                (rebalancer.address, RayMQRequestCode.GROUP_MEMBERS),
                (broker.address, RequestCode.GET_BROKER_CONFIG),
            ):
                command = RemotingCommand(code, {**REGISTRATION, "consumerGroup": "G"})
                Signer(INNER).sign_as_rocketmq(command)
                response = await stranger.invoke(address, command, TIMEOUT_MS)
                assert response.code == DENIED
                assert "does not use RocketMQ's signature" in (response.remark or "")
            await stranger.close()

    run(story)


def test_broker_with_other_inner_credentials_cannot_register(tmp_path: Path) -> None:
    async def story() -> None:
        async with protected_cluster(tmp_path) as (nameserver, _, _broker):
            other = tmp_path / "other"
            other.mkdir()
            path = inner_file(other)
            path.write_text("AccessKey=inner\nSecretKey=guess\n")
            settings = settings_of(
                other,
                broker_name="evil",
                nameservers=[nameserver.address],
                authentication_enabled=True,
                inner_credentials_file=path,
            )
            evil = BrokerService(settings, SystemClock())
            await evil.start()
            assert "evil" not in nameserver.routes.cluster_info().brokers
            await evil.stop()

    run(story)


def test_nameserver_and_rebalancer_refuse_to_start_without_credentials(tmp_path: Path) -> None:
    clock = SystemClock()
    with pytest.raises(StoreError, match="needs inner_credentials_file"):
        build_nameserver(NameserverSettings.model_validate({"authentication_enabled": True}), clock)
    wanted = {"data_dir": tmp_path, "authentication_enabled": True}
    with pytest.raises(StoreError, match="needs inner_credentials_file"):
        build_rebalancer(RebalancerSettings.model_validate(wanted), clock)
