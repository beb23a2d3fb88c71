"""Consumers stay up while the store of their broker is replaced by an older copy, as operating.md says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.client import (
    ConsumerConfig,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
)
from tests.eventually import eventually
from tests.faults.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.extended]

COPIED, LOST, NEW = range(8), range(8, 16), range(16, 26)


def send(nameserver: str, numbers: range) -> None:
    with Producer(nameserver, "PG") as producer:
        for number in numbers:
            eventually(lambda text=b"%d" % number: producer.send(Message("T", text)), "a broker")  # type: ignore[misc]


def listen(received: list[int]) -> Callable[[list[MessageExt]], None]:
    return lambda messages: received.extend(int(message.body) for message in messages)


def test_consumers_skip_nothing_after_their_store_was_restored(tmp_path: Path) -> None:
    """The restored store gets more messages than were lost before the consumers connect again."""
    broker = StandaloneProcess(tmp_path / "stores", ("--broker", "default_topic_queues=1"))
    received: dict[str, list[int]] = {"push": [], "ordered": [], "broadcasting": [], "pull": []}
    with ExitStack() as stack:
        stack.callback(lambda: broker.stop())
        send(broker.nameserver, COPIED)
        for kind in ("push", "ordered", "broadcasting"):
            config = PushConfig(
                nameservers=broker.nameserver, group=kind, consume_from="earliest", ordered=kind == "ordered",
                message_model="broadcasting" if kind == "broadcasting" else "clustering",
                local_offset_dir=str(tmp_path / "offsets"),
            )  # fmt: skip
            consumer = stack.enter_context(PushConsumer(listener=listen(received[kind]), config=config))
            consumer.subscribe("T")
        pull = stack.enter_context(
            PullConsumer(config=ConsumerConfig(nameservers=broker.nameserver, group="pull"))
        )
        pull.subscribe("T")

        def all_have(numbers: range) -> bool:
            listen(received["pull"])(pull.poll(timeout_ms=10))
            return all(set(numbers) <= set(each) for each in received.values())

        eventually(lambda: all_have(COPIED), "the first messages")
        broker.stop()
        copy = shutil.copytree(tmp_path / "stores" / "broker-a-0", tmp_path / "copy")
        broker.start()
        send(broker.nameserver, LOST)
        eventually(lambda: all_have(LOST), "the messages that are lost later")
        broker.stop()
        shutil.rmtree(tmp_path / "stores" / "broker-a-0")
        shutil.move(copy, tmp_path / "stores" / "broker-a-0")
        elsewhere = StandaloneProcess(tmp_path / "stores")
        send(elsewhere.nameserver, NEW)
        elsewhere.stop()
        broker.start()
        eventually(lambda: all_have(NEW), f"the new messages: {received}")
