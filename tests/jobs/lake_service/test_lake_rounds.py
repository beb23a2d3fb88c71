"""Rounds of a lake: which topics, which offsets of its group, and what is known about each table."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from cluster.client import Admin, Producer
from jobs.job_errors import CommitConflict
from jobs.lake.catalogs import open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import Engine, ThreadEngine
from jobs.lake_service import lake_rounds
from jobs.lake_service.lake_rounds import LakeRounds, TableProgress
from jobs.lake_service.process_settings import LakeProcessSettings
from jobs.lake_service.service import LakeService
from store.common.clock import SystemClock
from tests.actors.broker.features.metrics.scraped import scrape
from tests.actors.broker.features.metrics.test_board import OF_LAKES
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async
from tests.jobs.conftest import ClusterThread

GROUP = "raymq-lake-0"


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = ClusterThread(tmp_path_factory.mktemp("stores"), brokers=1)
    with Admin(running.cluster.nameserver_address) as admin:
        for topic in ("orders", "pay-1", "other"):
            admin.create_topic(topic, queues=2)
    try:
        yield running.cluster.nameserver_address
    finally:
        running.stop()


def settings_of(home: Path, nameserver: str, **given: Any) -> LakeProcessSettings:
    return LakeProcessSettings.model_validate(
        {
            "topics": ["orders", "pay*"], "nameservers": [nameserver], "cluster_name": "C", "group": GROUP,
            "home": home, "data_dir": home / "lake-0", "metrics_port": 0, **given,
        }
    )  # fmt: skip


def threads() -> AbstractContextManager[Engine]:
    return nullcontext(ThreadEngine())


def send(nameserver: str, topic: str, count: int) -> None:
    with Producer(nameserver) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number)


def offsets_of(nameserver: str, topic: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the ends of a topic, and the committed offsets of the lake's group."""
    with Admin(nameserver) as admin:
        return dict(admin.end_offsets(topic)), dict(admin.committed_offsets(GROUP, topic))


def rows_of(settings: LakeProcessSettings, topic: str) -> int:
    table = LakeTable.find(open_catalog(settings.lake), "raymq", topic)
    return 0 if table is None else table.iceberg.scan().to_arrow().num_rows


def test_rounds_copy_the_topics_that_match_and_commit_their_offsets(
    nameserver: str, tmp_path: Path, clock: ClockAtRest
) -> None:
    settings = settings_of(tmp_path, nameserver)
    rounds = LakeRounds(settings, threads, clock)
    for topic in ("orders", "pay-1", "other"):
        send(nameserver, topic, 10)
    assert rounds.tick() is False
    assert sorted(rounds.tables) == ["orders", "pay-1"]
    for topic in rounds.tables:
        ends, committed = offsets_of(nameserver, topic)
        assert committed == ends
        assert (rounds.tables[topic].rows, rounds.tables[topic].failures) == (rows_of(settings, topic), 0)
    assert rows_of(settings, "other") == 0
    clock.advance(7_000)
    assert rounds.tables["orders"].behind_s(clock.monotonic_ns()) == 7
    send(nameserver, "orders", 5)
    before = rows_of(settings, "orders")
    assert LakeRounds(settings, threads, clock).tick() is False  # after a restart
    assert rows_of(settings, "orders") == before + 5
    rounds.tick()
    assert rounds.tables["orders"].behind_s(clock.monotonic_ns()) == 0
    assert rounds.tables["orders"].rows == before + 5


def test_schema_of_the_settings_makes_columns_of_bodies(nameserver: str, tmp_path: Path) -> None:
    """Also of a table that has had none, and of one whose schema had fewer columns."""
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("typed", queues=1)
        producer.send("typed", b'{"id": 1, "name": "a"}')
    for schema in (None, "id BIGINT", "id BIGINT, name STRING"):
        with Producer(nameserver) as producer:
            producer.send("typed", b'{"id": 2, "name": "b"}')
        settings = settings_of(tmp_path, nameserver, topics=["typed"], schema=schema)
        rounds = LakeRounds(settings, threads, SystemClock())
        rounds.tick()
        assert rounds.tables["typed"].problem == ""
    table = LakeTable.find(open_catalog(settings.lake), "raymq", "typed")
    assert table is not None
    rows = sorted(table.iceberg.scan().to_arrow().to_pylist(), key=lambda row: row["offset"])
    assert [(row["id"], row["name"]) for row in rows] == [(None, None), (None, None), (2, None), (2, "b")]
    changed = LakeRounds(
        settings_of(tmp_path, nameserver, topics=["typed"], schema="id STRING"), threads, SystemClock()
    )
    changed.tick()
    assert "does not fit the table raymq.typed" in changed.tables["typed"].problem


def test_dropped_table_of_a_topic_in_the_settings_is_begun_again(nameserver: str, tmp_path: Path) -> None:
    """The offsets of the group, which brokers keep the log for, follow the new table."""
    settings = settings_of(tmp_path, nameserver, topics=["orders"])
    rounds = LakeRounds(settings, threads, SystemClock())
    send(nameserver, "orders", 4)
    rounds.tick()
    before = rows_of(settings, "orders")
    table = LakeTable.find(open_catalog(settings.lake), "raymq", "orders")
    assert table is not None
    table.drop()
    rounds.tick()
    assert rows_of(settings, "orders") == before
    ends, committed = offsets_of(nameserver, "orders")
    assert committed == ends


