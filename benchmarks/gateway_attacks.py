"""Memory of a gateway, and times of a good client's sends, while others attack it.

    uv run python -m benchmarks.gateway_attacks [--attack decode_1] [--seconds 10]

A process is the gateway and its broker, a second one the attackers, which repeat their requests without pause
from several connections, and this one the good client, which sends messages of three sizes at the same time.
The first line of each attack is measured just before it, in the same processes: on a busy machine only the
difference says something. Memory is the anonymous one (RssAnon) above that before the attack.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
from h2.exceptions import ProtocolError

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.service import SERVICE
from benchmarks.internals.options import bench_process
from benchmarks.processes import anonymous_bytes
from cluster.lab.bench.result import percentile
from tests.actors.gateway.attacks import CONNECTIONS, Attacker
from tests.actors.gateway.gateways import CLIENT_ID, message

MB: Final = 1024 * 1024
SIZES: Final = (200, 30_000, 1_000_000)
PAUSE_S: Final = 0.005
SAMPLE_S: Final = 0.1
WARM_S: Final = 3
RELEASED_MB: Final = 64
RELEASED_WITHIN_S: Final = 30
ATTACKS: Final = {each.__name__: each for each in CONNECTIONS}


class Sender:
    """Sends messages of one size until it is cancelled, and notes how long each took."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken_ms: list[float] = []
        self.failed = 0

    async def run(self, address: str) -> None:
        """Send over an own connection."""
        request = rpc.SendMessageRequest(messages=[message(body=bytes(self.size))])
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(
                f"{SERVICE}SendMessage",
                rpc.SendMessageRequest.SerializeToString,
                rpc.SendMessageResponse.FromString,
            )
            while True:
                started = time.perf_counter()
                try:
                    response = await call(request, metadata=CLIENT_ID, timeout=30)
                    self.failed += response.status.code != Code.OK
                except grpc.aio.AioRpcError:
                    self.failed += 1
                self.taken_ms.append((time.perf_counter() - started) * 1e3)
                await asyncio.sleep(PAUSE_S)

    def figures(self) -> str:
        """Return the figures since the last time."""
        taken_ms, self.taken_ms = sorted(self.taken_ms), []
        failed, self.failed = self.failed, 0
        p50, p99 = (f"{percentile(taken_ms, each):.1f}" if taken_ms else "–" for each in (0.5, 0.99))
        return f"{self.size:,} B: {len(taken_ms)} sends, p50 {p50}, p99 {p99} ms, {failed} failed"


async def measure(name: str, seconds: float, address: str, pid: int) -> None:
    """Print the figures of one attack."""

    def used_mb() -> float:
        return anonymous_bytes(pid) / MB

    def report(when: str) -> None:
        print(f"{name} {when}: " + "; ".join(each.figures() for each in senders), flush=True)

    senders = [Sender(size) for size in SIZES]
    tasks = [asyncio.create_task(each.run(address)) for each in senders]
    await asyncio.sleep(WARM_S)
    for each in senders:
        each.figures()
    await asyncio.sleep(seconds)
    report("before")
    idle_mb, peak_mb = used_mb(), 0.0
    attackers = bench_process("benchmarks.gateway_attacks", "--attack", name, "--seconds", seconds, address)
    while attackers.poll() is None:
        peak_mb = max(peak_mb, used_mb() - idle_mb)
        await asyncio.sleep(SAMPLE_S)
    ended = time.monotonic()
    report("attacked")
    released_by = time.monotonic() + RELEASED_WITHIN_S
    while time.monotonic() < released_by and used_mb() - idle_mb > RELEASED_MB:  # noqa: ASYNC110
        await asyncio.sleep(SAMPLE_S)
    kept_mb, waited_s = used_mb() - idle_mb, time.monotonic() - ended
    print(f"{name}: at most {peak_mb:+.0f} MB; {kept_mb:+.0f} MB {waited_s:.1f} s after the attack")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def attack(fill: Callable[[Attacker], None], port: int, seconds: float) -> None:
    """Repeat an attack from several connections; runs in the process of the attackers."""
    until = time.monotonic() + seconds

    def repeat(_: int) -> None:
        while time.monotonic() < until:
            peer = Attacker(port)
            with peer.socket:
                try:
                    while time.monotonic() < until:
                        fill(peer)
                except (OSError, ProtocolError):  # the gateway has closed it
                    continue

    count = CONNECTIONS[fill]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(repeat, range(count)))


def main() -> None:
    """Parse the arguments, and measure or attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--attack", choices=ATTACKS)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.address:
        attack(ATTACKS[given.attack], int(given.address.rpartition(":")[2]), given.seconds)
        return
    for name in [given.attack] if given.attack else ATTACKS:
        with tempfile.TemporaryDirectory() as root:
            process = bench_process("tests.actors.gateway.gateway_process", root)
            try:
                assert process.stdout is not None
                asyncio.run(measure(name, given.seconds, process.stdout.readline().strip(), process.pid))
            finally:
                process.communicate("")


if __name__ == "__main__":
    main()
