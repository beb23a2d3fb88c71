"""A listener with TLS: which clients it accepts, its certificates, deadlines and backpressure."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.transport.server import RemotingServer
from actors.transport.tls.contexts import ClientTls, OwnCertificate, ServerTls, TlsInvalid
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed, ConnectFailed
from store.common.clock import SystemClock
from tests.actors.transport.remoting_peers import (
    ECHO,
    TIMEOUT_MS,
    RawPeer,
    echo,
    is_unread_dropped,
    raw_peer,
    request,
    run,
    serving,
)
from tests.certificates import Authority
from tests.conftest import ClockAtRest
from tests.eventually import LIMIT_S, eventually_async

LIMITS = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
LARGE = bytes(range(256)) * 12_000


def server_tls(authority: Authority, *, is_enforced: bool = True, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(
        OwnCertificate(*authority.issue()), [client_ca] if client_ca else [], is_enforced=is_enforced
    )


@asynccontextmanager
async def connected(server: RemotingServer, tls: ClientTls | None) -> AsyncIterator[Any]:
    """Return a function that sends a body to the server and returns the response."""
    client = RemotingClient(SystemClock(), None, LIMITS, tls=tls)

    async def ask(body: bytes = b"hello") -> bytes:
        command = RemotingCommand(ECHO, {}, body)
        return bytes((await client.ask(f"127.0.0.1:{server.port}", command, TIMEOUT_MS)).body)

    try:
        yield ask
    finally:
        await client.close()


@asynccontextmanager
async def tls_peer(server: RemotingServer, authority: Authority) -> AsyncIterator[RawPeer]:
    """Connect Python's own TLS streams to the server."""
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
    try:
        yield RawPeer(server, reader, writer)
    finally:
        writer.transport.abort()


def only(logs: list[Any], event: str) -> Mapping[str, Any]:
    """Return the only log line of an event."""
    (line,) = [line for line in logs if line["event"] == event]
    return line


def test_permissive_listener_accepts_tls_and_plain_clients(authority: Authority) -> None:
    async def story() -> None:
        tls = server_tls(authority, is_enforced=False)
        async with (
            serving(tls=tls) as server,
            connected(server, ClientTls(authority.ca_file)) as encrypted,
            connected(server, None) as plain,
        ):
            for ask in (encrypted, plain):
                assert await ask() == b"hello"
                assert await ask(LARGE) == LARGE
                assert await asyncio.gather(*(ask(b"%d" % n) for n in range(200))) == [
                    b"%d" % n for n in range(200)
                ]
            assert len(server.connections) == 2

    run(story())


def test_connection_that_the_tls_peer_closes_is_forgotten(authority: Authority) -> None:
    async def story() -> None:
        async with serving(tls=server_tls(authority)) as server, tls_peer(server, authority) as peer:
            peer.send(*(request(ECHO, number) for number in range(3)))
            assert [(await peer.read()).opaque for _ in range(3)] == [0, 1, 2]
            peer.writer.close()  # sends close_notify
            await eventually_async(lambda: not server.connections)

    run(story())


def test_enforced_listener_refuses_plain_clients_with_one_log_line(authority: Authority) -> None:
    async def story() -> None:
        async with (
            serving(tls=server_tls(authority)) as server,
            connected(server, None) as plain,
            connected(server, ClientTls(authority.ca_file)) as encrypted,
        ):
            with pytest.raises(Closed):
                await plain()
            assert await encrypted() == b"hello"
            async with raw_peer(server) as browser:
                browser.write(b"GET / HTTP/1.1\r\n\r\n")
                assert await browser.is_closed()

    with structlog.testing.capture_logs() as logs:
        run(story())
    refused = [line for line in logs if line["event"] == "connection_refused"]
    assert ["without TLS" in refused[0]["looks_like"], "HTTP" in refused[1]["looks_like"]] == [True, True]
    assert len(refused) == 2
    assert all("tls: enforced" in line["reason"] for line in refused)


def test_listener_without_tls_refuses_tls_clients_with_one_log_line() -> None:
    async def story() -> None:
        async with serving() as server, connected(server, ClientTls(verify=False)) as encrypted:
            with pytest.raises(ConnectFailed, match="during the TLS handshake: closed by the peer"):
                await encrypted()

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert "TLS is disabled here" in only(logs, "connection_refused")["looks_like"]


