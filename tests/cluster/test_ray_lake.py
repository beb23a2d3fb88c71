"""A lake on Ray: rows are in the table once, whatever is killed; status, plan and hold of the log know it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.client import Admin, ClientError, Producer, ProducerConfig
from cluster.control.lake_rows import lake_rows
from cluster.control.session.ray_head import marked_processes, read_record
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeTable
from tests.background import Background
from tests.cluster.conftest import RayMQ
from tests.cluster.ray_helpers import ensure_up, kill_process, status_of, wait_for_restart
from tests.eventually import LIMIT_S, eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow]

TOPIC = "lake-orders"
LAKES = "lakes=[{topics: ['lake-*'], freshness_s: 0.5}]"
GROUP = "raymq-lake-0"


class Sending(Background):
    """Sends numbers one after another; a send that fails is repeated until it is acknowledged."""

    def __init__(self, nameservers: str) -> None:
        super().__init__()
        self._nameservers = nameservers
        self.places: set[tuple[str, int, int]] = set()

    def run(self) -> None:
        limit_ms = int(LIMIT_S * 1000)
        config = ProducerConfig(route_refresh_ms=1000, send_timeout_ms=limit_ms, delivery_timeout_ms=limit_ms)
        with Producer(self._nameservers, config=config) as producer:
            number = 0
            while not self.is_over.wait(0.005):
                try:
                    result = producer.send(TOPIC, b"%d" % number)
                except ClientError as error:
                    if not error.retriable:
                        raise
                    continue
                number += 1
                self.places.add((result.queue.broker_name, result.queue.queue_id, result.queue_offset))

    def more(self, count: int = 50) -> None:
        """Wait for further acknowledged messages."""
        wanted = len(self.places) + count
        eventually(lambda: len(self.places) >= wanted, "acknowledged sends")


def places_in(home: Path) -> Counter[tuple[str, int, int]]:
    """Return how often the table has each message."""
    table = LakeTable.find(open_catalog(LakeSettings(str(home / "lake"))), "raymq", TOPIC)
    if table is None:
        return Counter()
    rows = table.iceberg.scan(selected_fields=("broker", "queue", "offset")).to_arrow()
    return Counter(
        zip(*(rows.column(each).to_pylist() for each in ("broker", "queue", "offset")), strict=True)
    )


def up(raymq: RayMQ, *extra: str) -> str:
    done = raymq.run("up", *extra)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def waits_of(broker: str) -> Any:
    return status_of(broker)["spec"]["settings"].get("retention_waits_for")


def test_lake_has_each_message_once_whatever_is_killed(raymq: RayMQ) -> None:
    ensure_up(raymq)
    shown = raymq.run("up", "--dry-run", "--set", LAKES)
    assert "lake-0" in shown.stdout
    up(raymq, "--set", LAKES)
    assert waits_of("broker-a-0") == waits_of("broker-b-0") == [f"lake-*@{GROUP}"]
    nameservers = ";".join(raymq.nameservers)
    with Admin(nameservers) as admin:
        admin.create_topic(TOPIC, queues=2)
    with Sending(nameservers) as sending:
        sending.more()
        eventually(lambda: places_in(raymq.home), "rows in the table")
        for actor in ("lake-0", "broker-a-0", "lake-0"):
            pid = kill_process(actor)
            sending.more()
            wait_for_restart(actor, pid)
            sending.more()
    eventually(lambda: places_in(raymq.home).keys() >= sending.places, "every acknowledged message")
    found = places_in(raymq.home)
    assert set(found.values()) == {1}
    status = json.loads(raymq.run("status", "--set", LAKES).stdout)
    (lake,) = [each for each in status["actors"] if each["kind"] == "lake"]
    table = lake["details"]["tables"][TOPIC]
    [row] = [each for each in lake_rows("raymq") if each.topic == TOPIC]
    assert (row.lake, row.lost, row.failures, row.problem) == ("lake-0", 0, 0, "")
    assert (lake["state"], table["lost"], table["failures"]) == ("serving", 0, 0)
    eventually(lambda: status_of("lake-0")["details"]["tables"][TOPIC]["rows"] == found.total())

    def committed() -> int:
        with Admin(nameservers) as admin:
            return sum(offset or 0 for offset in admin.committed_offsets(GROUP, TOPIC).values())

    eventually(lambda: committed() == found.total(), "offsets of the group")
    assert "lake_round_committed" in raymq.run("logs", "lake-0", "--lines", "0").stdout
    up(raymq, "--prune")
    assert waits_of("broker-a-0") is None


def has_more_than(home: Path, seen: set[tuple[str, int, int]]) -> bool:
    return places_in(home).keys() > seen


def kill_executor(raymq: RayMQ) -> None:
    """Kill the process of Spark's executor, which is a parent of Python's workers."""
    record = read_record(raymq.home)
    assert record is not None

    def executors() -> list[psutil.Process]:
        found = []
        for each in marked_processes(record.mark):
            with suppress(psutil.Error):
                if "jobs.spark.daemon" in each.cmdline() and (parent := each.parent()):
                    found.append(parent)
        return [each for each in found if each.name() == "java"]

    eventually(executors, "an executor of Spark")[0].kill()


@pytest.mark.extended
def test_spark_writes_the_tables_of_a_lake_whose_executors_are_killed(raymq: RayMQ) -> None:
    ensure_up(raymq)
    up(raymq, "--set", LAKES.replace("0.5}", "0.5, engine: spark}"))
    nameservers = ";".join(raymq.nameservers)
    with Admin(nameservers) as admin:
        admin.create_topic(TOPIC, queues=2)
    before = places_in(raymq.home).total()
    with Sending(nameservers) as sending:
        sending.more()
        for _ in range(3):
            seen = set(places_in(raymq.home))
            eventually(partial(has_more_than, raymq.home, seen), "rows of a round", within_s=240)
            kill_executor(raymq)
            sending.more()
    eventually(lambda: places_in(raymq.home).keys() >= sending.places, "every message", within_s=240)
    found = places_in(raymq.home)
    assert set(found.values()) == {1}
    assert found.total() > before
    assert status_of("lake-0")["details"]["problem"] == ""
    up(raymq, "--prune")
