"""FakeSlave: speaks RocketMQ's HA protocol, and keeps the log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.ha.ha_frames import CHUNK_BYTES, HaFrameReader, encode_report
from tests.actors.broker.brokers import Peer, settings_of
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async
from tests.ports import free_port


def master_of(root: Path, replication: str = "async", **settings: Any) -> BrokerSettings:
    """Return the settings of a master with async flush and a free HA port."""
    store = {"flush": "async", **settings.pop("store", {})}
    return settings_of(root, store, replication=replication, ha_listen_port=free_port(), **settings)


def log_of(root: Path, begin: int, end: int) -> bytes:
    """Return the bytes [begin, end) of the CommitLog in the store at `root`."""
    files = sorted((root / "commitlog").iterdir())
    first = int(files[0].name)
    return b"".join(path.read_bytes() for path in files)[begin - first : end - first]


class FakeSlave:
    """A slave that acknowledges what it receives, unless `acknowledges` is False."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.begin = -1
        self.log = bytearray()
        self.heartbeats = 0
        self.is_closed = False
        self.acknowledges = True
        self._frames = HaFrameReader()
        self._reader = reader
        self._writer = writer
        self._task = asyncio.create_task(self._receive())

    @property
    def end(self) -> int:
        return self.begin + len(self.log)

    def report(self, end: int) -> None:
        self._writer.write(encode_report(end))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def acknowledge(self) -> None:
        self.acknowledges = True
        self.report(self.end)

    async def until_closed(self) -> None:
        await eventually_async(lambda: self.is_closed, "the master closes the connection")

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()

    async def _receive(self) -> None:
        try:
            while data := await self._reader.read(1 << 20):
                for frame in self._frames.received(data):
                    self._take(frame.offset, frame.data)
        except ConnectionError:
            pass
        self.is_closed = True

    def _take(self, offset: int, data: memoryview) -> None:
        assert len(data) <= CHUNK_BYTES
        if not data:
            self.heartbeats += 1
            return
        if self.begin < 0:
            self.begin = offset
        assert offset == self.end
        self.log += data
        if self.acknowledges:
            self.report(self.end)


@asynccontextmanager
async def slave_of(
    peer: Peer, first_report: int | None = 0, local: str = "127.0.0.1", *, acknowledges: bool = True
) -> AsyncIterator[FakeSlave]:
    """Connect a slave from the address `local`; it sends the first report unless that is None."""
    port = peer.broker.settings.ha_listen_port
    slave = FakeSlave(*await asyncio.open_connection("127.0.0.1", port, local_addr=(local, 0)))
    slave.acknowledges = acknowledges
    if first_report is not None:
        slave.report(first_report)
    try:
        yield slave
    finally:
        await slave.close()


async def let_pass(clock: ClockAtRest, slave: FakeSlave, until: Callable[[], object], end: int = 0) -> None:
    """Advance the clock in small steps, in which the slave reports `end`, until a condition is true."""

    def step() -> object:
        if until():
            return True
        clock.advance(100)
        slave.report(end)
        return False

    await eventually_async(step)


def figure(peer: Peer, name: str) -> Any:
    return peer.broker.describe()[name]


async def until(peer: Peer, name: str, value: object) -> None:
    """Wait until a figure of the master has this value."""
    await eventually_async(lambda: figure(peer, name) == value, f"{name} is {value}")


async def until_copied(peer: Peer, slave: FakeSlave) -> None:
    """Wait until the slave has the whole log, then compare it."""
    written = figure(peer, "written")
    await eventually_async(lambda: slave.end == written, f"the slave has {written} bytes")
    root = peer.broker.settings.store_root
    assert bytes(slave.log) == log_of(root, slave.begin, written)
