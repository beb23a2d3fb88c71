"""More connections than descriptors: those over it wait or are turned away, the process neither spins nor
stops, and serves again when there is room.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from actors.remoting.command import PREFIX, RemotingCommand, encode_command
from tests.eventually import LIMIT_S, eventually

pytestmark = [pytest.mark.faults, pytest.mark.slow]

REPO = Path(__file__).parents[2]
DESCRIPTORS = 48
SERVER = f"""
import asyncio, resource, sys
import uvloop
from actors.remoting.command import RemotingCommand
from actors.remoting.server import RemotingServer
from actors.remoting.table import RequestTable
from store.clock import SystemClock

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
    """A process with few descriptors, and the port that it serves."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=REPO, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield psutil.Process(process.pid), int(process.stdout.readline())
        finally:
            process.kill()


def asked(connection: socket.socket) -> bool:
    """Whether a request over this connection is answered."""
    try:
        connection.sendall(encode_command(RemotingCommand(1)))
        return len(connection.recv(65536)) > PREFIX.size
    except OSError:
        return False


def test_connections_beyond_the_descriptors_cost_no_processor_and_come_in_when_others_go(
    server: tuple[psutil.Process, int],
) -> None:
    process, port = server
    with ExitStack() as stack:
        early = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(10)]
        for connection in early:
            connection.settimeout(LIMIT_S)
            assert asked(connection)
        late = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(80)]
        assert all(asked(connection) for connection in early), "those inside are served as before"
        # A share of what passed, however long that took: a process that spins never has so little.
        eventually(lambda: process.cpu_percent(interval=1.0) < 10, "it spins over accept", within_s=5)
        for connection in late:
            connection.close()

        def serves_another() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as another:
                return asked(another)

        eventually(serves_another, "a new connection served")  # turned away until the others are closed
    assert process.is_running()
