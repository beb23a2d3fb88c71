"""The measures of lite topics: sends, memory, expiry, start, and the way of a message to its subscriber.

    python -m benchmarks.lite_topics [--topics 1000000] [--messages 5] [--clients 100] [--subscribed 100000]

One connection sends pipelined lite messages to a broker in a process of its own, and plain messages in turns,
so that the ratio holds on a busy machine too. Each lite topic gets its messages in rounds over all of them.
Then the broker is started again, and clients that subscribe lite topics wait for messages, of which one at a
time is sent. Prints each figure at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from actors.broker.features.lite.lite_expiry import DROPPED_MAX
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand, encode_command
from benchmarks.processes import anonymous_bytes, cpu_seconds, stop_broker
from benchmarks.raw_peer import RawPeer
from cluster.client import Admin
from cluster.client.aio import LiteConsumer, Producer
from cluster.lab.bench.broker import BenchCluster, running
from cluster.lab.bench.result import percentile
from store.dispatch.saved_sink import SINKS, read_state
from store.lite.lite_index import LiteIndex
from store.lite.names import LITE
from store.message.group_config import SubscriptionGroupConfig

TOPIC, PLAIN, GROUP = "LiteT", "Plain", "LiteG"
BODY = b"x" * 200
FRAMES, WINDOW = 64, 512
TURN = 100_000
WARM_UP = 20_000
MIB = 1 << 20
KEY, NAME = "K" * 32, "N" * 8
SUCCESS = b'"code":0,'


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    sizes = {"topics": 1_000_000, "messages": 5, "clients": 100, "subscribed": 100_000, "received": 2_000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lite-topics-") as directory:
        root = Path(directory)
        with running(root, "async") as cluster:
            _create(cluster)
            _send(cluster, options.topics, options.topics * options.messages)
            stop_broker(cluster)
        _sweep(root / "broker-a-0")
        with running(root, "async") as cluster:
            pid = cluster.process.pid
            print(
                f"start again: {cluster.start_s:.1f} s, {cpu_seconds(pid):.1f} s of CPU, then "
                f"{anonymous_bytes(pid) / MIB:,.0f} MiB RssAnon in all",
                flush=True,
            )
            asyncio.run(_receive(cluster, options))


def _create(cluster: BenchCluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_topic(PLAIN, queues=8)
        admin.create_topic(TOPIC, queues=8, attributes={"message.type": "LITE"})
        admin.put_group(SubscriptionGroupConfig(GROUP, attributes={"+lite.bind.topic": TOPIC}))


def _frame(topic: str, properties: str) -> bytes:
    ext = {
        "a": "PG", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000123", "h": "0",
        "i": f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02{properties}", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, BODY, opaque=7, language="JAVA")
    frame = encode_command(command).replace(b"%", b"%%")
    return frame.replace(KEY.encode(), b"%032X").replace(NAME.encode(), b"%08d")


PLAIN_FRAME = _frame(PLAIN, "TAGS\x01a\x02session\x01NNNNNNNN\x02")
LITE_FRAME = _frame(TOPIC, "__LITE_TOPIC\x01session-NNNNNNNN\x02")


def _send(cluster: BenchCluster, topics: int, messages: int) -> None:
    """Send all lite messages, with plain ones in turns."""
    pid = cluster.process.pid
    with Admin(cluster.nameservers) as admin:
        (address, *_) = admin.route(TOPIC).addresses["broker-a"].values()
    with RawPeer(address) as peer:
        for frame in (PLAIN_FRAME, LITE_FRAME):
            _exchange(peer, frame, pid, range(WARM_UP), 10)
        _exchange(peer, PLAIN_FRAME, pid, range(TURN), topics)
        idle = anonymous_bytes(pid)
        rates, costs = [], []
        for first in range(0, messages, TURN):
            numbers = range(first, min(first + TURN, messages))
            plain_s, plain_cpu_s = _exchange(peer, PLAIN_FRAME, pid, numbers, topics)
            lite_s, lite_cpu_s = _exchange(peer, LITE_FRAME, pid, numbers, topics)
            rates.append(plain_s / lite_s)
            costs.append((plain_cpu_s / len(numbers) * 1e6, lite_cpu_s / len(numbers) * 1e6))
    plain, lite = (statistics.median(each) for each in zip(*costs, strict=True))
    ratio = statistics.median(plain / lite for plain, lite in costs)
    print(
        f"sends of lite messages / plain ones, medians of {len(rates)} turns: {statistics.median(rates):.2f} "
        f"by rate, {ratio:.2f} by CPU of the broker ({lite:.2f} and {plain:.2f} us)",
        flush=True,
    )
    memory = (anonymous_bytes(pid) - idle) / MIB
    print(f"{topics:,} lite topics, {messages:,} messages: {memory:,.0f} MiB RssAnon above idle", flush=True)


def _exchange(peer: RawPeer, frame: bytes, pid: int, numbers: range, topics: int) -> tuple[float, float]:
    """Send messages and read the responses; return the seconds, and those of the broker's CPU."""
    requests = [b"".join(each) for each in _blocks(frame % (number, number % topics) for number in numbers)]
    began, cpu = time.perf_counter(), cpu_seconds(pid)
    unread, received, sent = b"", 0, 0
    blocks = iter(requests)
    while received < len(numbers):
        while sent < len(numbers) and sent - received < WINDOW:
            peer.socket.sendall(next(blocks))
            sent += FRAMES
        unread += peer.socket.recv(1 << 18)
        received += unread.count(SUCCESS)
        unread = unread[unread.rfind(SUCCESS) + 1 :]
    return time.perf_counter() - began, cpu_seconds(pid) - cpu


