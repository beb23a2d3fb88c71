"""With `ha_tls` only a peer with a certificate of the cluster's CA gets the log, and only encrypted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from actors.broker.replication.ha.ha_frames import encode_report
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.transport.tls.contexts import ClientTls, OwnCertificate
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of
from tests.actors.broker.core.auth.access_peers import INNER, SigningPeer, inner_file
from tests.actors.broker.replication.ha.test_ha_client import Following, broker, until_equal
from tests.certificates import Authority
from tests.eventually import eventually_async
from tests.ports import free_port

LIMITS = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
MASTER_ONLY = ("replication", "ha_listen_port")


def settings_with_tls(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.issue()
    return {
        "tls_certificate": certificate,
        "tls_key": key,
        "tls_ca": authority.ca_file,
        "ha_tls": True,
        "replication": "async",
        "ha_listen_port": free_port(),
    }


def tls_of(authority: Authority, ca_file: Path | None = None, name: str = "slave") -> ClientTls:
    return ClientTls(ca_file or authority.ca_file, OwnCertificate(*authority.issue(name)))


async def received(port: int, context: ssl.SSLContext | None) -> bytes:
    """Return what a port sends to a peer that reports as a slave does."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(encode_report(0))
        return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()


@asynccontextmanager
async def pair(root: Path, authority: Authority, **settings: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """Yield a master with `ha_tls`, and a slave that does not follow yet."""
    async with (
        broker(root / "m", **settings_with_tls(authority), **settings) as master,
        broker(root / "s", role="slave") as slave,
    ):
        yield master, slave


def test_slave_with_a_certificate_copies_the_log_of_a_master_with_users(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    users = {"authentication_enabled": True, "inner_credentials_file": inner_file(tmp_path)}

    async def story() -> None:
        async with pair(tmp_path, authority, **users) as (master, slave):
            to_master, to_slave = SigningPeer(master.broker, INNER), SigningPeer(slave.broker, INNER)
            for number in range(60):
                await to_master.send("T", b"%d" % number * 25_000)
            address = master.broker.graph.identity.ha_address
            follower = Following(to_slave, to_master, address, tls_of(authority))
            await until_equal(to_master, to_slave)
            assert master.broker.describe()["in_sync_replicas"] == 2
            follower.task.cancel()
            for each in (to_master, to_slave):
                await each.client.close()

    run(story)


def test_replicas_with_ha_tls_find_and_follow_each_other(tmp_path: Path) -> None:
    given = settings_with_tls(Authority(tmp_path / "pki"))
    listener = {name: given[name] for name in ("tls_certificate", "tls_key")}

    async def story() -> None:
        wanted = {"listen_port": 0, "tls": "permissive", **listener}
        nameserver = build_nameserver(NameserverSettings.model_validate(wanted), SystemClock())
        await nameserver.start()
        settings = {**given, "tls": "permissive", "nameservers": nameserver.address}
        async with broker(tmp_path / "m", **settings) as master:
            await master.send("T")
            own = {name: value for name, value in settings.items() if name not in MASTER_ONLY}
            async with broker(tmp_path / "s", **own, role="slave", replica=1) as slave:
                await until_equal(master, slave)
                await eventually_async(lambda: slave.broker.describe()["replication_state"] == "following")
        await nameserver.stop()

    run(story)


def test_peers_without_a_certificate_of_the_cluster_get_nothing(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "pki"), Authority(tmp_path / "other")
    foreign = tls_of(other, authority.ca_file)

    async def story() -> None:
        async with pair(tmp_path, authority) as (master, slave):
            await master.send("T")
            port = master.broker.settings.ha_listen_port
            for context in (None, ClientTls(authority.ca_file).current, foreign.current):
                assert await received(port, context) == b""
            follower = Following(slave, master, f"127.0.0.1:{port}", foreign)
            await eventually_async(lambda: "waiting" in follower.client.state)
            assert follower.client.bytes_received == 0
            assert master.broker.describe()["slaves"] == ""
            follower.task.cancel()

    run(story)


def test_slave_does_not_follow_a_master_of_another_ca(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "pki"), Authority(tmp_path / "other")

    async def story() -> None:
        async with pair(tmp_path, authority) as (master, slave):
            address = master.broker.graph.identity.ha_address
            follower = Following(slave, master, address, tls_of(authority, other.ca_file))
            await eventually_async(lambda: "certificate" in follower.client.state.lower())
            assert follower.client.bytes_received == 0
            follower.task.cancel()

    run(story)


def test_incomplete_or_damaged_certificates_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="ha_tls needs tls_certificate, tls_key and tls_ca"):
        settings_of(tmp_path, ha_tls=True)
    given = settings_with_tls(Authority(tmp_path / "pki"))
    given["tls_ca"].write_text("garbage")

    async def story() -> None:
        async with broker(tmp_path / "m", **given):
            pass

    with pytest.raises(StoreError, match="is not a PEM certificate"):
        run(story)


def authorities(folder: Path, kind: str) -> tuple[Path, Path]:
    """Return tls_ca and tls_client_ca."""
    cluster, clients = Authority(folder / "cluster"), Authority(folder / "clients")
    both, copy = folder / "both.pem", folder / "copy.pem"
    copy.write_bytes(cluster.ca_file.read_bytes())
    both.write_bytes(cluster.ca_file.read_bytes() + clients.ca_file.read_bytes())
    return {
        "one file": (cluster.ca_file, cluster.ca_file),
        "one content": (cluster.ca_file, copy),
        "client CA among those of the cluster": (both, clients.ca_file),
        "client CA signed by that of the cluster": (cluster.ca_file, cluster.sub("sub")),
        "separate": (cluster.ca_file, clients.ca_file),
        "CA of the cluster among those of clients": (cluster.ca_file, both),
    }[kind]


@pytest.mark.parametrize("role", ["async", "sync", "slave"])
@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [
        ("one file", True),
        ("one content", True),
        ("client CA among those of the cluster", True),
        ("client CA signed by that of the cluster", True),
        ("separate", False),
        ("CA of the cluster among those of clients", False),
    ],
)
def test_replica_does_not_start_if_clients_could_pass_for_replicas(
    tmp_path: Path, kind: str, is_refused: bool, role: str
) -> None:
    given = settings_with_tls(Authority(tmp_path / "own"))
    given["tls_ca"], given["tls_client_ca"] = authorities(tmp_path, kind)
    if role == "slave":
        given = {name: value for name, value in given.items() if name not in MASTER_ONLY} | {
            "replica": 1,
            "role": role,
        }
    else:
        given["replication"] = role

    async def story() -> None:
        async with broker(tmp_path / "store", **given):
            pass

    if is_refused:
        with pytest.raises(StoreError, match="also trusts the CA of clients"):
            run(story)
    else:
        run(story)