def test_lost_offsets_of_the_group_are_committed_again(nameserver: str, tmp_path: Path) -> None:
    """A killed broker may have lost those of the last seconds."""
    rounds = LakeRounds(settings_of(tmp_path, nameserver), threads, SystemClock())
    send(nameserver, "orders", 4)
    rounds.tick()
    with Admin(nameserver) as admin:
        admin.delete_group(GROUP)
    rounds.tick()
    ends, committed = offsets_of(nameserver, "orders")
    assert committed == ends


def test_failed_rounds_are_counted_and_leave_unknown_what_is_unknown(
    nameserver: str, tmp_path: Path, clock: ClockAtRest, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path, nameserver, topics=["orders"])
    rounds = LakeRounds(settings, threads, clock)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "catalog.db").write_bytes(b"no database" * 1000)
    send(nameserver, "orders", 1)
    for count in (1, 2):
        assert rounds.tick() is False
        found = rounds.tables["orders"]
        assert found == TableProgress(failures=count, problem=found.problem)
        assert "the catalog of the lake cannot be used now" in found.problem
    assert rounds.tables["orders"].behind_s(clock.monotonic_ns()) is None
    assert caplog.text.count("lake_round_failed") == 1  # until the reason changes
    shutil.rmtree(tmp_path / "lake")
    rounds.tick()
    assert (rounds.tables["orders"].failures, rounds.tables["orders"].behind_s(clock.monotonic_ns())) == (
        0,
        0,
    )


def test_unreachable_cluster_is_a_problem_of_the_whole_lake(tmp_path: Path, clock: ClockAtRest) -> None:
    rounds = LakeRounds(settings_of(tmp_path, "127.0.0.1:1"), threads, clock)
    assert rounds.tick() is False
    assert "127.0.0.1:1" in rounds.problem
    assert rounds.failed_rounds == 1


def test_service_repeats_rounds_and_shows_its_tables(nameserver: str, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, nameserver, topics=["orders"], freshness_s=0.1)
    failed: list[str] = []

    async def story() -> None:
        rounds = LakeRounds(settings, threads, SystemClock())
        service = LakeService(settings, rounds, "lake-0", SystemClock(), failed.append)
        await service.start()
        await eventually_async(lambda: "orders" in service.details()["tables"])
        before = service.details()["tables"]["orders"]["rows"]
        await asyncio.to_thread(send, nameserver, "orders", 3)
        await eventually_async(lambda: service.details()["tables"]["orders"]["rows"] == before + 3)
        families = await scrape(service.metrics.port)
        shown = service.details()["tables"]["orders"]
        (rows,) = families["raymq_lake_rows"].samples
        assert (rows.labels["topic"], rows.labels["node_type"], rows.value) == ("orders", "lake", before + 3)
        found = {f"{name}_total" if each.type == "counter" else name for name, each in families.items()}
        assert found >= OF_LAKES
        assert (shown["lost"], shown["failures"], service.details()["problem"]) == (0, 0, "")
        await service.stop()
        assert rounds.rounds > 1

    asyncio.run(story())
    assert failed == []


def test_bug_in_a_round_is_reported_to_the_host(nameserver: str, tmp_path: Path) -> None:
    class Broken(LakeRounds):
        def tick(self, *_: object) -> bool:
            raise ZeroDivisionError("a bug")

    settings, failed = settings_of(tmp_path, nameserver), list[str]()

    async def story() -> None:
        service = LakeService(
            settings, Broken(settings, threads, SystemClock()), "l", SystemClock(), failed.append
        )
        await service.start()
        await eventually_async(lambda: failed)
        await service.stop()

    asyncio.run(story())
    assert failed == ["ZeroDivisionError: a bug"]


def test_upkeep_compacts_small_files_after_its_interval(
    nameserver: str, tmp_path: Path, clock: ClockAtRest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = settings_of(
        tmp_path, nameserver, topics=["orders"], upkeep_interval_s=60, snapshots_kept_h=1e-9
    )
    rounds = LakeRounds(settings, threads, clock)
    for _ in range(12):
        send(nameserver, "orders", 1)
        rounds.tick()
    rows, files = rows_of(settings, "orders"), rounds.tables["orders"].files
    assert files == 12
    clock.advance(59_000)
    rounds.tick()
    assert rounds.tables["orders"].files == files
    clock.advance(1_000)
    rounds.tick()
    rounds.tick()
    assert rounds.tables["orders"].files == 1
    assert rows_of(settings, "orders") == rows == rounds.tables["orders"].rows
    assert "lake_upkeep_done" in caplog.text
    table = LakeTable.find(open_catalog(settings.lake), "raymq", "orders")
    assert table is not None
    assert len(table.iceberg.metadata.snapshots) <= 11
    send(nameserver, "orders", 1)
    rounds.tick()
    assert rows_of(settings, "orders") == rows + 1


def test_upkeep_that_fails_is_counted_and_stops_no_round(
    nameserver: str, tmp_path: Path, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CommitConflict("another writer")

    rounds = LakeRounds(settings_of(tmp_path, nameserver, topics=["orders"]), threads, clock)
    monkeypatch.setattr(lake_rounds, "compact", refuse)
    rounds.tick()
    assert rounds.failed_upkeeps == 1
    assert (rounds.tables["orders"].failures, rounds.tables["orders"].problem) == (0, "")
