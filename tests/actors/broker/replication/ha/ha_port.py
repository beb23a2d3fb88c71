"""HaPort: the HA port of a master whose faults a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Self

from actors.broker.replication.ha.ha_frames import encode_header
from store.message_store import MessageStore
from tests.eventually import eventually_async

CHUNK_BYTES = 5_000


class HaPort:
    """Sends the log of a store to each slave that connects, and records the slave's reports."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.reports: list[int] = []
        self.connections = 0
        self.skipped_bytes = 0
        """Added to the offset of each frame: a fault."""

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connections of all slaves."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        first = int.from_bytes(await reader.readexactly(8), "big")
        self.reports.append(first)
        sending = asyncio.create_task(self._send(first, writer))
        try:
            while True:
                self.reports.append(int.from_bytes(await reader.readexactly(8), "big"))
        except (OSError, EOFError):
            sending.cancel()

    async def _send(self, position: int, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            for chunk in _chunks(self._store, position):
                writer.write(encode_header(position + self.skipped_bytes, len(chunk)) + chunk)
                position += len(chunk)
            await eventually_async(partial(self._has_more, position))

    def _has_more(self, position: int) -> bool:
        return self._store.positions.written > position


def _chunks(store: MessageStore, begin: int) -> Iterator[bytes]:
    log, file_bytes = log_of(store), store.settings.commit_log_file_bytes
    while begin < len(log):
        end = min(begin + CHUNK_BYTES, (begin // file_bytes + 1) * file_bytes, len(log))
        yield log[begin:end]
        begin = end


def log_of(store: MessageStore) -> bytes:
    """Return all bytes of the CommitLog of a store whose first file is not deleted."""
    files: list[Path] = sorted((store.root / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[: store.positions.written]
