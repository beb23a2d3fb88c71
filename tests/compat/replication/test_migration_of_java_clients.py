"""Java clients with default settings continue while their broker becomes a Raft group, and a broker again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cluster.client import Admin
from tests.background import Background
from tests.cluster.replica_group import Group, stopping_ray
from tests.compat.agent import Agent, Facts
from tests.compat.build import CLIENT, JavaKit
from tests.eventually import eventually

pytestmark = [pytest.mark.ray, pytest.mark.java, pytest.mark.slow, pytest.mark.extended]

DEFAULTS = ("-Dcompat.routeMs=30000", "-Dcompat.timeoutMs=3000")
MIGRATE = ("migrate", "broker-a", "--yes", "--topology")


class Sends(Background):
    """Sends of a Java producer, one after another, in a thread."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = agent
        self.sent = 0
        self.places: set[tuple[int, int]] = set()
        """The queue ids and offsets of the acknowledged messages."""
        self.failed: list[Facts] = []
        self.longest_s = 0.0
        """The longest time between two acknowledged sends."""

    def run(self) -> None:
        acknowledged_s = time.monotonic()
        while not self.is_over.wait(0.02):
            (result,) = self._agent.send([{"topic": "T", "body": "x"}])
            if result.get("status") == "SEND_OK":
                now_s = time.monotonic()
                self.longest_s = max(self.longest_s, now_s - acknowledged_s)
                self.sent, acknowledged_s = self.sent + 1, now_s
                self.places.add(place_of(result))
            else:
                self.failed.append(result)

    def more(self) -> None:
        """Wait for further acknowledged sends."""
        end = self.sent + 50
        eventually(lambda: self.sent >= end, "sends")


def place_of(message: Facts) -> tuple[int, int]:
    return message["queueId"], message["queueOffset"]


def received(reader: Agent) -> list[tuple[int, int]]:
    return [place_of(each) for each in reader.received("reader", 1)]


def test_default_clients_continue_after_each_migration(
    kit: JavaKit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumer gets each acknowledged message once."""
    sent: set[tuple[int, int]] = set()
    with stopping_ray(Group(tmp_path, 3, "raft")) as group:
        raft, alone = group.file.read_text(), group.start_single()
        with Admin(group.nameserver) as admin:
            admin.create_topic("T", queues=4)
        with (
            Agent(kit, CLIENT, group.nameserver, tmp_path / "java", jvm=DEFAULTS) as agent,
            Agent(kit, CLIENT, group.nameserver, tmp_path / "reader", jvm=DEFAULTS) as reader,
        ):
            reader.call("push_start", name="reader", group="reader", topic="T")
            for direction, topology in (("to a group", raft), ("to a broker", alone)):
                group.file.write_text(topology)
                if topology is alone:
                    group.transfer_to_first()
                with Sends(agent) as sends:
                    sends.more()
                    sends.longest_s = 0.0  # the first send creates the producer
                    group.run(*MIGRATE)
                    sends.more()
                sent |= sends.places
                text = f"{direction}: {len(sends.failed)} of {len(sends.failed) + sends.sent:,} sends failed"
                with capsys.disabled():
                    print(f"{text}, none was acknowledged for {sends.longest_s:.1f} s")  # noqa: T201 - docs
            eventually(lambda: sent <= set(received(reader)), "all acknowledged messages")
            assert len(places := received(reader)) == len(set(places))
        group.run("down")
