"""Runs the demo: starts a cluster, sends and consumes flights, kills a broker, and prints the results."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cluster.client import Admin
from cluster.lab.demo.cluster_up import VICTIM, DemoCluster, DemoFailed, demo_cluster
from cluster.lab.demo.demo_report import Outcome, SparkCount, Timings
from cluster.lab.demo.flights import as_messages, delays_by_carrier, read_flights
from cluster.lab.demo.spark_count import count_by_spark
from cluster.lab.demo.stage import Stage, StageReport
from cluster.lab.demo.tally import FlightTally
from cluster.lab.demo.traffic import TOPIC, Feed, Follower

if TYPE_CHECKING:
    import pyarrow as pa

QUEUES_PER_BROKER = 4
KILL_AT_SHARE = 0.4
POLL_S = 0.05
STALL_TIMEOUT_S = 60.0


def run_demo(flights: int, console: Console, home: Path, *, web_console: bool = False) -> int:
    """Run the demo with the first `flights` flights and print the results.

    With `web_console`, the cluster has a web console, and continues after the results until Ctrl-C.

    Returns the exit code: 0 if all counts agree and no message is lost or out of order, else 1.
    """
    with ExitStack() as running:
        with Stage(console) as stage:
            part = stage.add_task("reading the flights", total=None)
            frame = read_flights(flights)
            csv, messages = delays_by_carrier(frame), as_messages(frame)
            stage.finish(part)
            part = stage.add_task("starting the cluster", total=None)
            report = StageReport(stage, part)
            cluster = running.enter_context(demo_cluster(home, report, web_console=web_console))
            address = f", console at {cluster.console_address()}" if web_console else ""
            stage.finish(part, f"cluster: nameserver, two brokers, rebalancer{address} on Ray")
            tally = FlightTally()
            spark = running.enter_context(_SparkStart(stage))
            timings = _Delivery(stage, cluster, messages, tally, spark.begin).run()
            outcome = Outcome(csv, tally.judge(flights), spark.count(cluster), timings)
        console.print(outcome.carriers_table())
        console.print(outcome.summary_table())
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


class _Delivery:
    """Sends and consumes the flights, and kills a broker while the producer is sending."""

    def __init__(
        self,
        stage: Stage,
        cluster: DemoCluster,
        messages: pa.Table,
        tally: FlightTally,
        on_restarted: Callable[[], None],
    ) -> None:
        """`on_restarted` is called when the killed broker serves again."""
        self._stage = stage
        self._on_restarted = on_restarted
        self._cluster = cluster
        self._count = messages.num_rows
        self._tally = tally
        self._sending = stage.add_task("sending", total=self._count)
        self._following = stage.add_task("consuming", total=self._count)
        with Admin(list(cluster.nameservers)) as admin:
            admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
        self._started_s = time.perf_counter()
        self._followers = [Follower(number, cluster.nameservers, tally) for number in (1, 2)]
        self._feed = Feed(cluster.nameservers, messages)

    def run(self) -> Timings:
        """Wait until all flights are sent and the consumers have received them; return the durations.

        Raises DemoFailed if sending fails or the killed broker does not restart.
        """
        outage_s = self._kill_broker()
        self._on_restarted()
        while self._feed.is_running:
            self._show()
        if self._feed.error is not None:
            raise DemoFailed(f"sending failed: {self._feed.error}") from self._feed.error
        self._stage.finish(self._sending, f"sent in {self._feed.seconds:.1f} s")
        self._await_consumers()
        followed_s = time.perf_counter() - self._started_s
        self._show()
        shares = " and ".join(f"{each.deliveries:,}" for each in self._followers)
        self._stage.finish(self._following, f"two consumers received {shares}")
        for follower in self._followers:
            follower.close()
        return Timings(self._feed.seconds, followed_s, outage_s)

    def _kill_broker(self) -> float:
        part = self._stage.add_task(f"{VICTIM}: serving", total=None)
        while self._feed.is_running and self._feed.acknowledged < KILL_AT_SHARE * self._count:
            self._show()
        pid = self._cluster.kill_broker()
        self._stage.update(part, description=f"{VICTIM}: process {pid} killed; Ray restarts it")
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
        queues = " + ".join(str(each.queues) for each in self._followers)
        text = f"consuming with two members, {queues} queues"
        self._stage.update(self._sending, completed=self._feed.acknowledged)
        self._stage.update(self._following, completed=self._tally.distinct, description=text)
        time.sleep(POLL_S)


class _SparkStart(ExitStack):
    """A Spark session that starts in a thread while the consumers receive; closed after the count."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def begin(self) -> None:
        """Start the session, which takes 10 s."""
        from jobs import raydp_session

        self._part = self._stage.add_task("Spark: starting on Ray (RayDP)", total=None)
        threads = ThreadPoolExecutor(1, "start-spark")
        self._session = threads.submit(self.enter_context, raydp_session("raymq-demo"))
        self.enter_context(threads)  # exits first, so the session is complete when it is closed

    def count(self, cluster: DemoCluster) -> SparkCount:
        """Wait for the session, and count the flights with it."""
        spark = self._session.result()
        self._stage.update(self._part, completed=0, description="Spark: aggregating the topic")
        found = count_by_spark(
            spark,
            cluster.nameservers,
            lambda done, total: self._stage.update(self._part, completed=done, total=total),
        )
        self.close()
        self._stage.finish(self._part, f"Spark: aggregated in {found.seconds:.1f} s")
        return found
