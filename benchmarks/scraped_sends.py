"""Broker CPU time of one scrape while the broker takes sends, and the share of its messages that this costs.

    uv run python -m benchmarks.scraped_sends [--queues 1600] [--groups 200] [--scrapes 40]

This process is the broker, filled as in `benchmarks.metrics_page`. A second process sends pipelined requests
without pause and reads the CPU time of the broker. It compares each scrape with a short time just before it,
because the CPU time of a message varies more from second to second than a scrape takes.

The ratio is that of the messages per second of a broker whose core is full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
import urllib.request
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import uvloop

from actors.wire.codes import RequestCode
from actors.wire.hot_headers import SendMessageHeader
from benchmarks.metrics_page import serving
from benchmarks.raw_peer import RawPeer

BATCH = 64
BODY_BYTES = 128
KEY = "UNIQ_KEY\x01AC11000100002A9F4E2C7B8D0001\x02"
SCRAPE_INTERVAL_S = 1.1
WINDOW_S = 0.05
LENGTH_BYTES = 4


class Window(NamedTuple):
    """Messages that were sent in a short time, and the CPU time of the broker."""

    messages: int
    cpu_s: float


def frames(peer: RawPeer) -> bytes:
    """Return BATCH send requests to the queues of one topic."""
    return b"".join(
        peer.request(
            RequestCode.SEND_MESSAGE_V2,
            SendMessageHeader("bench", "topic-0", number % 4, KEY).to_ext(),
            os.urandom(BODY_BYTES),
        )
        for number in range(BATCH)
    )


def exchange(peer: RawPeer, requests: bytes) -> None:
    """Send a batch, and read as many responses; only their lengths are looked at."""
    peer.socket.sendall(requests)
    received, responses = bytearray(), 0
    while responses < BATCH:
        received += peer.socket.recv(1 << 16)
        begin = 0
        while len(received) - begin >= LENGTH_BYTES:
            end = begin + LENGTH_BYTES + int.from_bytes(received[begin : begin + LENGTH_BYTES])
            if end > len(received):
                break
            begin, responses = end, responses + 1
        del received[:begin]


def cpu_s() -> float:
    """Return the CPU time of all threads of the broker, this process's parent."""
    tasks = Path(f"/proc/{os.getppid()}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def read(url: str) -> None:
    """Scrape once."""
    with urllib.request.urlopen(url, timeout=30) as response:
        response.read()


def send(peer: RawPeer, requests: bytes, seconds: float, scraper: threading.Thread | None = None) -> Window:
    """Send batches for some time, and until `scraper` has finished."""
    before_s, messages, end_s = cpu_s(), 0, time.monotonic() + seconds
    while time.monotonic() < end_s or (scraper is not None and scraper.is_alive()):
        exchange(peer, requests)
        messages += BATCH
    return Window(messages, cpu_s() - before_s)


def generate(address: str, url: str, scrapes: int) -> list[tuple[float, float]]:
    """Return the CPU time per message and the further CPU time of each scrape; runs in the second process."""
    found = []
    with RawPeer(address) as peer:
        requests = frames(peer)
        for _ in range(scrapes):
            send(peer, requests, SCRAPE_INTERVAL_S)
            quiet = send(peer, requests, WINDOW_S)
            scraper = threading.Thread(target=read, args=(url,))
            scraper.start()
            scraped = send(peer, requests, WINDOW_S, scraper)
            of_message_s = quiet.cpu_s / quiet.messages
            found.append((of_message_s, scraped.cpu_s - scraped.messages * of_message_s))
    return found


async def serve(queues: int, groups: int, scrapes: int) -> list[tuple[float, float]]:
    """Run the broker until the second process has measured it."""
    async with serving(queues, groups) as broker:
        url = f"http://127.0.0.1:{broker.graph.metrics.port}/metrics"
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.scraped_sends", "--generate", broker.address, url,
            "--scrapes", str(scrapes),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await child.communicate()
    return [(of_message_s, of_scrape_s) for of_message_s, of_scrape_s in json.loads(output)]


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--queues", type=int, default=1_600)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--scrapes", type=int, default=40)
    parser.add_argument("--generate", nargs=2, metavar=("ADDRESS", "URL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.generate:
        address, url = given.generate
        print(json.dumps(generate(address, url, given.scrapes)))
        return
    found = uvloop.run(serve(given.queues, given.groups, given.scrapes))
    of_message_s, of_scrape_s = (fmean(each) for each in zip(*found, strict=True))
    print(f"{given.queues:,} queues, {given.groups} groups: {of_message_s * 1e6:.2f} µs of CPU per message,")
    print(f"{of_scrape_s * 1e3:.1f} ms per scrape. Sends while scraped each second ÷ without:")
    print(f"{1 - of_scrape_s:.3f}")


if __name__ == "__main__":
    main()
