"""Writers of a table that are killed or fail at any point: each acknowledged message is in the table once."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.client import (
    Admin,
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
from jobs.reading.describe import describe_topic
from tests.eventually import LIMIT_S
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
REPO = Path(__file__).parent.parent.parent.parent
MOMENTS = int(os.environ.get("RAYMQ_LAKE_KILLS", "50"))


def assert_each_message_once(table: LakeTable, nameservers: str, acknowledged: set[bytes]) -> int:
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
    missing = acknowledged - {row["body"] for row in rows}
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
        config = ProducerConfig(nameservers=nameservers, group="lake-load", delivery_timeout_ms=60_000)
        self._producer = TransactionProducer(
            check_listener=lambda message: LocalTransactionState.ROLLBACK, config=config
        )
        self.acknowledged: set[bytes] = set()
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
                state = LocalTransactionState.COMMIT if self._number % 3 else LocalTransactionState.ROLLBACK
                self._producer.send_in_transaction(Message(TOPIC, body), lambda _, end=state: end)


def start_writer(nameservers: str, warehouse: Path, point: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", faulty_writer.__name__, nameservers, str(warehouse), point]
    process = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"READY\n"
    return process


@pytest.mark.extended
@pytest.mark.timeout(3_600)
def test_processes_killed_at_random_moments_add_each_message_once(tmp_path: Path) -> None:
    """Real processes: the writer is killed at points and at random, the broker now and then.

    Meanwhile the catalog is locked, the disk is full, responses are lost, and retention deletes log files.
    """
    seed = int(os.environ.get("RAYMQ_STORM_SEED", random.randrange(1 << 16)))
    sys.stdout.write(f"RAYMQ_STORM_SEED={seed}\n")
    chance = random.Random(seed)
    far_hour = (time.localtime().tm_hour + 12) % 24
    given = ("commit_log_file_bytes=65536", "file_reserved_time_h=0", f"delete_when_h={far_hour}")
    broker = StandaloneProcess(tmp_path / "stores", [f"--store={each}" for each in given])
    warehouse = tmp_path / "lake"
    try:
        with Admin(broker.nameserver) as admin:
            admin.create_topic(TOPIC, queues=3)
        table = open_table(warehouse)
        with Sender(broker.nameserver) as sender:
            for moment in range(MOMENTS):
                point = chance.choice([*KILLS, *FAULTS, "at random", "at random", "killed broker"])
                writer = start_writer(broker.nameserver, warehouse, point)
                sender.send(chance.randrange(5, 60))
                if point == "locked catalog":
                    with sqlite3.connect(warehouse / "catalog.db", timeout=LIMIT_S) as lock:
                        lock.execute("BEGIN EXCLUSIVE")
                        threading.Event().wait(chance.random())
                        lock.rollback()
                if point == "killed broker":
                    broker.kill()
                    broker.start()
                if moment % 7 == 6:
                    with suppress(ClientError):
                        admin_clean(broker.nameserver)
                with suppress(subprocess.TimeoutExpired):
                    writer.wait(chance.random() * 2 if point not in KILLS else 10)
                writer.kill()
                writer.wait(LIMIT_S)
                assert writer.stdout is not None
                writer.stdout.close()
        while run_round(broker.nameserver, table):
            pass
        rows = assert_each_message_once(table, broker.nameserver, sender.acknowledged)
        lost = sum(each.end - each.begin for each in table.state().gaps)
        sent = len(sender.acknowledged)
        sys.stdout.write(f"{MOMENTS} moments, {sent} acknowledged sends, {rows} rows, {lost} in gaps\n")
        assert rows > MOMENTS
    finally:
        broker.stop()


def admin_clean(nameservers: str) -> None:
    with Admin(nameservers) as admin:
        admin.clean_broker("broker-a", "expired-files")
