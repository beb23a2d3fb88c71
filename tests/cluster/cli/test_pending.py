"""Messages that wait in a broker, as `raymq top`, `raymq broker` and the broker's fields show them."""

from __future__ import annotations

from pathlib import Path

from cluster.client import (
    Admin,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConfig,
    PushConsumer,
    TransactionProducer,
    reconsume_later,
)
from cluster.client.results import ReconsumeLater
from cluster.views.brokers import list_brokers
from store.common.clock import SystemClock
from tests.cluster.client.conftest import Cluster
from tests.cluster.client.test_pull_consumer import committed
from tests.conftest import ClockAtRest
from tests.eventually import eventually

from .conftest import Raymq

A_DAY_MS = 86_400_000
LEVEL_1_MS = 1_000


def unknown(message: Message) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


def retry_or_bury(messages: list[MessageExt]) -> ReconsumeLater:
    return reconsume_later(1 if messages[0].body == b"retry" else -1)


def test_pending_messages_of_a_broker_are_shown(tmp_path: Path, clock: ClockAtRest) -> None:
    """Two messages wait for a retry, one is a dead letter, and three transactions are open."""
    cluster = Cluster(
        tmp_path, brokers=1, broker_clock=clock, os_page_cache_busy_ms=A_DAY_MS, max_hold_ms=A_DAY_MS,
        wait_in_pull_queue_ms=A_DAY_MS, idle_timeout_ms=A_DAY_MS,
    )  # fmt: skip
    topic, group, raymq = cluster.topic(queues=1), "billing", Raymq(cluster)
    config = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)
    with Producer(cluster.address) as producer:
        for body in (b"retry", b"retry", b"bury"):
            producer.send(topic, body)
    with PushConsumer(cluster.address, group, retry_or_bury, config=config) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: committed(cluster, group, topic) == 3)
    clock.advance(LEVEL_1_MS)
    with TransactionProducer(cluster.address, "tx", unknown) as transactions:
        for _ in range(3):
            transactions.send_in_transaction(Message(topic, b"open"), unknown)

    expected = {"open_transactions": 3, "retries": 2, "dead_letters": 1}
    with Admin(cluster.address) as admin:

        def shown() -> dict[str, int]:
            [broker] = list_brokers(admin, SystemClock())
            return {name: getattr(broker.load, name) for name in expected}

        eventually(lambda: shown() == expected)
        runtime = admin.broker_runtime("a")
    fields = cluster.brokers["a"].describe()
    assert (fields["open_transactions"], fields["retries_pending"], fields["dead_letters_pending"]) == (
        3,
        2,
        1,
    )
    assert (fields["messages_sent_back"], runtime["messagesSentBack"]) == (3, "3")
    [row] = raymq.ok("top", "--once")["brokers"]
    assert {name: row[name] for name in expected} == expected
    assert row["pending_timers"] == 0
    [row] = raymq.ok("broker", "list")
    assert row["open_transactions"] == 3
    heading = raymq.shown("top", "--once")
    assert "open transactions" in heading
    assert "pending timers" in heading
    cluster.stop()
