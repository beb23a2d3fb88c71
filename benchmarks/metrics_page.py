"""Loop time of one page of metrics of a broker with many queues.

    uv run python -m benchmarks.metrics_page [--queues 20000] [--groups 200] [--scrapes 3] [--json]

A broker has `--groups` topics with together `--queues` queues, one message in each, and one group for each
topic that has acknowledged nothing. Every second scrape follows a commit in each queue, so that positions
have to be read again. The process sleeps otherwise, so the CPU time of the loop's thread during a scrape is
that of the page. The longest slice is the longest time in which another task of the loop could not run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.features.metrics.lags import LAGS_KEPT_MAX_NS
from actors.broker.service import BrokerService
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.store_settings import StoreSettings

PAUSE_S = LAGS_KEPT_MAX_NS / 1e9 + 0.1
"""Longer than the broker keeps computed lags."""


@dataclass(frozen=True)
class Scrape:
    """One scrape: times in ms, the size of the page, and its number of series."""

    loop_ms: float
    longest_slice_ms: float
    page_ms: float
    size_bytes: int
    series: int


async def fill(broker: BrokerService, queues: int, groups: int) -> None:
    """Create the topics, their messages and the offsets of the groups."""
    graph, of_topic = broker.graph, queues // groups
    store, tables = graph.loop.store, graph.tables
    for number in range(groups):
        topic = tables.topics.ensure(f"topic-{number}", of_topic).topic_name
        for queue_id in range(of_topic):
            store.append(RecordDraft(topic, queue_id, b"x" * 100, b""))
            tables.offsets.commit(f"group-{number}", topic, queue_id, 0)
        graph.loop.server.request_tick()
        await asyncio.sleep(0)
    while store.has_more_to_dispatch:
        graph.loop.server.request_tick()
        await asyncio.sleep(0.01)


async def scrape(broker: BrokerService) -> Scrape:
    """Read the page twice, to measure its CPU time and its slices apart."""
    url = f"http://127.0.0.1:{broker.graph.metrics.port}/metrics"

    def read() -> bytes:
        with urllib.request.urlopen(url, timeout=30) as response:
            return bytes(response.read())

    await asyncio.sleep(PAUSE_S)
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    page = await asyncio.to_thread(read)
    loop_s, page_s = time.thread_time() - begin_cpu_s, time.perf_counter() - begin_s
    await asyncio.sleep(PAUSE_S)
    task, longest_s = asyncio.ensure_future(asyncio.to_thread(read)), 0.0
    while not task.done():
        before_s = time.thread_time()
        await asyncio.sleep(0)
        longest_s = max(longest_s, time.thread_time() - before_s)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    return Scrape(1000 * loop_s, 1000 * longest_s, 1000 * page_s, len(page), series)


@asynccontextmanager
async def serving(queues: int, groups: int) -> AsyncIterator[BrokerService]:
    """Yield a broker that has so many queues, and offsets of each group in each queue."""
    with tempfile.TemporaryDirectory() as root:
        store = StoreSettings.model_validate({"consume_queue_file_bytes": 40_000, "flush": "async"})
        settings = BrokerSettings(
            listen_port=0, store_root=Path(root) / "store", store=store, vip_channel=False, metrics_port=0
        )
        broker = BrokerService(settings, SystemClock())
        await broker.start()
        try:
            await fill(broker, queues, groups)
            yield broker
        finally:
            await broker.stop()


async def measure(queues: int, groups: int, scrapes: int) -> list[Scrape]:
    """Return the scrapes; every second one follows a commit in each queue."""
    found = []
    async with serving(queues, groups) as broker:
        for number in range(scrapes):
            if number % 2:
                await commit_all(broker)
            found.append(await scrape(broker))
    return found


async def commit_all(broker: BrokerService) -> None:
    """Let each group acknowledge the first message of each queue, and put a further one."""
    graph = broker.graph
    for key, offsets in list(graph.tables.offsets.table.offsets.items()):
        topic, _, group = key.partition("@")
        for queue_id, offset in list(offsets.items()):
            graph.loop.store.append(RecordDraft(topic, queue_id, b"x" * 100, b""))
            graph.tables.offsets.commit(group, topic, queue_id, offset + 1)
    while graph.loop.store.has_more_to_dispatch:
        graph.loop.server.request_tick()
        await asyncio.sleep(0.01)


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = uvloop.run(measure(given.queues, given.groups, given.scrapes))
    if given.json:
        print(json.dumps([asdict(each) for each in found]))
        return
    print(f"{given.queues:,} queues, {given.groups} groups; ms of loop time, longest slice, whole page")
    for each in found:
        print(
            f"{each.loop_ms:8.1f} {each.longest_slice_ms:8.2f} {each.page_ms:8.1f}   "
            f"{each.series:,} series, {each.size_bytes:,} bytes"
        )


if __name__ == "__main__":
    main()
