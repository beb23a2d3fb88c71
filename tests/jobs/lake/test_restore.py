"""`restore_topic`: the messages of a table in a new topic, in the order of their queues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Producer
from jobs.job_errors import ArchiveInvalid, LakeInvalid, TopicNotEmpty
from jobs.lake.bodies import LakeBodies
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake_service import restore
from jobs.lake_service.restore import restore_topic
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import plan_read
from tests.jobs.conftest import ClusterThread
from tests.jobs.lake.history_topic import TOPIC, HistoryTopic
from tests.jobs.lake.lake_files import NOON, rows_of, write_days, write_rows

pytestmark = pytest.mark.slow


class Interrupt(Exception):
    """Stands for Control-C."""


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HistoryTopic]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        yield HistoryTopic(running.cluster.nameserver_address, tmp_path_factory.mktemp("lake"))
    finally:
        running.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(restore, "MESSAGES_PER_FILE", 40)  # parts of a few files
    return tmp_path / "home"


def _restore(topic: HistoryTopic, new: str, **options: Any) -> int:
    topic.table.refresh()
    return restore_topic(topic.table, new, nameservers=topic.nameservers, **options).rows


def _by_queue(topic: HistoryTopic, name: str, *, committed: bool = False) -> list[list[tuple[Any, ...]]]:
    """Return the messages of each queue, in order."""
    options = ReadOptions(TopicNames((name,)), nameservers=topic.nameservers, committed=committed)
    rows = rows_of(plan_read(options)).to_pylist()
    queues: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    for row in rows:
        shown = (row["body"], row["tags"], row["keys"], dict(row["properties"])["size"])
        queues.setdefault((row["brokerName"], row["queueId"]), []).append((row["queueOffset"], shown))
    return [[shown for _, shown in sorted(found)] for _, found in sorted(queues.items())]


def test_restored_topic_has_the_messages_of_the_table_in_order(topic: HistoryTopic) -> None:
    calls: list[tuple[int, int]] = []
    assert _restore(topic, "restored", progress=lambda *call: calls.append(call)) == 300
    assert calls[-1] == (300, 300)
    assert calls == sorted(calls)
    in_table = [[row for row in queue if int(row[0]) < 300] for queue in _by_queue(topic, TOPIC)]
    assert _by_queue(topic, "restored") == in_table
    with pytest.raises(ArchiveInvalid, match=r"was imported into topic restored .*delete"):
        _restore(topic, "restored")


def test_interrupted_restore_is_resumed_at_its_snapshot(topic: HistoryTopic) -> None:
    def interrupt(done: int, total: int) -> None:
        if done > 100:
            raise Interrupt

    with pytest.raises(Interrupt):
        _restore(topic, "resumed", progress=interrupt)
    write_days(topic.table, [NOON], begin=900)
    assert _restore(topic, "resumed") == 300
    expected = [[row for row in queue if int(row[0]) < 300] for queue in _by_queue(topic, TOPIC)]
    assert _by_queue(topic, "resumed", committed=True) == expected


def test_topic_with_messages_is_refused_unless_told(topic: HistoryTopic) -> None:
    with Producer(topic.nameservers) as producer:
        producer.send("used", b"1")
    with pytest.raises(TopicNotEmpty, match=r"topic used has 1 messages: .*--append"):
        _restore(topic, "used")
    assert _restore(topic, "used", append=True) >= 300


def test_command_restores_and_refuses(topic: HistoryTopic) -> None:
    def run(*arguments: str) -> Any:
        given = ["lake", "restore", *arguments, "--warehouse", topic.warehouse, "-n", topic.nameservers]
        return CliRunner().invoke(build(given), given)

    done = run(TOPIC, "--to", "by-command", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["topic"] == "by-command"
    again, missing = run(TOPIC, "--to", "by-command"), run("other", "--to", "new")
    assert (again.exit_code, missing.exit_code) == (2, 1)
    assert "was imported into topic by-command" in again.stderr
    assert "topic other has no table in this lake" in missing.stderr


def test_table_without_bodies_is_refused(tmp_path: Path) -> None:
    catalog = open_catalog(LakeSettings(str(tmp_path)))
    table = LakeTable.create(catalog, "raymq", TOPIC, bodies=LakeBodies("amount BIGINT"))
    with pytest.raises(LakeInvalid, match="decoded columns instead of bodies"):
        restore_topic(table, "new", nameservers="127.0.0.1:1")


def test_rows_that_are_not_in_order_are_refused(topic: HistoryTopic, tmp_path: Path) -> None:
    table = LakeTable.create(open_catalog(LakeSettings(str(tmp_path))), "raymq", "mixed")
    files = [write_rows(table, offsets, name) for offsets, name in (([1, 2, 5], "first"), ([3, 4], "second"))]
    table.commit(files, {}, (), table.state())
    with pytest.raises(LakeInvalid, match="both have rows of queue broker-a/0 around offset 3"):
        restore_topic(table, "unordered", nameservers=topic.nameservers)
    table = LakeTable.create(open_catalog(LakeSettings(str(tmp_path))), "raymq", "unsorted")
    table.commit([write_rows(table, [2, 1], "only")], {}, (), table.state())
    with pytest.raises(LakeInvalid, match="are not sorted by offset"):
        restore_topic(table, "unordered", nameservers=topic.nameservers)