def _blocks(frames: Iterator[bytes]) -> Iterator[tuple[bytes, ...]]:
    while block := tuple(itertools.islice(frames, FRAMES)):
        yield block


def _sweep(store: Path) -> None:
    """Measure the CPU time that one step of the expiry takes of the event loop."""
    saved = read_state(store / SINKS / LITE)
    index = LiteIndex(store)
    index.load(store, saved.store_id, 0)
    gc.collect()  # as a broker does when it has started
    times_ms: list[float] = []
    for limit_s in (1, time.time() + 60):  # nothing has expired, everything has
        expired = index.expired({TOPIC: int(limit_s * 1000)})
        while True:
            began = time.thread_time()
            keys = list(itertools.islice(expired, DROPPED_MAX))
            for key in keys:
                index.drop(key)
            times_ms.append((time.thread_time() - began) * 1e3)
            if not keys:
                break
    first, *steps = times_ms
    print(
        f"CPU of the expiry on the loop: sweep {first:.1f} ms, steps of {DROPPED_MAX} lite topics: "
        f"median {statistics.median(steps):.1f} ms, longest {max(steps):.1f} ms",
        flush=True,
    )


async def _receive(cluster: BenchCluster, options: argparse.Namespace) -> None:
    """Let clients subscribe lite topics, and measure how long a message to one of them takes."""
    nameservers = cluster.nameservers
    sent: dict[str, float] = {}
    times_ms: list[float] = []

    async def consume(number: int, consumer: LiteConsumer) -> None:
        names = [f"client-{number}-{each}" for each in range(options.subscribed // options.clients)]
        await consumer.subscribe(*names)
        ready.release()
        while True:
            for message in await consumer.receive():
                if (began := sent.pop(message.lite_topic or "", None)) is not None:
                    times_ms.append((time.perf_counter() - began) * 1e3)
                await consumer.ack(message)

    ready = asyncio.Semaphore(0)
    async with Producer(nameservers) as producer, asyncio.TaskGroup() as tasks:
        began = time.perf_counter()
        consumers = [LiteConsumer(nameservers, GROUP, TOPIC) for _ in range(options.clients)]
        for consumer in consumers:
            await consumer.start()
        running_tasks = [tasks.create_task(consume(*each)) for each in enumerate(consumers)]
        for _ in consumers:
            await ready.acquire()
        print(f"{options.subscribed:,} subscriptions took {time.perf_counter() - began:.1f} s", flush=True)
        await asyncio.sleep(2)
        choose = random.Random(1)
        for number in range(options.received):
            client, each = number % options.clients, choose.randrange(options.subscribed // options.clients)
            name = f"client-{client}-{each}"
            sent[name] = time.perf_counter()
            await producer.send(TOPIC, BODY, lite_topic=name)
            await asyncio.sleep(0.005)
        await asyncio.sleep(2)
        for task in running_tasks:
            task.cancel()
    ordered = sorted(times_ms)
    print(
        f"received {len(ordered):,} of {options.received:,} messages, sent one at a time: "
        f"p50 {percentile(ordered, 0.5):.1f} ms, p99 {percentile(ordered, 0.99):.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
