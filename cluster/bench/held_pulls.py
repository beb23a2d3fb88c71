"""Many connections that hold pulls, as consumers do whose queues are empty; in a process of its own.

    python -m cluster.bench.held_pulls ADDRESS TOPIC CONNECTIONS PULLS SECONDS

opens them all and says OPEN; at a line on its standard input it sends PULLS pulls over each, one connection
after the other within SECONDS, and says HELD; a pull that is answered is sent again. It ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from actors.broker.broker_settings import BrokerSettings
from actors.broker.loop.wait_registry import suspend_ms
from actors.remoting.codes import RequestCode
from actors.remoting.command import PREFIX, RemotingCommand, encode_command
from actors.remoting.hot_headers import PullMessageHeader
from cluster.bench.sending import QUEUES

ASKED_MS = 15_000
"""What RocketMQ's consumers ask for (brokerSuspendMaxTimeMillis)."""
HELD_S = suspend_ms(ASKED_MS, BrokerSettings.model_fields["max_hold_ms"].default) / 1000
"""What our broker makes of it."""
SUSPEND_AND_SUBSCRIPTION = 0x2 | 0x4
OPENED_AT_ONCE = 200


class Consumer(asyncio.Protocol):
    """One connection."""

    def __init__(self, pull: bytes) -> None:
        self._pull = pull
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, pulls: int) -> None:
        """Send so many pulls."""
        assert self._transport is not None
        self._transport.write(self._pull * pulls)

    def data_received(self, data: bytes) -> None:
        """Answers: as many pulls are sent again."""
        data = self._data + data
        answers = at = 0
        while len(data) - at >= PREFIX.size:
            end = at + 4 + PREFIX.unpack_from(data, at)[0]
            if end > len(data):
                break
            at = end
            answers += 1
        self._data = data[at:]
        if answers:
            self.ask(answers)


def pull_at_the_end(topic: str, queue_id: int) -> bytes:
    """The frame of a pull of an empty queue, as a Java consumer sends it."""
    header = PullMessageHeader(
        "held",
        topic,
        queue_id,
        0,
        sys_flag=SUSPEND_AND_SUBSCRIPTION,
        suspend_timeout_millis=ASKED_MS,
        subscription="*",
        sub_version=1,
    )
    return encode_command(
        RemotingCommand(RequestCode.PULL_MESSAGE, header.to_ext(), opaque=1, language="JAVA")
    )


def _maker(consumer: Consumer) -> Callable[[], Consumer]:
    return lambda: consumer


async def hold(address: str, topic: str, connections: int, pulls: int, seconds: float) -> None:
    """Open, wait for a line, hold until the input ends."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    requests = [pull_at_the_end(topic, queue_id) for queue_id in range(QUEUES)]
    consumers: list[Consumer] = []
    for first in range(0, connections, OPENED_AT_ONCE):
        numbers = range(first, min(first + OPENED_AT_ONCE, connections))
        some = [Consumer(requests[number % QUEUES]) for number in numbers]
        await asyncio.gather(*(loop.create_connection(_maker(each), host, int(port)) for each in some))
        consumers += some
    print("OPEN", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    began_s = loop.time()
    for number, each in enumerate(consumers):
        each.ask(pulls)
        # Consumers have come at different times; all at once would be another thing to measure.
        await asyncio.sleep(began_s + number / connections * seconds - loop.time())
    print("HELD", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Run what the command line says."""
    address, topic, connections, pulls, seconds = sys.argv[1:]
    uvloop.run(hold(address, topic, int(connections), int(pulls), float(seconds)))


if __name__ == "__main__":
    main()