def test_client_verifies_the_ca_and_the_host_name_of_the_server(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")

    async def story() -> None:
        async with serving(tls=server_tls(authority)) as server:
            for tls in (ClientTls(other.ca_file), ClientTls()):
                async with connected(server, tls) as ask:
                    with pytest.raises(ConnectFailed, match="the peer's certificate is not valid"):
                        await ask()
            async with connected(server, ClientTls(other.ca_file, verify=False)) as ask:
                assert await ask() == b"hello"
        elsewhere = OwnCertificate(*authority.issue(hosts=["broker.example"]))
        async with (
            serving(tls=ServerTls(elsewhere, is_enforced=True)) as server,
            connected(server, ClientTls(authority.ca_file)) as ask,
        ):
            with pytest.raises(ConnectFailed, match=r"not valid for '127\.0\.0\.1'"):
                await ask()

    with structlog.testing.capture_logs() as logs:
        run(story())
    failures = [line["reason"] for line in logs if line["event"] == "tls_handshake_failed"]
    assert "unknown ca" in failures[0]


def test_host_name_that_tls_cannot_verify_is_refused() -> None:
    async def story() -> None:
        client = RemotingClient(SystemClock(), None, LIMITS, tls=ClientTls())
        with pytest.raises(ConnectFailed, match=r"'\.broker' is not a host name"):
            await client.ask(".broker:1", RemotingCommand(ECHO), TIMEOUT_MS)
        await client.close()

    run(story())


def test_listener_with_a_client_ca_requires_a_certificate(authority: Authority, tmp_path: Path) -> None:
    own = OwnCertificate(*authority.issue("client"))
    forged = OwnCertificate(*Authority(tmp_path / "other").issue("client"))

    async def story() -> None:
        tls = server_tls(authority, client_ca=authority.ca_file)
        async with serving(tls=tls) as server:
            async with connected(server, ClientTls(authority.ca_file, own)) as ask:
                assert await ask(LARGE) == LARGE
            for wrong in (None, forged):
                async with connected(server, ClientTls(authority.ca_file, wrong)) as ask:
                    with pytest.raises((Closed, ConnectFailed), match=r"alert|TLS|closed the connection"):
                        await ask()
            await eventually_async(lambda: not server.connections)

    run(story())


def test_changed_certificate_is_used_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    tls, renewed = server_tls(authority), Authority(tmp_path / "renewed")

    async def story() -> None:
        async with (
            serving(tls=tls) as server,
            connected(server, ClientTls(authority.ca_file)) as before,
            connected(server, ClientTls(renewed.ca_file)) as after,
        ):
            assert await before() == b"hello"
            certificate, key = authority.issue()[0], authority.issue()[1]
            for path, new in zip((certificate, key), renewed.issue(), strict=True):
                new.replace(path)
            tls.reload()
            assert await after() == b"hello"
            assert await before() == b"hello"  # the open connection remains

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert "server.crt" in only(logs, "tls_files_reloaded")["files"]


def test_invalid_certificate_is_logged_once_and_the_previous_remains(authority: Authority) -> None:
    tls = server_tls(authority)

    async def story() -> None:
        async with serving(tls=tls) as server:
            (authority.ca_file.parent / "server.crt").write_text("damaged")
            tls.reload()
            tls.reload()
            async with connected(server, ClientTls(authority.ca_file)) as ask:
                assert await ask() == b"hello"

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert "previous" in only(logs, "tls_files_invalid")["effect"]


def test_missing_and_exposed_files_are_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue()
    with pytest.raises(TlsInvalid, match=r"missing\.crt.*No such file"):
        ServerTls(OwnCertificate(tmp_path / "missing.crt", key), is_enforced=True)
    with pytest.raises(TlsInvalid, match=r"missing\.pem: No such file"):
        ClientTls(tmp_path / "missing.pem")
    with pytest.raises(TlsInvalid, match=r"server\.key.*is not a PEM certificate"):
        ClientTls(key)
    other_key = Authority(tmp_path / "other").issue()[1]
    with pytest.raises(TlsInvalid, match="are not a PEM certificate and its private key"):
        ServerTls(OwnCertificate(certificate, other_key), is_enforced=True)
    key.chmod(0o644)
    with pytest.raises(TlsInvalid, match="chmod o="):
        ServerTls(OwnCertificate(certificate, key), is_enforced=True)


def test_unfinished_handshake_and_silent_connection_are_closed(
    authority: Authority, clock: ClockAtRest
) -> None:
    limits = RemotingLimits(handshake_timeout_ms=10_000, idle_ms=120_000)

    async def story() -> None:
        async with (
            serving(tls=server_tls(authority), clock=clock, limits=limits) as server,
            raw_peer(server) as silent,
            raw_peer(server) as slow,
            tls_peer(server, authority) as good,
        ):
            await eventually_async(lambda: len(server.connections) == 3)
            await slow.deliver_bytes(b"\x16\x03\x01\x02\x00\x01")
            good.send(request(ECHO, 1))
            await good.read()
            clock.advance(9_999)
            server.hub.sweep()
            assert len(server.connections) == 3
            clock.advance(1)
            server.hub.sweep()
            assert await slow.is_closed()
            good.send(request(ECHO, 2))
            await good.read()
            server.hub.sweep()
            clock.advance(110_000)
            server.hub.sweep()
            assert await silent.is_closed()
            good.send(request(ECHO, 3))
            assert (await good.read()).opaque == 3

    with structlog.testing.capture_logs() as logs:
        run(story())
    reasons = [line["reason"] for line in logs if line["event"] == "connection_closed"]
    assert reasons == [
        "the TLS handshake is not finished after 10 s",
        "no byte was received after 120 s",
    ]


def test_handshakes_do_not_block_the_event_loop(authority: Authority) -> None:
    tls, go, begun = server_tls(authority), threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        begun.set()
        assert go.wait(LIMIT_S)

    async def story() -> None:
        trusting = ClientTls(authority.ca_file)
        async with (
            serving(tls=tls) as server,
            connected(server, trusting) as ask,
            connected(server, trusting) as late,
        ):
            assert await ask() == b"hello"
            tls.current.sni_callback = wait  # OpenSSL calls it in the middle of the handshake
            pending = asyncio.create_task(late())
            await eventually_async(begun.is_set)
            assert await ask(LARGE) == LARGE
            assert not pending.done()
            go.set()
            assert await pending == b"hello"

    run(story())


@pytest.mark.parametrize("received", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(20_000)])
def test_damaged_handshake_closes_only_its_connection(authority: Authority, received: bytes) -> None:
    async def story() -> None:
        async with (
            serving(tls=server_tls(authority)) as server,
            tls_peer(server, authority) as good,
            raw_peer(server) as bad,
        ):
            bad.write(received)
            bad.writer.write_eof()
            assert await bad.is_closed()
            good.send(request(ECHO, 1))
            assert (await good.read()).opaque == 1
            await eventually_async(lambda: len(server.connections) == 1)

    with structlog.testing.capture_logs() as logs:
        run(story())
    assert "TLS handshake" in only(logs, "tls_handshake_failed")["reason"]


