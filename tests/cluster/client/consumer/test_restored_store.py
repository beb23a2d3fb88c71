"""Consumers stay up while the store of their broker is replaced by an older copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from actors.broker.broker_settings import BrokerSettings
from cluster.client import ConsumerConfig, MessageExt, PullConsumer, PushConfig, PushConsumer
from tests.actors.broker.brokers import Peer, run, serving
from tests.cluster.client.conftest import SMALL_STORE, Cluster
from tests.eventually import eventually

COPIED, LOST, NEW = range(4), range(4, 8), range(8, 14)
KINDS = ("push", "ordered", "broadcasting")
STOPPED = "stopped-broadcasting"


class Restored:
    """A broker of a cluster, whose store a test replaces."""

    def __init__(self, cluster: Cluster, root: Path, topic: str) -> None:
        self.cluster = cluster
        self._store = root / "a"
        self._copy = root / "copy"
        self._topic = topic

    def send(self, numbers: range) -> None:
        """Send messages while the broker is stopped, so that no consumer is connected."""
        settings = BrokerSettings(
            broker_name="a",
            listen_port=0,
            store_root=self._store,
            store=SMALL_STORE,
        )

        async def story() -> None:
            async with serving(settings) as peer:
                await send_all(peer)

        async def send_all(peer: Peer) -> None:
            for number in numbers:
                assert (await peer.send(self._topic, b"%d" % number)).code == 0

        self.cluster.stop_broker("a")
        run(story)

    def keep(self) -> None:
        shutil.copytree(self._store, self._copy)

    def restore(self) -> None:
        shutil.rmtree(self._store)
        shutil.move(self._copy, self._store)


def test_consumers_skip_nothing_after_their_store_was_restored(
    clusters: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The restored store gets more messages than were lost before the consumers connect again.

    A consumer that keeps its offsets in a file is stopped meanwhile.
    """
    cluster = clusters(brokers=1)
    topic = cluster.topic(queues=1)
    broker = Restored(cluster, tmp_path / "0", topic)
    received: dict[str, list[int]] = {kind: [] for kind in (*KINDS, STOPPED, "pull", "arrow")}

    def listener(kind: str) -> Callable[[list[MessageExt]], None]:
        return lambda messages: received[kind].extend(int(each.body) for each in messages)

    def config(kind: str) -> PushConfig:
        return PushConfig(
            nameservers=cluster.address, group=kind, consume_from="earliest", ordered=kind == "ordered",
            message_model="broadcasting" if kind.endswith("broadcasting") else "clustering",
            local_offset_dir=str(tmp_path / "offsets"),
        )  # fmt: skip

    def opened(kind: str) -> PushConsumer:
        consumer = PushConsumer(listener=listener(kind), config=config(kind))
        consumer.subscribe(topic)
        return consumer

    pushing, stopped = [opened(kind) for kind in KINDS], opened(STOPPED)
    pull, arrow = (
        PullConsumer(config=ConsumerConfig(nameservers=cluster.address, group=kind))
        for kind in ("pull", "arrow")
    )

    def all_have(numbers: range) -> bool:
        received["pull"] += (int(each.body) for each in pull.poll(timeout_ms=10))
        received["arrow"] += map(int, arrow.poll_arrow(timeout_ms=10).column("body").to_pylist())
        return all(set(numbers) <= set(each) for each in received.values())

    with ExitStack() as stack:
        for consumer in (*pushing, pull, arrow):
            stack.enter_context(consumer)
        pull.subscribe(topic)
        arrow.subscribe(topic)
        broker.send(COPIED)
        broker.keep()
        cluster.start_broker("a")
        eventually(lambda: all_have(COPIED), "the messages of the copy")
        broker.send(LOST)
        cluster.start_broker("a")
        eventually(lambda: all_have(LOST), "the messages that are lost later")
        cluster.stop_broker("a")
        stopped.close()
        broker.restore()
        cluster.start_broker("a")
        broker.send(NEW)
        stack.enter_context(opened(STOPPED))
        cluster.start_broker("a")
        eventually(lambda: all_have(NEW), "the new messages")
    assert all(each.count(number) == 1 for each in received.values() for number in NEW)
