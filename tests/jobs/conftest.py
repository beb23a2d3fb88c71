"""Fixtures: a cluster of two brokers with messages in this process, and one shared Spark session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cluster.client import Admin, Message, Producer, ProducerConfig
from cluster.standalone import StandaloneCluster, StandaloneSettings
from store.common.clock import SystemClock
from store.store_settings import StoreSettings
from tests.eventually import LIMIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"
MESSAGES = 12_000
BODY_BYTES = 100
# Small files, so that a read goes over many of them.
STORE = StoreSettings.model_validate(
    {
        "flush": "async",
        "commit_log_file_bytes": 256 * 1024,
        "consume_queue_file_bytes": 400 * 20,
        "index_slots": 1000,
        "index_entries": 5000,
    }
)


@dataclass(frozen=True)
class Orders:
    """A running cluster with `MESSAGES` messages in TOPIC, whose bodies are padded numbers."""

    nameservers: str
    sent: list[bytes]


def order(number: int) -> bytes:
    return str(number).encode().rjust(BODY_BYTES)


class ClusterThread:
    """A cluster that runs on an event loop in a separate thread."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        given = StandaloneSettings(root, **{"brokers": 2, "store": STORE, **settings})
        self.cluster = StandaloneCluster(given, SystemClock())
        asyncio.run_coroutine_threadsafe(self.cluster.start(), self._loop).result(LIMIT_S)

    def stop(self) -> None:
        """Stop the cluster, unless it is stopped already."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self.cluster.stop(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()


@pytest.fixture(scope="package")  # its brokers log in this process, among the tests of others
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orders]:
    """Yield a cluster of two brokers, three queues each, with the messages."""
    running = ClusterThread(tmp_path_factory.mktemp("stores"))
    try:
        nameservers = running.cluster.nameserver_address
        with Admin(nameservers) as admin:
            admin.create_topic(TOPIC, queues=3)
        sent = [order(number) for number in range(MESSAGES)]
        table = pa.table(
            {
                "body": sent,
                "tags": [f"tag-{number % 3}" for number in range(MESSAGES)],
                "keys": [f"key-{number % 500}" for number in range(MESSAGES)],
            }
        )
        with Producer(nameservers, config=ProducerConfig(table_batch_bytes=32 * 1024)) as producer:
            producer.send_table(TOPIC, table, tags="tags", keys="keys", sharding_key="keys")
            special = Message(TOPIC, b"!", "späte", ["a", "b"], {"color": "blå", "empty?": "no"})
            producer.send(special)
        yield Orders(nameservers, [*sent, b"!"])
    finally:
        running.stop()


@pytest.fixture(scope="package")  # its brokers log in this process, among the tests of others
def empty_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the nameserver of a cluster of two brokers without topics, with files for large batches."""
    large = STORE.model_copy(update={"commit_log_file_bytes": 16 << 20})
    running = ClusterThread(tmp_path_factory.mktemp("empty"), store=large)
    try:
        yield running.cluster.nameserver_address
    finally:
        running.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield a local Spark session with two cores."""
    from jobs import local_session

    session = local_session(
        settings={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.master": "local[2, 2]",
        }
    )
    yield session
    session.stop()
