"""Client process of the connections benchmark: many connections, each with pulls held by the broker.

    python -m benchmarks.internals.held_pulls ADDRESS TOPIC CONNECTIONS PULLS SECONDS

Opens all connections and prints OPEN. After a line on standard input, sends PULLS long-polling pulls over
each connection, spread over SECONDS, and prints HELD. Repeats each pull as soon as its response arrives, as
a consumer of an empty queue does. Exits at the end of standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.wait_registry import suspend_ms
from actors.wire.codes import RequestCode
from actors.wire.command import PREFIX, RemotingCommand, encode_command
from actors.wire.hot_headers import PullMessageHeader
from cluster.lab.bench.sending import QUEUES

REQUESTED_HOLD_MS = 15_000
"""Hold time that RocketMQ's consumers request (brokerSuspendMaxTimeMillis)."""
HELD_S = suspend_ms(REQUESTED_HOLD_MS, BrokerSettings.model_fields["max_hold_ms"].default) / 1000
"""Time for which the broker holds such a pull."""
SUSPEND_AND_SUBSCRIPTION = 0x2 | 0x4
CONCURRENT_CONNECTS = 200


class Consumer(asyncio.Protocol):
    """Connection that repeats its pull for each response."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport for `pull`."""
        self._transport = cast("asyncio.Transport", transport)

    def pull(self, count: int) -> None:
        """Send the pull request `count` times."""
        assert self._transport is not None
        self._transport.write(self._request * count)

    def data_received(self, data: bytes) -> None:
        """Count the complete responses in `data` and send as many new pulls."""
        data = self._data + data
        responses = at = 0
        while len(data) - at >= PREFIX.size:
            end = at + 4 + PREFIX.unpack_from(data, at)[0]
            if end > len(data):
                break
            at = end
            responses += 1
        self._data = data[at:]
        if responses:
            self.pull(responses)


def pull_at_the_end(topic: str, queue_id: int) -> bytes:
    """Return the frame of a long-polling pull from offset 0 of a queue, as a Java consumer sends it."""
    header = PullMessageHeader(
        "held",
        topic,
        queue_id,
        0,
        sys_flag=SUSPEND_AND_SUBSCRIPTION,
        suspend_timeout_millis=REQUESTED_HOLD_MS,
        subscription="*",
        sub_version=1,
    )
    return encode_command(
        RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext(), opaque=1, language="JAVA")
    )


def _factory(consumer: Consumer) -> Callable[[], Consumer]:
    return lambda: consumer


async def hold(address: str, topic: str, connections: int, pulls: int, seconds: float) -> None:
    """Run the process as the module describes; `address` is host:port."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    requests = [pull_at_the_end(topic, queue_id) for queue_id in range(QUEUES)]
    consumers: list[Consumer] = []
    for first in range(0, connections, CONCURRENT_CONNECTS):
        numbers = range(first, min(first + CONCURRENT_CONNECTS, connections))
        some = [Consumer(requests[number % QUEUES]) for number in numbers]
        await asyncio.gather(*(loop.create_connection(_factory(each), host, int(port)) for each in some))
        consumers += some
    print("OPEN", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began_s = loop.time()
    for number, each in enumerate(consumers):
        each.pull(pulls)
        # Real consumers start at different times: pulls that all expire together would be a different load.
        await asyncio.sleep(began_s + number / connections * seconds - loop.time())
    print("HELD", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Run with the arguments of the command line."""
    address, topic, connections, pulls, seconds = sys.argv[1:]
    uvloop.run(hold(address, topic, int(connections), int(pulls), float(seconds)))


if __name__ == "__main__":
    main()
