"""BlockingConnection: frames of any size and in any pieces, time-outs and broken connections."""

from __future__ import annotations

import ast
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.transport.clients.blocking import RECEIVE_BYTES, BlockingConnection
from actors.wire.codes import FLAG_RESPONSE, RequestCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand, encode_command
from actors.wire.remoting_errors import Closed, ConnectFailed, RemotingError, TimedOut
from tests.eventually import LIMIT_S
from tests.sources import parsed

REPOSITORY = Path(__file__).parents[4]
TIMEOUT_MS = int(LIMIT_S * 1000)


@pytest.fixture
def ends() -> Iterator[tuple[BlockingConnection, socket.socket]]:
    """Yield a connection and the socket of its peer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}", TIMEOUT_MS) as connection,
        listener.accept()[0] as peer,
    ):
        yield connection, peer


def response(opaque: int, body: bytes = b"", flag: int = FLAG_RESPONSE) -> bytes:
    return encode_command(RemotingCommand(0, None, body, opaque=opaque, flag=flag))


def sent(connection: BlockingConnection) -> int:
    command = RemotingCommand(RequestCode.GET_MAX_OFFSET)
    connection.send(command)
    return command.opaque


@pytest.mark.parametrize("size", [0, 100, RECEIVE_BYTES, 3 * RECEIVE_BYTES])
def test_response_is_found_among_other_commands(
    ends: tuple[BlockingConnection, socket.socket], size: int
) -> None:
    connection, peer = ends
    first, second = sent(connection), sent(connection)
    bodies = b"x" * size, b"y" * size
    answers = response(first, bodies[0]) + response(second, bodies[1])
    peer.sendall(response(first, flag=0) + response(99) + answers[:7])
    peer.sendall(answers[7:100_000])
    peer.sendall(answers[100_000:])
    assert bytes(connection.receive(first).body) == bodies[0]
    assert bytes(connection.receive(second).body) == bodies[1]
    assert connection.is_usable


def test_silent_peer_and_closed_connection_are_errors(
    ends: tuple[BlockingConnection, socket.socket],
) -> None:
    connection, peer = ends
    with pytest.raises(TimedOut, match="no response within 10 ms"):
        connection.exchange(RemotingCommand(RequestCode.GET_MAX_OFFSET), 10)
    peer.close()
    with pytest.raises(Closed):
        connection.exchange(RemotingCommand(RequestCode.GET_MAX_OFFSET))


@pytest.mark.parametrize(
    "prefix", [b"HTTP/1.1", (2).to_bytes(4, "big") * 2, (MAX_FRAME_BYTES + 1).to_bytes(4, "big") + bytes(4)]
)
def test_invalid_frame_is_an_error(ends: tuple[BlockingConnection, socket.socket], prefix: bytes) -> None:
    connection, peer = ends
    peer.sendall(prefix)
    with pytest.raises(Closed, match="a frame of"):
        connection.receive(1)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-port"])
def test_connection_that_cannot_be_made_is_an_error(address: str) -> None:
    with pytest.raises(ConnectFailed) as raised:
        BlockingConnection(address, TIMEOUT_MS)
    assert isinstance(raised.value, RemotingError)
    assert raised.value.address == address


def test_one_place_reads_frames_from_a_blocking_socket() -> None:
    found = set()
    for package in ("actors", "cluster", "jobs", "store"):
        for path in (REPOSITORY / package).rglob("*.py"):
            names = {
                alias.name
                for node in ast.walk(parsed(path))
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for alias in node.names
            }
            if {"socket", "decode_command"} <= names:
                found.add(path.relative_to(REPOSITORY).as_posix())
    assert found == {"actors/transport/clients/blocking.py"}
