"""`export_topic` and `import_topic`: content, resumption, checksums and refusals."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin, Message, Producer, ProducerConfig
from jobs import export_topic, import_topic
from jobs.job_errors import ArchiveInvalid, OptionInvalid
from jobs.reading.options.read_options import ReadOptions
from jobs.reading.options.topics import TopicNames
from jobs.reading.plan import plan_read
from tests.jobs.conftest import MESSAGES, TOPIC, Orders

# A file is sent as one batch, which must fit into the small log files of the test cluster.
PER_FILE = 700
BY_OFFSET = [("brokerName", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")]


def rows_of(orders: Orders, topic: str, *, committed: bool = False) -> pa.Table:
    """Return all messages of `topic`, sorted by queue and offset."""
    plan = plan_read(ReadOptions(TopicNames((topic,)), nameservers=orders.nameservers, committed=committed))
    table = pa.Table.from_batches(list(plan.reader(plan.ranges).read_all()))
    return table.sort_by(BY_OFFSET)


def export(orders: Orders, directory: Path, **options: object) -> int:
    given = {"nameservers": orders.nameservers, "messages_per_file": PER_FILE, **options}
    return export_topic(TOPIC, directory, **given).rows  # type: ignore[arg-type]


class Interrupt:
    """A progress function that interrupts after `calls` calls."""

    def __init__(self, calls: int) -> None:
        self._calls = calls

    def __call__(self, done: int, total: int) -> None:
        self._calls -= 1
        if not self._calls:
            raise KeyboardInterrupt


def by_queue(table: pa.Table, *columns: str) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for row in table.to_pylist():
        found.setdefault((row["brokerName"], row["queueId"]), []).append(tuple(row[name] for name in columns))
    return found


def test_export_has_all_messages_by_date_and_queue(orders: Orders, tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    result = export_topic(
        TOPIC,
        tmp_path,
        nameservers=orders.nameservers,
        messages_per_file=PER_FILE,
        progress=lambda done, total: progress.append((done, total)),
    )
    assert (result.rows, result.resumed) == (MESSAGES + 1, False)
    assert progress[-1] == (MESSAGES + 1, MESSAGES + 1)
    found = ds.dataset(tmp_path, partitioning="hive").to_table()
    assert sorted(found["body"].to_pylist()) == sorted(orders.sent)
    stored = {time.date().isoformat() for time in found["storeTimestamp"].to_pylist()}
    assert {str(date) for date in found["date"].to_pylist()} == stored
    assert {(row["brokerName"], row["queueId"]) for row in found.to_pylist()} == {
        (name.rpartition("-")[0], int(name.rpartition("-")[2])) for name in found["queue"].to_pylist()
    }
    expected = rows_of(orders, TOPIC)
    exported = found.select(expected.column_names).cast(expected.schema)
    assert exported.sort_by(BY_OFFSET).to_pylist() == expected.to_pylist()


def test_export_of_one_broker_has_only_its_queues(orders: Orders, tmp_path: Path) -> None:
    rows = export(orders, tmp_path, broker="broker-b")
    found = ds.dataset(tmp_path, partitioning="hive").to_table(columns=["brokerName"])
    assert set(found["brokerName"].to_pylist()) == {"broker-b"}
    assert 0 < found.num_rows == rows < MESSAGES


def test_interrupted_export_is_resumed_with_the_messages_of_its_start(orders: Orders, tmp_path: Path) -> None:
    topic = "growing"
    with Admin(orders.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    with Producer(orders.nameservers, config=ProducerConfig(table_batch_bytes=32 * 1024)) as producer:
        producer.send_table(topic, pa.table({"body": [str(number) for number in range(4_000)]}))
        with pytest.raises(KeyboardInterrupt):
            export_topic(
                topic, tmp_path, nameservers=orders.nameservers, messages_per_file=500, progress=Interrupt(3)
            )
        kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
        assert kept
        producer.send(Message(topic, b"later"))
    result = export_topic(topic, tmp_path, nameservers=orders.nameservers)
    assert (result.rows, result.resumed) == (4_000, True)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    bodies = ds.dataset(tmp_path, partitioning="hive").to_table(columns=["body"])["body"].to_pylist()
    assert Counter(bodies) == Counter(str(number).encode() for number in range(4_000))


def test_import_keeps_order_of_queues_and_properties(orders: Orders, tmp_path: Path) -> None:
    export(orders, tmp_path)
    receipt = import_topic(tmp_path, "imported", nameservers=orders.nameservers)
    assert (receipt.topic, receipt.rows) == ("imported", MESSAGES + 1)
    columns = ("body", "tags", "keys")
    source, target = rows_of(orders, TOPIC), rows_of(orders, "imported", committed=True)
    assert by_queue(target, *columns) == by_queue(source, *columns)
    (special,) = (dict(row["properties"]) for row in target.to_pylist() if row["body"] == b"!")
    assert (special["color"], special["empty?"]) == ("blå", "no")
    with pytest.raises(ArchiveInvalid, match="was imported into topic imported by job"):
        import_topic(tmp_path, "imported", nameservers=orders.nameservers)


def test_interrupted_import_stores_each_message_once_for_committed_reads(
    orders: Orders, tmp_path: Path
) -> None:
    export(orders, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        import_topic(tmp_path, "resumed", nameservers=orders.nameservers, progress=Interrupt(3))
    # As if the process had been killed after the last message of a split and before its receipt.
    progress = sorted((tmp_path / "_imports" / "resumed").glob("broker*.json"))
    assert len(progress) == 3
    progress[-1].unlink()
    receipt = import_topic(tmp_path, "resumed", nameservers=orders.nameservers)
    assert receipt.rows == MESSAGES + 1
    assert sorted(rows_of(orders, "resumed", committed=True)["body"].to_pylist()) == sorted(orders.sent)
    assert rows_of(orders, "resumed").num_rows > MESSAGES + 1


def test_incomplete_and_damaged_archives_are_not_imported(orders: Orders, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with pytest.raises(ArchiveInvalid, match=r"has no _export\.json"):
        import_topic(archive, "refused", nameservers=orders.nameservers)
    with pytest.raises(KeyboardInterrupt):
        export(orders, archive, progress=Interrupt(1))
    with pytest.raises(ArchiveInvalid, match="is not complete"):
        import_topic(archive, "refused", nameservers=orders.nameservers)
    export(orders, archive)
    file = next(archive.rglob("*.parquet"))
    content = file.read_bytes()
    file.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
    with pytest.raises(ArchiveInvalid, match="restore the file"):
        import_topic(archive, "refused", nameservers=orders.nameservers)
    file.unlink()
    with pytest.raises(ArchiveInvalid, match="is missing"):
        import_topic(archive, "refused", nameservers=orders.nameservers)
    (archive / "_export.json").write_text('{"topic": 1}')
    with pytest.raises(ArchiveInvalid, match="is damaged"):
        import_topic(archive, "refused", nameservers=orders.nameservers)
    with Admin(orders.nameservers) as admin:
        assert "refused" not in admin.topics()


def test_export_refuses_other_directories_and_options(orders: Orders, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ArchiveInvalid, match="is not empty"):
        export(orders, tmp_path)
    export(orders, tmp_path / "archive")
    with pytest.raises(ArchiveInvalid, match="is the export of topic orders"):
        export(orders, tmp_path / "archive", committed=True)
    with pytest.raises(ArchiveInvalid, match=r"broker=None, not of orders .* broker=broker-a"):
        export(orders, tmp_path / "archive", broker="broker-a")
    with pytest.raises(OptionInvalid, match="messages_per_file=0"):
        export(orders, tmp_path / "new", messages_per_file=0)


def test_commands_export_and_import_a_topic(orders: Orders, tmp_path: Path) -> None:
    def raymq(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(build(arguments), [*arguments, "-n", orders.nameservers])
        return found.exit_code, found.output

    archive = str(tmp_path / "archive")
    code, output = raymq("export", TOPIC, archive, "--messages-per-file", str(PER_FILE), "--json")
    assert (code, json.loads(output.splitlines()[-1])["rows"]) == (0, MESSAGES + 1)
    code, output = raymq("import", archive, "--topic", "copy")
    assert code == 0
    assert f"imported {MESSAGES + 1:,} messages into topic copy" in output
    code, output = raymq("import", archive, "--topic", "copy")
    assert code == 2
    assert "was imported into topic copy" in output
    code, output = raymq("export", "no-such-topic", str(tmp_path / "other"))
    assert code == 1
    assert "no-such-topic" in output
