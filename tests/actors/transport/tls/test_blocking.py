"""TLS over a blocking socket: the errors of a handshake."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.transport.tls.blocking import secured
from actors.transport.tls.contexts import ClientTls, OwnCertificate, ServerTls
from tests.certificates import Authority
from tests.eventually import LIMIT_S


@pytest.fixture
def address(authority: Authority) -> Iterator[tuple[str, int]]:
    """Run a server that makes TLS handshakes, one after another."""
    tls = ServerTls(OwnCertificate(*authority.issue()), is_enforced=True)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            try:
                tls.current.wrap_socket(accepted, server_side=True).close()
            except OSError:
                accepted.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LIMIT_S)


def handshake(address: tuple[str, int], tls: ClientTls, host: str) -> None:
    secured(socket.create_connection(address, LIMIT_S), tls, host).close()


def test_handshake_fails_with_the_reason(
    address: tuple[str, int], authority: Authority, tmp_path: Path
) -> None:
    trusting, other = ClientTls(authority.ca_file), ClientTls(Authority(tmp_path / "other").ca_file)
    handshake(address, trusting, "127.0.0.1")
    with pytest.raises(OSError, match="the peer's certificate is not valid"):
        handshake(address, other, "127.0.0.1")
    with pytest.raises(OSError, match=r"not valid for 'broker\.example'"):
        handshake(address, trusting, "broker.example")
    with pytest.raises(OSError, match="cannot verify the host name"):
        handshake(address, trusting, ".broker")