def test_client_with_a_certificate_of_its_own_ca_sends_and_gets_no_log(tmp_path: Path) -> None:
    """Processes present certificates of `tls_ca` to each other, which is not the CA of clients."""
    authority, clients = Authority(tmp_path / "pki"), Authority(tmp_path / "clients")
    given = settings_with_tls(authority) | {"tls": "enforced", "tls_client_ca": clients.ca_file}
    of_listener = {
        name: given[name] for name in ("tls", "tls_certificate", "tls_key", "tls_ca", "tls_client_ca")
    }
    client = ClientTls(authority.ca_file, OwnCertificate(*clients.issue()))

    async def story() -> None:
        nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_port": 0, **of_listener}), SystemClock()
        )
        await nameserver.start()
        settings = {**given, "nameservers": nameserver.address}
        own = {name: value for name, value in settings.items() if name not in MASTER_ONLY}
        async with (
            broker(tmp_path / "m", **settings) as master,
            broker(tmp_path / "s", **own, role="slave", replica=1) as slave,
        ):
            remoting = RemotingClient(SystemClock(), None, LIMITS, tls=client)
            send = RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, SendMessageHeader("PG", "T", 0).to_ext(), b"x"
            )
            await remoting.ask(master.broker.address, send, TIMEOUT_MS)
            await remoting.close()
            await eventually_async(lambda: slave.broker.describe()["replication_state"] == "following")
            await eventually_async(lambda: master.broker.describe()["in_sync_replicas"] == 2)
            assert await received(master.broker.settings.ha_listen_port, client.current) == b""
        await nameserver.stop()

    run(story)
