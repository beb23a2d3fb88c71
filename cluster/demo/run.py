"""Runs the demo: starts a cluster, sends and consumes flights, kills a broker, and prints the results."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.client import Admin
from cluster.demo.cluster_up import VICTIM, DemoCluster, DemoFailed, demo_cluster
from cluster.demo.demo_report import SparkCount, Timings, carriers_table, disagreements, summary_table
from cluster.demo.feed import Feed
from cluster.demo.flights import Delays, as_messages, delays_by_carrier, read_flights
from cluster.demo.follow import MEMBERS, Follower
from cluster.demo.spark_count import count_by_spark
from cluster.demo.stage import Stage, StageReport
from cluster.demo.tally import Tally, Verdict

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "flights"
QUEUES_PER_BROKER = 4
KILL_AT_SHARE = 0.4
POLL_S = 0.05
STALL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """Result of the demo: delays by airline as computed from the CSV, the consumers and Spark, and times."""

    csv: dict[str, Delays]
    verdict: Verdict
    spark: SparkCount
    timings: Timings

    @property
    def is_success(self) -> bool:
        """Return True if no message is lost or out of order and all three sources agree."""
        verdict = self.verdict
        faults = verdict.lost + verdict.disordered + verdict.scattered
        return not faults and not disagreements(self.csv, verdict.delays, self.spark.delays)


def run_demo(flights: int, console: Console, home: Path, *, web_console: bool = False) -> int:
    """Run the demo with the first `flights` flights and print the results.

    With `web_console`, the cluster has a web console, and continues after the results until Ctrl-C.

    Returns the exit code: 0 if all counts agree and no message is lost or out of order, else 1.
    """
    stage = Stage(console)
    with ExitStack() as running:
        with stage.shown():
            csv, messages = _read(flights, stage)
            cluster = running.enter_context(_started(stage, home, web_console))
            outcome = _play(csv, messages, stage, cluster)
        console.print(carriers_table(outcome.csv, outcome.verdict.delays, outcome.spark.delays))
        console.print(summary_table(flights, outcome.verdict, outcome.spark, outcome.timings))
        if outcome.is_success:
            console.print("[green]All counts agree; nothing is lost or out of order.[/]")
        else:
            console.print("[red]The counts differ, or messages are lost or out of order.[/]")
        if web_console:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark has replaced it
            with suppress(KeyboardInterrupt):
                console.print("The cluster and its console run until Ctrl-C.")
                signal.pause()
    return 0 if outcome.is_success else 1


def _read(flights: int, stage: Stage) -> tuple[dict[str, Delays], pa.Table]:
    part = stage.begin("reading the flights")
    frame = read_flights(flights)
    csv, messages = delays_by_carrier(frame), as_messages(frame)
    stage.finish(part)
    return csv, messages


@contextmanager
def _started(stage: Stage, home: Path, web_console: bool) -> Iterator[DemoCluster]:
    part = stage.begin("starting the cluster")
    report = StageReport(stage, part, "starting the cluster")
    with demo_cluster(home, report, web_console=web_console) as cluster:
        console = f", console at {cluster.console_address()}" if web_console else ""
        stage.finish(part, f"cluster: nameserver, two brokers, rebalancer{console} on Ray")
        yield cluster


def _play(csv: dict[str, Delays], messages: pa.Table, stage: Stage, cluster: DemoCluster) -> Outcome:
    with Admin(list(cluster.nameservers)) as admin:
        admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
    tally = Tally()
    timings = _Delivery(stage, cluster, messages, tally).run()
    return Outcome(csv, tally.judge(messages.num_rows), _count_by_spark(stage, cluster), timings)


class _Delivery:
    """Sends and consumes the flights, and kills a broker while the producer is sending."""

    def __init__(self, stage: Stage, cluster: DemoCluster, messages: pa.Table, tally: Tally) -> None:
        self._stage = stage
        self._cluster = cluster
        self._messages = messages
        self._tally = tally
        self._sending = stage.begin("sending", messages.num_rows)
        self._following = stage.begin("consuming", messages.num_rows)

    def run(self) -> Timings:
        """Send all flights, wait until the consumers have received them, and return the durations.

        Raises DemoFailed if sending fails or the killed broker does not restart.
        """
        nameservers = self._cluster.nameservers
        started = time.perf_counter()
        self._followers = [Follower(number + 1, nameservers, TOPIC, self._tally) for number in range(MEMBERS)]
        self._feed = Feed(nameservers, TOPIC, self._messages)
        outage_s = self._kill_broker()
        while self._feed.is_running:
            self._show()
        if self._feed.error is not None:
            raise DemoFailed(f"sending failed: {self._feed.error}") from self._feed.error
        self._stage.finish(self._sending, f"sent in {self._feed.seconds:.1f} s")
        self._await_consumers()
        followed_s = time.perf_counter() - started
        self._show()
        shares = " and ".join(f"{each.deliveries:,}" for each in self._followers)
        self._stage.finish(self._following, f"two consumers received {shares}")
        for follower in self._followers:
            follower.close()
        return Timings(self._feed.seconds, followed_s, outage_s)

    def _kill_broker(self) -> float:
        part = self._stage.begin(f"{VICTIM}: serving")
        while self._feed.is_running and self._feed.acknowledged < KILL_AT_SHARE * self._messages.num_rows:
            self._show()
        pid = self._cluster.kill_broker()
        self._stage.show(part, text=f"{VICTIM}: process {pid} killed; Ray restarts it")
        outage_s = self._cluster.wait_for_broker(pid, self._show)
        self._stage.finish(part, f"{VICTIM}: killed, serving again after {outage_s:.1f} s")
        return outage_s

    def _await_consumers(self) -> None:
        """Wait until every stored message is delivered, or until no message arrived for STALL_TIMEOUT_S."""
        with Admin(list(self._cluster.nameservers)) as admin:
            stored = sum(admin.end_offsets(TOPIC).values())
        seen, seen_s = -1, time.monotonic()
        while self._tally.places < stored and time.monotonic() - seen_s < STALL_TIMEOUT_S:
            self._show()
            if self._tally.places != seen:
                seen, seen_s = self._tally.places, time.monotonic()

    def _show(self) -> None:
        self._stage.show(self._sending, self._feed.acknowledged)
        queues = " + ".join(str(each.queues) for each in self._followers)
        self._stage.show(
            self._following, self._tally.distinct, text=f"consuming with two members, {queues} queues"
        )
        time.sleep(POLL_S)


def _count_by_spark(stage: Stage, cluster: DemoCluster) -> SparkCount:
    from jobs import raydp_session

    part = stage.begin("Spark: starting on Ray (RayDP)")
    with raydp_session("raymq-demo") as spark:
        stage.show(part, 0, text="Spark: aggregating the topic")
        count = count_by_spark(
            spark, TOPIC, cluster.nameservers, lambda done, total: stage.show(part, done, total=total)
        )
        stage.finish(part, f"Spark: aggregated in {count.seconds:.1f} s")
    return count
