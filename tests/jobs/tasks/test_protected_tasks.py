"""Task processors and kombu with keys and TLS in their configuration."""

from __future__ import annotations

from typing import Any

import pytest
from kombu import Connection, Exchange, Producer, Queue
from kombu.exceptions import OperationalError

from cluster.client.errors import ClientError
from tests.certificates import Authority
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_credentials import KEYS, SECRET, permit, protected
from tests.cluster.client.test_tls import authority, encrypted
from tests.eventually import eventually
from tests.jobs.tasks.processors import Processors, result_of
from tests.jobs.tasks.test_kombu_transport import consuming

__all__ = ["authority", "encrypted", "protected"]


def add(a: int, b: int) -> int:
    return a + b


def test_processor_signs_its_requests(protected: Cluster) -> None:
    made = Processors(protected.address)
    made.make()  # creates the topics, as the inner user
    topics = [made.queue, *(f"{made.queue}{each}" for each in ("_results", "-failed", "-unprocessable"))]
    permit(protected, *(f"Topic:{each}" for each in topics), f"Group:{made.queue}_workers")

    processor = made.make(add, **KEYS)

    task_id = processor.enqueue_task_sync("add", [1, 2]).id
    assert result_of(processor, task_id).result == 3
    later = processor.enqueue_task_sync("add", [1, 2], countdown=3600).id
    processor.cancel_task_sync(later)
    assert result_of(processor, later).status == "REVOKED"
    for _ in range(3):
        processor.enqueue_task_sync("add", [1, 2], task_id="once")
    assert result_of(processor, "once").result == 3
    eventually(lambda: processor.get_metrics_sync()["waiting"] == 0)
    assert processor.health_check_sync()[0] == {"this replica": {"ok": True, "error": None}}
    made.stop()


def test_processor_uses_tls(
    encrypted: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAYMQ_TLS_CA")
    made = Processors(encrypted.address)
    processor = made.make(add, tls={"ca_file": authority.ca_file})
    assert result_of(processor, processor.enqueue_task_sync("add", [1, 2]).id).result == 3
    made.stop()


EXCHANGE = Exchange("news", "fanout")
QUEUE = Queue("mail.out", EXCHANGE)


def bodies_by_way_of(url: str, **options: Any) -> list[Any]:
    """Return the bodies of a message to a queue and of one to an exchange."""
    with Connection(url, **options) as connection:
        producer = Producer(connection.default_channel)
        producer.publish("direct", routing_key=QUEUE.name, declare=[QUEUE])
        producer.publish("routed", exchange=EXCHANGE)
        with consuming(connection, QUEUE) as received:
            return received.wait(2)


def test_kombu_signs_its_requests(protected: Cluster) -> None:
    with Connection(f"raymq://{protected.address}/shop") as inner:  # creates the topics
        QUEUE(inner.default_channel).declare()
    permit(protected, "Topic:shop%*", "Group:shop%*")

    assert bodies_by_way_of(f"raymq://alice:{SECRET}@{protected.address}/shop") == ["direct", "routed"]
    for forbidden in (f"alice:wrong@{protected.address}/shop", f"alice:{SECRET}@{protected.address}"):
        with pytest.raises((ClientError, OperationalError)):
            bodies_by_way_of(f"raymq://{forbidden}")


def test_kombu_uses_tls(encrypted: Cluster, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYMQ_TLS_CA")
    url, ssl = f"raymq://{encrypted.address}", {"ca_certs": str(authority.ca_file)}
    assert bodies_by_way_of(url, ssl=ssl) == ["direct", "routed"]
    with pytest.raises((ClientError, OperationalError)):
        bodies_by_way_of(url)
