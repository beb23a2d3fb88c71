"""A cluster of one broker whose store a test replaces by an older copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from cluster.client import Admin, Producer
from tests.jobs.conftest import ClusterThread
from tests.ports import free_port

TOPIC = "restored"


class RestoredBroker:
    """A broker with one queue of TOPIC; its ports remain the same."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ports = {"nameserver_port": free_port(), "broker_port": free_port(1, -2)}
        self._store = root / "stores" / "broker-a-0"
        self.start()
        with Admin(self.nameservers) as admin:
            admin.create_topic(TOPIC, queues=1)

    def start(self) -> None:
        self.running = ClusterThread(self._root / "stores", brokers=1, **self._ports)
        self.nameservers = self.running.cluster.nameserver_address

    def send(self, *numbers: int) -> None:
        with Producer(self.nameservers) as producer:
            for number in numbers:
                producer.send(TOPIC, b"%06d" % number)

    def copy(self) -> None:
        """Restart the broker, and copy its store meanwhile."""
        self.running.stop()
        shutil.copytree(self._store, self._root / "copy")
        self.start()

    def restore(self) -> None:
        """Restart the broker with the copy."""
        self.running.stop()
        shutil.rmtree(self._store)
        shutil.move(self._root / "copy", self._store)
        self.start()
