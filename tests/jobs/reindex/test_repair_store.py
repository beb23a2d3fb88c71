"""`jobs.repair_store` and `raymq reindex live` replace files of a broker that serves clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cluster.client import Admin, Message, Producer
from cluster.client.errors import ConfigInvalid
from jobs import read_queue, reindex_store, repair_store
from jobs.job_errors import ReindexFailed
from jobs.reindex.command import app
from store.ownership.identity import read_name
from store.recovery.summary import read_summary
from tests.eventually import eventually
from tests.jobs.conftest import STORE, ClusterThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "repaired"
MESSAGES = 1_000
UNITS = 100


class Broker:
    """A running broker whose queue TOPIC-0 has ten full files, and its nameserver."""

    def __init__(self, nameservers: str, root: Path) -> None:
        self.nameservers = nameservers
        self.root = root

    def file(self, offset: int) -> Path:
        return self.root / "consumequeue" / TOPIC / "0" / f"{offset * 20:020d}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker that makes checkpoints often, with MESSAGES messages in its last checkpoint."""
    directory = tmp_path_factory.mktemp("live")
    settings = STORE.model_copy(
        update={"consume_queue_file_bytes": UNITS * 20, "checkpoint_interval_ms": 100}
    )
    running = ClusterThread(directory, store=settings, brokers=1)
    try:
        names = running.cluster.nameserver_address
        with Admin(names) as admin:
            admin.create_topic(TOPIC, queues=1)
        with Producer(names) as producer:
            producer.send_many(TOPIC, [b"%d" % number for number in range(MESSAGES)])
            (root,) = (path.parent for path in directory.rglob("raymq.json"))
            name = read_name(root)
            assert name is not None

            def is_noted() -> bool:
                producer.send(Message("other", b"wakes the broker"))
                summary = read_summary(root, name.store_id)
                queue = summary.queues.get((TOPIC, 0)) if summary is not None else None
                return queue is not None and queue.next_offset == MESSAGES

            eventually(is_noted, "a checkpoint with all messages")
        yield Broker(names, root)
    finally:
        running.stop()


def count(spark: SparkSession, broker: Broker) -> int:
    frame = read_queue(spark, TOPIC, nameservers=broker.nameservers, columns=["body"])
    return len({int(bytes(row["body"])) for row in frame.collect()})


def test_running_broker_replaces_damaged_files(spark: SparkSession, broker: Broker) -> None:
    assert reindex_store(spark, broker.root, check=True).differences == []
    before = {offset: broker.file(offset).read_bytes() for offset in (0, 700)}
    for offset in before:
        broker.file(offset).write_bytes(bytes(UNITS * 20))
    differences = reindex_store(spark, broker.root, check=True).differences
    assert any("units 0 to 99 are zeros" in difference.reason for difference in differences)
    done = repair_store(spark, broker.root, nameservers=broker.nameservers)
    assert [file[:3] for file in done.replaced] == [(TOPIC, 0, 0), (TOPIC, 0, 700)]
    assert done.kept == []
    for offset, units in before.items():
        assert broker.file(offset).read_bytes() == units
    assert count(spark, broker) == MESSAGES
    assert not (broker.root / "raymq.reindex").exists()
    assert repair_store(spark, broker.root, nameservers=broker.nameservers).replaced == []


def test_invalid_nameserver_address_is_named(spark: SparkSession, broker: Broker) -> None:
    with pytest.raises(ConfigInvalid, match="'nowhere'"):
        repair_store(spark, broker.root, nameservers="nowhere")


@pytest.mark.extended
def test_command_repairs_a_running_broker(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("jobs.spark.session.local_session", lambda *_: nullcontext(spark))
    units = broker.file(300).read_bytes()
    broker.file(300).write_bytes(b"\x01" * UNITS * 20)
    done = CliRunner().invoke(app, ["live", str(broker.root), "-n", broker.nameservers])
    assert done.exit_code == 0, done.output
    assert f"replaced: {TOPIC}/0/{6000:020d}" in done.output
    assert "1 files replaced, 0 kept" in done.output
    assert broker.file(300).read_bytes() == units
    absent = CliRunner().invoke(app, ["live", str(tmp_path), "-n", broker.nameservers])
    assert (absent.exit_code, "not a store" in absent.output) == (1, True)
    with pytest.raises(ReindexFailed, match="has this store open: stop the broker"):
        reindex_store(spark, broker.root)
