"""Files of Apache RocketMQ 5.3.3: stores that our broker continues, and offset files of Java consumers.

tests/fixtures/writer.py has written them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.client import (
    Admin,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
)
from tests.compat.store_writer import store_settings
from tests.conftest import FIXTURES
from tests.eventually import eventually

from .conftest import Cluster
from .test_broadcasting import offset_file
from .test_producer import read_all
from .test_pull_consumer import committed

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
Continued = Callable[..., Cluster]


@pytest.fixture
def continued(clusters: Callable[..., Cluster], tmp_path: Path) -> Continued:
    """Return a function that starts a cluster whose broker opens the store of a fixture."""

    def start(fixture: str, **settings: Any) -> Cluster:
        with tarfile.open(FIXTURES / f"rocketmq-5.3.3-{fixture}.tar.gz") as archive:
            archive.extractall(tmp_path, filter="data")
        cluster = clusters(brokers=0)
        root = tmp_path / fixture / "store"
        cluster.start_broker(
            "broker-a", store_root=root, store=store_settings(), adopt_store=True, **settings
        )
        return cluster

    return start


def visible(cluster: Cluster, topic: str) -> list[str]:
    return sorted(body.decode() for _, body, _ in read_all(cluster, topic))


def test_open_transactions_of_rocketmqs_store_are_checked_and_ended(continued: Continued) -> None:
    cluster = continued("transactions", transaction_check_interval_ms=20, transaction_timeout_ms=0)
    done = [f"committed {number}" for number in range(3)]
    assert visible(cluster, "Orders") == done
    checked: list[str] = []

    def check(message: MessageExt) -> LocalTransactionState:
        checked.append(message.body.decode())
        return COMMIT if int(checked[-1][-1]) % 2 else ROLLBACK

    with TransactionProducer(cluster.address, "G_orders", check) as producer:
        # The first send registers the producer with the broker.
        producer.send_in_transaction(Message("Orders", b"committed 3"), lambda _: COMMIT)
        expected = [*done, "committed 3", *(f"open {number}" for number in range(1, 10, 2))]
        eventually(lambda: visible(cluster, "Orders") == expected, "the commits of the checks")
        eventually(lambda: {f"open {number}" for number in range(10)} <= set(checked), "all checks")
    # The new transaction may be checked too: it is open until its outcome arrives.
    ended = [body for body in checked if not body.startswith("open ") and body != "committed 3"]
    assert not ended, "ended transactions are not checked"
    assert visible(cluster, "Orders") == expected


def test_retries_and_dead_letters_of_rocketmqs_store_continue(continued: Continued) -> None:
    cluster, group = continued("retries"), "G_payments"
    with Admin(cluster.address) as admin:
        letters = admin.dead_letters(group)
        assert sorted(letter.body for letter in letters) == [f"dead {n}".encode() for n in range(6)]
        assert {letter.properties["RETRY_TOPIC"] for letter in letters} == {"Payments"}
        assert admin.dead_letter_count(group) == 6
        assert committed(cluster, group, "Payments") == 10
        received: list[MessageExt] = []
        config = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)
        with PushConsumer(cluster.address, group, received.extend, config=config) as consumer:
            consumer.subscribe("Payments")
            # The second retries, whose delay ended long ago.
            eventually(lambda: len(received) >= 4)
            assert admin.resend_dead_letters(group) == 6
            eventually(lambda: len(received) >= 10)
    retried = sorted(received, key=lambda message: message.body)
    assert [message.body.decode() for message in retried] == [
        *(f"dead {n}" for n in range(6)),
        *(f"pending {n}" for n in range(4)),
    ]
    assert [message.reconsume_times for message in retried] == [0] * 6 + [2] * 4
    assert {message.topic for message in received} == {"Payments"}


@pytest.mark.parametrize("client", ["client-4.9.8", "client-5.3.3"])
def test_broadcasting_consumer_resumes_at_the_offsets_of_a_java_client(
    clusters: Callable[..., Cluster], tmp_path: Path, client: str
) -> None:
    config = PushConfig(
        message_model="broadcasting",
        local_offset_dir=str(tmp_path / "offsets"),
        consume_from="earliest",
        sync_interval_ms=100,
    )
    path = offset_file(config, "G_prices")
    path.parent.mkdir(parents=True)
    path.write_bytes((FIXTURES / "offsets" / f"{client}.json").read_bytes())
    cluster = clusters(brokers=0)
    cluster.start_broker("broker-a")
    received: list[MessageExt] = []
    with Admin(cluster.address) as admin, Producer(cluster.address, "fills") as producer:
        admin.create_topic("Prices", queues=3)
        for queue_id in range(3):
            for number in range(5):
                producer.send("Prices", f"{number}", queue=MessageQueue("Prices", "broker-a", queue_id))
        with PushConsumer(cluster.address, "G_prices", received.extend, config=config) as consumer:
            consumer.subscribe("Prices")
            eventually(lambda: len(received) >= 9)
    # The Java client had consumed 1, 2 and 3 messages.
    places = sorted((message.queue_id, message.queue_offset) for message in received)
    assert places == [(queue_id, offset) for queue_id in range(3) for offset in range(queue_id + 1, 5)]
