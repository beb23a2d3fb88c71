"""A Raft group on Ray: three replicas as actors elect their master, and keep every acknowledged message."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.session.ray_head import stop_head
from tests.cluster.replica_group import Group, send_all
from tests.eventually import eventually

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]

REPLICAS = range(3)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    try:
        yield Group(tmp_path, 3, "raft")
    finally:
        stop_head(tmp_path)


def leader(group: Group) -> str:
    """Wait until one of the replicas leads and serves; return its actor."""

    def found() -> list[str]:
        return [each["actor"] for each in group.actors() if each["role"] == "leader" and is_master(each)]

    return eventually(found, "a leader")[0]


def is_master(actor: dict[str, Any]) -> bool:
    """Return True if the replica accepts sends."""
    return bool(actor["details"]["role"] == "master")


def ids(group: Group) -> list[bytes]:
    stores = [group.home / "store" / f"broker-a-{replica}" / "raymq.json" for replica in REPLICAS]
    return [store.read_bytes() for store in stores if store.exists()]


def test_group_keeps_its_members_over_restarts_of_all_kinds(group: Group) -> None:
    group.run("up")
    stores = ids(group)
    sent: list[bytes] = []
    with group.producer() as producer:
        send_all(producer, sent)
        assert "broker-a-0 serves" not in group.run("up")
        first = leader(group)

        lines = group.run("restart", "--rolling", "--no-wait", "--topology").splitlines()
        stopped = [line.split()[1] for line in lines if line.startswith("stopped broker-a")]
        assert len(stopped) == len(REPLICAS)
        assert stopped[-1] == first
        send_all(producer, sent)

        os.kill(group.pid(leader(group)), signal.SIGKILL)  # Ray restarts it with the same members
        send_all(producer, sent)
        eventually(group.serves, "all replicas serve")
        group.run("down")
        group.run("up")
        send_all(producer, sent)
    group.await_all(sent)
    assert ids(group) == stores
    group.run("down")


def test_replica_that_has_lost_its_disk_fails_by_name_and_the_others_serve(group: Group) -> None:
    group.run("up")
    sent: list[bytes] = []
    with group.producer() as producer:
        send_all(producer, sent)
        lost = "broker-a-1"
        pid = group.pid(lost)
        shutil.rmtree(group.home / "store" / lost)
        os.kill(pid, signal.SIGKILL)
        send_all(producer, sent)
    missing = "has no store, but raft_members names store"
    eventually(lambda: missing in group.status(lost)["reason"], "the reason of the failed replica")
    assert "has no store, but" in group.run("up", code=1)
    assert not (group.home / "store" / lost / "raymq.json").exists()
    group.await_all(sent)
    group.run("down")
