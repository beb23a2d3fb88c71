"""`raymq lake`: what its commands print, do and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli.main import build
from cluster.client import Admin, Producer
from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeGap, LakeTable
from tests.jobs.conftest import MESSAGES, TOPIC, Orders
from tests.jobs.lake.lake_files import QUEUE, write_rows
from tests.ports import free_port


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str) -> Result:
    given = ["lake", *arguments]
    return CliRunner().invoke(build(given), given)


def status_of(orders: Orders, *arguments: str) -> list[dict[str, object]]:
    found = run("status", "-n", orders.nameservers, "--json", *arguments)
    assert found.exit_code == 0, found.output
    rows: list[dict[str, object]] = json.loads(found.stdout)
    return rows


def test_backfill_and_status_show_what_a_table_has(orders: Orders, home: Path) -> None:
    assert status_of(orders) == []
    result = run("backfill", TOPIC, "-n", orders.nameservers)
    assert result.exit_code == 0, result.output
    assert f"wrote {MESSAGES + 1:,} messages of orders to 1 file of raymq.orders" in result.stdout
    again = json.loads(run("backfill", TOPIC, "-n", orders.nameservers, "--json").stdout)
    assert again == {"topic": TOPIC, "rows": 0, "files": 0, "errors": 0, "lost": 0, "ahead": []}
    [found] = status_of(orders, TOPIC)
    assert (found["rows"], found["files"], found["lost"]) == (MESSAGES + 1, 1, 0)
    assert (found["messages_behind"], found["seconds_behind"]) == (0, 0.0)
    assert (home / "lake" / "catalog.db").exists()


def test_status_shows_how_far_a_table_is_behind_and_what_is_unknown(orders: Orders) -> None:
    topic = "lake-behind"
    with Admin(orders.nameservers) as admin, Producer(orders.nameservers) as producer:
        admin.create_topic(topic, queues=1)
        run("backfill", topic, "-n", orders.nameservers)
        producer.send(topic, b"late")
    [found] = status_of(orders)
    assert found["messages_behind"] == 1
    assert isinstance(found["seconds_behind"], float)
    unreachable = run("status", "-n", f"127.0.0.1:{free_port()}", "--json")
    assert unreachable.exit_code == 0
    [found] = json.loads(unreachable.stdout)
    assert (found["messages_behind"], found["seconds_behind"], found["rows"]) == (None, None, 0)
    assert "–" in run("status", "-n", f"127.0.0.1:{free_port()}").stdout


def test_status_lists_gaps(orders: Orders, home: Path) -> None:
    table = LakeTable.create(open_catalog(LakeSettings(str(home / "lake"))), "raymq", TOPIC)
    gap = LakeGap("broker-a", 0, 3, 10)
    table.commit([write_rows(table, range(10, 20), "one")], {QUEUE: 20}, [gap], table.state())
    [found] = status_of(orders)
    assert (found["lost"], found["gaps"]) == (7, [gap._asdict()])
    assert "lost: broker-a/0 offsets [3, 10)" in run("status", "-n", orders.nameservers).stdout


def test_upkeep_and_drop_of_a_table(orders: Orders, home: Path) -> None:
    table = LakeTable.create(open_catalog(LakeSettings(str(home / "lake"))), "raymq", TOPIC)
    for number in range(3):
        file = write_rows(table, range(number, number + 1), f"file-{number}")
        table.commit([file], {QUEUE: number + 1}, [], table.state())
    assert "orders: 3 small files became 1, with 3 rows" in run("compact").stdout
    assert json.loads(run("expire", "--older-than-h", "0", "--json").stdout) == [
        {"topic": TOPIC, "snapshots": 0, "files": 0}
    ]
    refused = run("drop", TOPIC)
    assert (refused.exit_code, "confirm with --yes" in refused.output) == (2, True)
    dropped = run("drop", TOPIC, "--yes")
    assert dropped.stdout == "deleted the table raymq.orders\n"
    assert "the table is begun again from what the log has; to end that" in dropped.stderr
    assert not list((home / "lake").rglob("*.parquet"))
    missing = run("drop", TOPIC, "--yes")
    assert missing.exit_code == 1
    assert "`raymq lake backfill orders` creates it" in missing.output


def test_drop_that_keeps_files_says_where_they_are(orders: Orders, home: Path) -> None:
    table = LakeTable.create(open_catalog(LakeSettings(str(home / "lake"))), "raymq", TOPIC)
    table.commit([write_rows(table, range(3), "one")], {QUEUE: 3}, [], table.state())
    dropped = run("drop", TOPIC, "--yes", "--keep-files")
    assert f"its files stay below {table.location}" in dropped.stdout
    assert len(list(Path(table.location.removeprefix("file://")).rglob("*.parquet"))) == 1
    assert status_of(orders) == []
    empty = run("status", "-n", orders.nameservers).stderr
    assert f"no topic has a table in the namespace raymq of the warehouse file://{home}/lake" in empty


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["status", "--catalog", "type"], "--catalog needs KEY=VALUE"),
        (["status", "--catalog", "token=hidden"], "token is a secret"),
        (["status", "--warehouse", "s3://bucket/lake"], "give the properties of a catalog"),
    ],
)
def test_invalid_settings_of_a_lake_are_refused(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert text in result.output
    assert "hidden" not in result.output


def test_backfill_with_a_schema_decodes_bodies_and_counts_errors(orders: Orders, home: Path) -> None:
    # the bodies are numbers, not objects
    result = run("backfill", TOPIC, "-n", orders.nameservers, "--schema", "id BIGINT")
    assert result.exit_code == 0, result.output
    assert f"{MESSAGES + 1:,} bodies cannot be decoded: see the table raymq.orders_errors" in result.output
    assert run("drop", TOPIC, "--yes").exit_code == 0
    assert not list((home / "lake").rglob("*.parquet"))
    invalid = run("backfill", TOPIC, "-n", orders.nameservers, "--schema", "id NUMBER")
    assert (invalid.exit_code, "found 'NUMBER'" in invalid.output) == (2, True)
    useless = run("backfill", TOPIC, "-n", orders.nameservers, "--format", "avro")
    assert (useless.exit_code, "but no schema" in useless.output) == (2, True)


def test_backfill_of_a_topic_that_does_not_exist_creates_no_table(orders: Orders) -> None:
    result = run("backfill", "no-such-topic", "-n", orders.nameservers)
    assert result.exit_code == 1
    assert status_of(orders) == []


def test_backfill_reads_a_store_without_a_broker(orders: Orders, tmp_path: Path) -> None:
    result = run("backfill", TOPIC, "--store", str(tmp_path / "nowhere"))
    assert result.exit_code == 1
    assert "nowhere" in result.output
