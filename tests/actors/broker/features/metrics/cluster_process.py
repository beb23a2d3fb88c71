"""A nameserver and a broker with messages and a lagging group, on a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import uvloop

from tests.actors.broker.brokers import registered_broker
from tests.eventually import LIMIT_S

KEY = "UNIQ_KEY\x01AC11000100002A9F4E2C7B8D0001\x02"


@contextmanager
def serving_cluster(root: Path) -> Iterator[list[str]]:
    """Yield the addresses of the pages of metrics."""
    started: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, list[str]]] = Queue()

    async def serve() -> None:
        async with registered_broker(root) as (nameserver, peer):
            for number in range(5):
                await peer.send("T", b"x" * 100, queue_id=number % 2, properties=KEY)
            await peer.heartbeat("client", "CG", T="*")
            await peer.commit("CG", "T", 1)
            await peer.pull("T")
            ports = (peer.metrics.port, nameserver.metrics.port)
            stop = asyncio.Event()
            started.put((asyncio.get_running_loop(), stop, [f"127.0.0.1:{port}" for port in ports]))
            await stop.wait()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    loop, stop, pages = started.get(timeout=LIMIT_S)
    try:
        yield pages
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
