"""Writers of a table that are killed or fail at any point: each acknowledged message is in the table once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Set
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.client import (
    Admin,
    ClientConfig,
    ClientError,
    LocalTransactionState,
    Message,
    Producer,
    ProducerConfig,
    TransactionProducer,
)
from jobs.job_errors import JobError
from jobs.lake.lake_table import LakeTable
from jobs.lake.upkeep import compact, remove_orphans
from jobs.lake.write_rows import DayFiles
from jobs.lake_service.lake_rounds import FAILURES
from jobs.reading.describe import describe_topic
from tests.eventually import LIMIT_S, TIME_SCALE, eventually
from tests.faults.raft.processes import Processes
from tests.faults.standalone_process import StandaloneProcess
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake import faulty_writer
from tests.jobs.lake.faulty_writer import (
    FAULTS,
    KILLS,
    TOPIC,
    Killed,
    be_killed,
    inject,
    open_table,
    run_round,
)

pytestmark = [pytest.mark.faults, pytest.mark.slow]
LIMIT_MS = int(1000 * LIMIT_S)
MOMENTS = int(os.environ.get("RAYMQ_LAKE_KILLS", "50"))
STORE = {
    "commit_log_file_bytes": 65_536,
    "file_reserved_time_h": 0,
    "delete_when_h": str((time.localtime().tm_hour + 12) % 24),  # only when it is requested
}
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload([faulty_writer.__name__])
T = TypeVar("T")


def assert_each_message_once(
    table: LakeTable, nameservers: str, acknowledged: set[bytes], rolled_back: Set[bytes] = frozenset()
) -> int:
    """Check the rows of the table against the queues and the acknowledged messages; return their number."""
    table.refresh()
    rows = table.iceberg.scan(selected_fields=("broker", "queue", "offset", "body")).to_arrow().to_pylist()
    places = Counter((row["broker"], row["queue"], row["offset"]) for row in rows)
    gaps = {
        (gap.broker, gap.queue, offset) for gap in table.state().gaps for offset in range(gap.begin, gap.end)
    }
    stored = {
        (*each.queue[1:], offset)
        for each in describe_topic(nameservers, TOPIC)
        for offset in range(each.max_offset)
    }
    assert not [place for place, count in places.items() if count > 1]
    assert not places.keys() & gaps
    assert places.keys() | gaps == stored
    bodies = {row["body"] for row in rows}
    assert not rolled_back & bodies
    missing = acknowledged - bodies
    assert len(missing) <= len(gaps)
    return len(rows)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    with Admin(running.cluster.nameserver_address) as admin:
        admin.create_topic(TOPIC, queues=2)
    yield running.cluster.nameserver_address
    running.stop()


def full(files: DayFiles, rows: object) -> None:
    raise OSError(28, "No space left on device")


def meet(nameservers: str, table: LakeTable, warehouse: Path, point: str) -> None:
    """Run a round, or a compaction, that ends at a point or meets its fault."""
    with pytest.MonkeyPatch.context() as patch, suppress(Killed, JobError, OSError):
        if point == "locked catalog":
            with sqlite3.connect(warehouse / "catalog.db") as lock:
                lock.execute("BEGIN EXCLUSIVE")
                try:
                    run_round(nameservers, table)
                finally:
                    lock.rollback()
        elif point == "full disk":
            patch.setattr(DayFiles, "write", full)
            run_round(nameservers, table)
        else:
            inject(patch, point, be_killed)
            if point == "in compaction":
                compact(table, files_min=2)
            else:
                run_round(nameservers, table)


@settings(max_examples=3, deadline=None)
@given(st.permutations([*KILLS, *FAULTS]), st.randoms(use_true_random=False))
def test_writer_that_ends_at_any_point_adds_each_message_once(
    cluster: str, tmp_path_factory: pytest.TempPathFactory, points: list[str], chance: random.Random
) -> None:
    warehouse = tmp_path_factory.mktemp("warehouse")
    table = open_table(warehouse)
    acknowledged: set[bytes] = set()
    with Producer(cluster) as producer:
        for point in points:
            for _ in range(chance.randrange(1, 12)):
                body = os.urandom(8)
                producer.send(TOPIC, body)
                acknowledged.add(body)
            meet(cluster, table if chance.random() < 0.5 else open_table(warehouse), warehouse, point)
    assert run_round(cluster, table) == 0
    assert assert_each_message_once(table, cluster, acknowledged) >= len(acknowledged)
    remove_orphans(table, now=datetime.now(UTC) + timedelta(days=2))
    assert_each_message_once(table, cluster, acknowledged)


class Sender:
    """Sends messages, a part of them in transactions of which every third is rolled back."""

    def __init__(self, nameservers: str) -> None:
        config = ProducerConfig(nameservers=nameservers, group="lake-load", delivery_timeout_ms=LIMIT_MS)
        self._producer = TransactionProducer(
            check_listener=lambda message: LocalTransactionState.ROLLBACK, config=config
        )
        self.acknowledged: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self._number = 0

    def __enter__(self) -> Sender:
        self._producer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._producer.__exit__(*error)  # type: ignore[arg-type]

    def send(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            body = b"%08d" % self._number + b"x" * 300
            with suppress(ClientError):  # the outcome is unknown: it may be stored
                if self._number % 4:
                    self._producer.send(TOPIC, body)
                    self.acknowledged.add(body)
                    continue
                state = LocalTransactionState.COMMIT
                if self._number % 3 == 0:
                    state = LocalTransactionState.ROLLBACK
                    self.rolled_back.add(body)
                self._producer.send_in_transaction(Message(TOPIC, body), lambda _, end=state: end)


class OneBroker:
    """A broker in a process of its own."""

    def __init__(self, root: Path) -> None:
        options = [f"--store={name}={value}" for name, value in STORE.items()]
        self._process = StandaloneProcess(root, options)
        self.nameserver = self._process.nameserver

    def fail(self, _: Sender) -> None:
        """Kill the broker, and start it again."""
        self._process.kill()
        self._process.start()

    def stop(self) -> None:
        self._process.stop()


class RaftGroup:
    """A Raft group of three brokers, each in a process of its own."""

    def __init__(self, root: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._group = self._run(Processes(root, **STORE).__aenter__())
        self.nameserver = self._group.nameserver
        self._run(self._group.leader([0, 1, 2]))

    def _run(self, story: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(2 * LIMIT_S)

    def fail(self, sender: Sender) -> None:
        """Kill the leader, send to the next one, and start the first again."""
        leader = self._run(self._group.leader([0, 1, 2]))
        self._run(self._group.kill(leader))
        self._run(self._group.leader([each for each in range(3) if each != leader]))
        sender.send(20)
        self._run(self._group.start(leader))

    def stop(self) -> None:
        self._run(self._group.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)


def start_writer(nameservers: str, warehouse: Path, point: str) -> BaseProcess:
    """Start a writer by a fork of a process that has its modules, so that a moment costs no imports."""
    ready, of_writer = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=faulty_writer.main, args=(nameservers, warehouse, point, of_writer))
    process.start()
    of_writer.close()
    with ready:
        assert ready.poll(LIMIT_S), "the writer does not start"
        ready.recv()
    return process


def meet_moment(
    broker: OneBroker | RaftGroup, sender: Sender, warehouse: Path, point: str, chance: random.Random
) -> None:
    """Run a writer that ends at a point, or at random while its environment fails."""
    writer = start_writer(broker.nameserver, warehouse, point)
    try:
        sender.send(chance.randrange(5, 60))
        if point == "locked catalog":
            with sqlite3.connect(warehouse / "catalog.db", timeout=LIMIT_S) as lock:
                lock.execute("BEGIN EXCLUSIVE")
                threading.Event().wait(chance.random())
                lock.rollback()
        if point == "killed broker":
            broker.fail(sender)
        if chance.random() < 0.2:
            with suppress(ClientError), Admin(broker.nameserver) as admin:
                admin.clean_broker("broker-a", "expired-files")
        writer.join(LIMIT_S if point in KILLS else chance.random())
    finally:
        writer.kill()
        writer.join(LIMIT_S)
    assert writer.exitcode == -signal.SIGKILL, f"the writer has failed at: {point}"


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def is_finished(nameservers: str, table: LakeTable) -> bool:
    """Run a round. Return True if the table has all messages."""
    try:
        return run_round(nameservers, table) == 0
    except FAILURES:
        return False


@pytest.mark.extended
@pytest.mark.timeout(TIME_SCALE * (300 + 60 * MOMENTS))
@pytest.mark.parametrize("brokers", [OneBroker, RaftGroup])
def test_processes_killed_at_random_moments_add_each_message_once(
    tmp_path: Path, brokers: type[OneBroker | RaftGroup]
) -> None:
    """Real processes: the writer is killed at points and at random, the broker or the leader now and then.

    Meanwhile the catalog is locked, the disk is full, responses are lost, and retention deletes log files.
    """
    seed = int(os.environ.get("RAYMQ_STORM_SEED", random.randrange(1 << 16)))
    show(f"{brokers.__name__}, RAYMQ_STORM_SEED={seed}")
    chance = random.Random(seed)
    broker, warehouse = brokers(tmp_path / "stores"), tmp_path / "lake"
    try:
        with Admin(config=ClientConfig(broker.nameserver, request_timeout_ms=LIMIT_MS)) as admin:
            admin.create_topic(TOPIC, queues=3)
        table = open_table(warehouse)
        with Sender(broker.nameserver) as sender:
            for moment in range(MOMENTS):
                point = chance.choice([*KILLS, *FAULTS, "at random", "at random", "killed broker"])
                begin_s = time.monotonic()
                meet_moment(broker, sender, warehouse, point, chance)
                sent = len(sender.acknowledged)
                show(f"{moment}: {point}, {time.monotonic() - begin_s:.1f} s, {sent} acknowledged")
        eventually(lambda: is_finished(broker.nameserver, table), "a round")
        rows = assert_each_message_once(table, broker.nameserver, sender.acknowledged, sender.rolled_back)
        lost = sum(each.end - each.begin for each in table.state().gaps)
        show(f"{MOMENTS} moments, {sent} acknowledged sends, {rows} rows, {lost} in gaps")
        assert rows > MOMENTS
    finally:
        broker.stop()
