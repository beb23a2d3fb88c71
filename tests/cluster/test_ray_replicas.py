"""A master and its slaves on Ray: rolling restart and promotion lose nothing and keep the logs equal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.replica_group import Group, send, send_all, stopping_ray

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    with stopping_ray(Group(tmp_path, replicas=2)) as started:
        yield started


@pytest.fixture
def asynchronous(tmp_path: Path) -> Iterator[Group]:
    with stopping_ray(Group(tmp_path, 2, "async")) as started:
        yield started


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Group]:
    with stopping_ray(Group(tmp_path, replicas=3)) as started:
        yield started


def test_rolling_restart_begins_with_the_slave_and_loses_nothing(pair: Group) -> None:
    pair.run("up")
    sent: list[bytes] = []
    with pair.producer() as producer:
        send(producer, sent)
        lines = pair.run("restart", "--rolling", "--no-wait", "--topology").splitlines()
        send(producer, sent)
    found = [line.split(" (")[0] for line in lines if "broker-a" in line]
    first, synced, last = (
        next(index for index, line in enumerate(found) if text in line)
        for text in ("stopped broker-a-1", "broker-a-1 is in sync", "stopped broker-a-0")
    )
    assert first < synced < last, found
    pair.await_all(sent)
    pair.run("down")
    assert pair.log(0) == pair.log(1)


def test_single_broker_becomes_a_pair_and_a_single_broker_again(pair: Group) -> None:
    of_pair, of_single = pair.file.read_text(), pair.start_single()
    sent: list[bytes] = []
    with pair.producer() as producer:
        send_all(producer, sent)
        pair.file.write_text(of_pair)
        pair.run("up")
        send_all(producer, sent)  # refused until the slave of the restarted master has connected
        last_of_pair = sent[-1]
        pair.file.write_text(of_single)
        assert "broker-a-1" in pair.run("up", "--prune")
        send_all(producer, sent)
    pair.await_all(sent)
    pair.run("down")
    copied = pair.log(1).rstrip(b"\0")
    assert last_of_pair in copied
    assert pair.log(0).startswith(copied)


def test_promoted_slave_has_every_acknowledged_message_of_a_killed_master(pair: Group) -> None:
    pair.run("up")
    sent: list[bytes] = []
    with pair.producer() as producer:
        send(producer, sent)
        assert "broker-a-1 has the log of broker-a up to" in pair.run(
            "promote", "broker-a-1", "--dry-run", "--topology"
        )
        os.kill(pair.pid("broker-a-0"), signal.SIGKILL)
        shown = pair.run("promote", "broker-a-1", "--yes", "--topology")
        assert "broker-a-1 is the master of broker-a" in shown
        assert "broker-a-0 follows it" in shown
        send(producer, sent)
    pair.await_all(sent)
    pair.run("down")
    pair.run("up")  # the promotion is remembered
    pair.await_all(sent, "again")
    pair.run("down")
    assert pair.log(0) == pair.log(1)


def test_all_slaves_follow_a_promoted_replica_of_three(three: Group) -> None:
    """The second promotion is interrupted after it was recorded, and finished by `raymq up`."""
    three.run("up")
    sent: list[bytes] = []
    with three.producer() as producer:
        send(producer, sent)
        three.await_log_of_master("broker-a-1", "broker-a-2")
        os.kill(three.pid("broker-a-0"), signal.SIGKILL)
        shown = three.run("promote", "broker-a-1", "--yes", "--topology")
        assert "broker-a-0 follows it" in shown
        assert "broker-a-2 follows it" in shown
        send(producer, sent)

        (three.home / "groups" / "broker-a.json").write_text('{"epoch": 2, "replica": 2}')
        lines = three.run("up").splitlines()
        stopped = [line.split()[1] for line in lines if line.startswith("stopped broker-a")]
        assert stopped == ["broker-a-1", "broker-a-2", "broker-a-0"], lines
        assert "broker-a-0 is in sync with its master" in lines
        send(producer, sent)
    three.await_all(sent)
    three.await_log_of_master("broker-a-0", "broker-a-1")
    assert three.status("broker-a-2")["role"] == "master"
    three.run("down")
    assert three.log(0) == three.log(1) == three.log(2)


def test_diverged_former_master_copies_the_log_again_after_a_resync(asynchronous: Group) -> None:
    group = asynchronous
    group.run("up")
    with group.producer() as producer:
        send(producer, [], 20)
        group.await_log_of_master("broker-a-1")
        slow = ("--set", "ha_max_bytes_per_s=1", "-n", group.nameserver)
        group.raymq("broker", "config", "broker-a", *slow)
        lost: list[bytes] = []
        send(producer, lost)
        shown = group.run("promote", "broker-a-1", "--yes", "--topology")
        assert "broker-a-0 does not follow it: stopped" in shown
        send(producer, [])
    found = group.status("broker-a-0")
    assert found["state"] == "failing"
    assert "raymq replica resync" in found["reason"]
    assert "stopped broker-a-0" in group.run("drain", "broker-a-0", "--topology")
    done = json.loads(group.raymq("replica", "resync", found["store"], "--yes"))
    where = (done["directory"], "--from-position", str(done["position"]))
    lines = group.raymq("store", "messages", *where).splitlines()
    assert 0 < len(lines) == done["messages"]
    assert {json.loads(line)["body"].encode() for line in lines} <= set(lost)
    group.run("up")
    group.await_log_of_master("broker-a-0")
    group.run("down")
    assert group.log(0) == group.log(1)
