"""Clients of a workload: the Java client of Apache RocketMQ, in a program that reports to this process.

`OmbClients.java` runs from its source with the jars of a RocketMQ release. It reads commands from its input,
one a line: `start` (begin to send), `rate MESSAGES_PER_S`, `pause`, `resume`. Each line of its output that
begins with `{` is a report of what happened since the last one (`ReportLine`); `probed` becomes true when
each subscription has received the first message of its topic.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydantic import BaseModel

from cluster.lab.bench.omb.figures import BUCKETS_PER_E, Period
from cluster.lab.bench.omb.rate import FIRST_RATE
from cluster.lab.bench.omb.workload import KEYS, PROBE_TIMEOUT_S, SENDS_IN_FLIGHT, Workload
from cluster.lab.bench.options import BenchFailed, Progress

PROGRAM = Path(__file__).with_name("OmbClients.java")
MAX_LINE_BYTES = 1024 * 1024
LAST_LINES = 20
START_TIMEOUT_S = 60.0 + PROBE_TIMEOUT_S
STOP_TIMEOUT_S = 15.0


class TimesReport(BaseModel):
    """Times of a report: counts by bucket of `Histogram`, sum and maximum in µs."""

    buckets: dict[int, int]
    sum_us: int
    max_us: int


class ReportLine(BaseModel):
    """Counts and times since the last report."""

    probed: bool
    sent: int
    errors: int
    received: int
    latencies: dict[str, TimesReport]


@asynccontextmanager
async def java_clients(
    workload: Workload,
    payloads: Sequence[bytes],
    nameservers: str,
    topics: Sequence[str],
    progress: Progress,
    jars: Path,
) -> AsyncIterator[JavaClients]:
    """Start the program with the jars in folder `jars`, and wait until its subscriptions have a message.

    Raises BenchFailed if there is no JDK or no client in `jars`, or if the program fails.
    """
    with tempfile.TemporaryDirectory(prefix="raymq-omb-") as home:
        process = await asyncio.create_subprocess_exec(
            *_command(workload, payloads, nameservers, topics, jars, Path(home)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=MAX_LINE_BYTES,
            start_new_session=True,  # an interrupt closes its input, which ends it
        )
        try:
            clients = JavaClients(process)
            progress("waiting for one message of each topic in each subscription")
            await clients.start()
            yield clients
        finally:
            await _stop(process)


def _command(
    workload: Workload,
    payloads: Sequence[bytes],
    nameservers: str,
    topics: Sequence[str],
    jars: Path,
    home: Path,
) -> list[str]:
    """Write the payloads below `home` and return the command of the program. Raises BenchFailed."""
    java = shutil.which("java")
    if java is None:
        raise BenchFailed("java is not on the PATH: install JDK 11 or later")
    if not any(jars.glob("rocketmq-client-*.jar")):
        remedy = "name the folder `lib` of a RocketMQ release with --client-jars"
        raise BenchFailed(f"{jars} has no rocketmq-client-*.jar: {remedy}")
    file = home / "payloads"
    file.write_bytes(b"".join(payloads))
    arguments: dict[str, object] = {
        "nameservers": nameservers,
        "topics": ",".join(topics),
        "payloads": file,
        "size": workload.messageSize,
        "keys": workload.keyDistributor,
        "keyCount": KEYS,
        "subscriptions": workload.subscriptionsPerTopic,
        "consumers": workload.consumerPerSubscription,
        "producers": workload.producersPerTopic,
        "inFlight": SENDS_IN_FLIGHT,
        "rate": workload.producerRate or FIRST_RATE,
        "bucketsPerE": BUCKETS_PER_E,
    }
    # The client writes its log below user.home.
    jvm = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", "-cp", f"{jars}/*")
    return [java, *jvm, str(PROGRAM), *(f"{key}={value}" for key, value in arguments.items())]


class JavaClients:
    """Producers and push consumers of the Java client; see `Clients`."""

    driver = "java"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.period = Period()
        self.sent = 0
        self.received = 0
        self._process = process
        self._others: deque[str] = deque(maxlen=LAST_LINES)

    async def start(self) -> None:
        """Wait for the probe. Raises BenchFailed."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await self._read_report():
                    pass
        except TimeoutError:
            raise BenchFailed(
                f"after {START_TIMEOUT_S:g} s not every subscription has received a message{self._output()}"
            ) from None

    async def send(self) -> None:
        """Let the producers send, and count until cancelled. Raises BenchFailed if the program ends."""
        self._write("start")
        while True:
            await self._read_report()

    def change_rate(self, rate: float) -> None:
        """Send `rate` messages/s from now on."""
        self._write(f"rate {rate}")

    async def pause(self) -> None:
        """Pause all consumers."""
        self._write("pause")

    async def resume(self) -> None:
        """Resume all consumers."""
        self._write("resume")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def _read_report(self) -> bool:
        """Count the next report; return True if the probe has succeeded. Raises BenchFailed at the end."""
        assert self._process.stdout is not None
        while True:
            line = await self._process.stdout.readline()
            if not line:
                code = await self._process.wait()
                raise BenchFailed(f"the Java program exited with code {code}{self._output()}")
            if line.startswith(b"{"):
                break
            self._others.append(line.decode(errors="replace").rstrip())
        report = ReportLine.model_validate_json(line)
        self.period.sent += report.sent
        self.period.errors += report.errors
        self.period.received += report.received
        for name, times in report.latencies.items():
            self.period.latencies[name].add_buckets(times.buckets, times.sum_us, times.max_us)
        self.sent += report.sent
        self.received += report.received
        return report.probed

    def _output(self) -> str:
        return "; its last output:\n" + "\n".join(self._others) if self._others else ""


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the program's input, which ends it; kill it if it does not end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
