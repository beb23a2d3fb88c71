"""More connections than file descriptors: the surplus waits or is refused, without CPU load."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from actors.wire.command import PREFIX, RemotingCommand, encode_command
from tests.eventually import LIMIT_S, eventually

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REPO = Path(__file__).parents[2]
DESCRIPTORS = 150
SERVER = f"""
import asyncio, resource, sys
import uvloop
from actors.wire.command import RemotingCommand
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from store.common.clock import SystemClock

async def main():
    table = RequestTable()
    table.add(1, lambda context: RemotingCommand.response())
    server = RemotingServer(table, SystemClock())
    port = await server.start("127.0.0.1", 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

uvloop.run(main())
"""


@pytest.fixture
def server() -> Iterator[tuple[psutil.Process, int]]:
    """Yield a server process with few file descriptors, and its port."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), int(process.stdout.readline())
        finally:
            process.kill()


def gets_response(connection: socket.socket) -> bool:
    """Send a request over the connection, and return True if a response arrives."""
    try:
        connection.sendall(encode_command(RemotingCommand(1)))
        return len(connection.recv(65536)) > PREFIX.size
    except OSError:
        return False


def test_connections_beyond_descriptor_limit_wait_without_cpu_load(
    server: tuple[psutil.Process, int],
) -> None:
    process, port = server
    with ExitStack() as stack:
        early = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(10)]
        for connection in early:
            connection.settimeout(LIMIT_S)
            assert gets_response(connection)
        late = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(80)]
        assert all(gets_response(connection) for connection in early), (
            "existing connections are no longer served"
        )
        # A share of the elapsed time, so that a slow machine does not matter: a busy loop uses far more.
        eventually(lambda: process.cpu_percent(interval=1.0) < 10, "the CPU usage of the server", within_s=5)
        for connection in late:
            connection.close()

        def serves_another() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as another:
                return gets_response(another)

        eventually(serves_another, "a new connection served")  # refused until the others are closed
    assert process.is_running()
