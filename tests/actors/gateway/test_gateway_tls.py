"""A gateway with a certificate that it makes for itself."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
from pydantic import ValidationError

from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.service import GatewayService
from store.common.clock import SystemClock
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway


async def sent(client: GrpcClient, channel: grpc.aio.Channel) -> bool:
    async with channel:
        found = await GrpcClient(client.cluster, channel, client.peer).send(message())
        return bool(found.status.code == Code.OK)


def test_self_signed_certificate_serves_tls_clients_beside_plain_ones(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        settings = GatewaySettings(
            nameservers=[client.cluster.nameserver_address],
            listen_port=0,
            tls="permissive",
            tls_self_signed=True,
        )
        gateway = GatewayService(settings, SystemClock())
        await gateway.start()
        try:
            port = gateway.server.port
            certificate = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
            credentials = grpc.ssl_channel_credentials(certificate.encode())
            assert await sent(client, grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials))
            assert await sent(client, grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
        finally:
            await gateway.stop()

    with_gateway(tmp_path, story)


def test_tls_without_any_certificate_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs tls_certificate and tls_key"):
        GatewaySettings(tls="permissive")