def test_damaged_record_closes_only_its_connection(authority: Authority) -> None:
    async def story() -> None:
        async with (
            serving(tls=server_tls(authority)) as server,
            tls_peer(server, authority) as bad,
            tls_peer(server, authority) as good,
        ):
            bad.send(request(ECHO, 1))
            await bad.read()
            with bad.writer.get_extra_info("socket").dup() as wire:
                wire.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await bad.read()
            await eventually_async(lambda: len(server.connections) == 1)
            good.send(request(ECHO, 2))
            assert (await good.read()).opaque == 2

    run(story())


def test_unread_responses_of_a_tls_peer_are_counted_and_bounded(
    authority: Authority, clock: ClockAtRest
) -> None:
    def big(context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(parts=[memoryview(bytes(256 * 1024))])

    async def story() -> None:
        limits = RemotingLimits(unread_ms=60_000, idle_ms=10**9)
        async with (
            serving({ECHO: big}, clock=clock, limits=limits, tls=server_tls(authority)) as server,
            tls_peer(server, authority) as stalled,
            tls_peer(server, authority) as late,
        ):
            for peer in (stalled, late):
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
                peer.send(*(request(ECHO, number) for number in range(100)))
            await eventually_async(lambda: server.hub.unread_bytes > limits.high_water_bytes)
            assert server.hub.unread_bytes < 4 * limits.high_water_bytes
            late.writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(100):
                await late.read()
            await eventually_async(lambda: is_unread_dropped(server, clock))

    run(story())


def test_stopped_listener_sends_its_responses_and_closes(authority: Authority) -> None:
    async def story() -> None:
        async with serving(tls=server_tls(authority)) as server, tls_peer(server, authority) as peer:
            await eventually_async(lambda: bool(server.connections))
            async with raw_peer(server) as waiting:
                await eventually_async(lambda: len(server.connections) == 2)
                peer.send(request(ECHO, 1, LARGE))
                assert (await peer.read()).body == LARGE
                await server.stop()
                assert await peer.is_closed()
                assert await waiting.is_closed()

    run(story())


def test_connections_in_a_handshake_count_towards_the_limit(authority: Authority) -> None:
    async def story() -> None:
        limits = RemotingLimits(max_connections=2)
        async with (
            serving({ECHO: echo}, tls=server_tls(authority), limits=limits) as server,
            raw_peer(server) as first,
            raw_peer(server),
        ):
            await eventually_async(lambda: len(server.connections) == 2)
            async with tls_peer(server, authority) as peer:
                peer.send(request(ECHO, 1))
                assert (await peer.read()).opaque == 1
                assert await first.is_closed()  # the oldest one without a request
                assert len(server.connections) == 2

    run(story())
