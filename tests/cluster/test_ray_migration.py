"""`raymq migrate` on Ray: a single broker and a pair become Raft groups, and a group a single broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.raft.bound_file import write_bound
from cluster.client import Admin, Message, PullConsumer
from tests.checkers import Recorder
from tests.cluster.conftest import REPO
from tests.cluster.replica_group import Group, send_all, stopping_ray
from tests.eventually import eventually
from tests.faults.test_processes import Load

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]
MIGRATE = ("migrate", "broker-a", "--yes", "--topology")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with stopping_ray(Group(tmp_path, 3, "raft")) as started:
        yield started


def read(group: Group, is_enough: Callable[[set[bytes]], bool]) -> set[bytes]:
    """Consume as group G until what was received is enough, and commit the offsets."""
    received: set[bytes] = set()
    with PullConsumer(group.nameserver, "G") as consumer:
        consumer.subscribe("T")
        while not is_enough(received):
            received |= {message.body for message in consumer.poll(10, 1000)}
    return received


def delayed(group: Group, sent: list[bytes], delay_s: float) -> None:
    """Send a message of a delay level and one of the timer, which are delivered later."""
    with group.producer() as producer:
        for number, keys in enumerate(({"delay_level": 4}, {"delay_ms": int(delay_s * 1000)})):
            body = b"delayed %d of %d" % (number, len(sent))
            producer.send(Message("T", body, **keys))
            sent.append(body)


def migrate(group: Group, load: Load) -> float:
    """Migrate under load; return the longest time between two acknowledged sends, in seconds."""
    over = threading.Event()
    longest = [0.0]

    def watch() -> None:
        seen, since_s = load.acknowledged, time.monotonic()
        while not over.wait(0.02):
            if load.acknowledged != seen:
                longest.append(time.monotonic() - since_s)
                seen, since_s = load.acknowledged, time.monotonic()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        group.run(*MIGRATE)
        seen = load.acknowledged
        eventually(lambda: load.acknowledged > seen + 20, "sends after")
    finally:
        over.set()
        thread.join()
    return max(longest)


def becomes_a_group(group: Group, raft: str, sent: list[bytes]) -> float:
    """Migrate a broker; return the longest time without an acknowledged send, in seconds."""
    pid = group.pid("broker-a-0")
    group.file.write_text(raft)
    assert "raymq migrate broker-a" in group.run("up", code=2)
    shown = group.run("migrate", "broker-a", "--dry-run", "--topology")
    assert "broker-a becomes a Raft group" in shown
    assert group.status("broker-a-0")["role"] is None
    delayed(group, sent, 40)
    with Load(group.nameserver, Recorder()) as load:
        eventually(lambda: load.acknowledged > 20, "sends before")
        before = group.log(0).rstrip(b"\0")
        longest_s = migrate(group, load)
    assert not load.errors
    assert group.log(0).startswith(before)
    assert group.leader()
    assert group.pid("broker-a-0") == pid
    assert "broker-a-0 serves" not in group.run("up")  # nothing is left to be done
    assert "is a Raft group" in group.run(*MIGRATE)
    return longest_s


def becomes_a_broker(group: Group, alone: str) -> float:
    """Migrate a group; return the longest time without an acknowledged send, in seconds."""
    eventually(group.serves, "all replicas serve")
    group.file.write_text(alone)
    if group.leader() != "broker-a-0":
        assert "raymq transfer broker-a --to 0" in group.run(*MIGRATE, code=2)
        group.transfer_to_first()
    pid = group.pid("broker-a-0")
    with Load(group.nameserver, Recorder()) as load:
        longest_s = migrate(group, load)
    assert not load.errors
    assert group.pid("broker-a-0") == pid
    os.kill(pid, signal.SIGKILL)  # a new process has the settings of the single broker, too
    eventually(group.serves, "the broker after a kill")
    assert [each["actor"] for each in group.actors() if "broker" in each["actor"]] == ["broker-a-0"]
    return longest_s


def kill_the_leader(group: Group, sent: list[bytes]) -> list[str]:
    """Kill the leader; return the topics of the next one."""
    os.kill(group.pid(group.leader()), signal.SIGKILL)
    group.send_all(sent)
    with Admin(group.nameserver) as admin:
        return admin.topics()


def test_broker_becomes_a_group_and_a_broker_and_a_group_again(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    raft, alone = group.file.read_text(), group.start_single()
    sent: list[bytes] = []
    group.send_all(sent)
    seen = read(group, lambda received: len(received) >= 50)
    with Admin(group.nameserver) as admin:
        admin.create_topic("kept", queues=3)
        admin.create_topic("deleted-later", queues=3)
    to_group_s = becomes_a_group(group, raft, sent)
    assert "kept" in kill_the_leader(group, sent)
    seen |= read(group, lambda received: received >= set(sent) - seen)

    to_broker_s = becomes_a_broker(group, alone)
    group.send_all(sent)
    with Admin(group.nameserver) as admin:
        admin.delete_topic("deleted-later")
    seen |= read(group, lambda received: len(received) >= 50)

    group.file.write_text(raft)
    group.run(*MIGRATE)
    topics = kill_the_leader(group, sent)
    assert "kept" in topics
    assert "deleted-later" not in topics
    read(group, lambda received: received >= set(sent) - seen)
    group.await_all(sent, "all")
    eventually(group.serves, "all replicas serve")
    with capsys.disabled():
        print(f"\nno send acknowledged for {to_group_s:.1f} s and {to_broker_s:.1f} s")  # noqa: T201
    group.run("down")
    group.run("up")
    group.send_all(sent)
    group.run("down")


def kill_migration_after(group: Group, text: str) -> None:
    """Begin to migrate, and kill the command (SIGKILL) when it has reported a step."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.cli.main", *MIGRATE, str(group.file)],
        env=group.environment | {"PYTHONUNBUFFERED": "1"}, cwd=REPO, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as lines:
        reported = any(text in line for line in lines)
    process.kill()
    process.wait()
    assert reported, f"the migration has not reported {text!r}"


def test_migration_that_is_killed_is_finished_by_the_same_command(group: Group) -> None:
    """It is killed when the broker is stopped, when the group has its first member, and on the way back."""
    raft, alone = group.file.read_text(), group.start_single()
    sent: list[bytes] = []
    group.send_all(sent)
    group.file.write_text(raft)
    kill_migration_after(group, "stopped broker-a-0")
    kill_migration_after(group, "broker-a-0 leads the group, alone")
    assert "continue with `raymq migrate broker-a`" in group.run("up", code=2)
    group.send_all(sent)
    assert "broker-a is a Raft group of 3 replicas" in group.run(*MIGRATE)
    eventually(group.serves, "all replicas serve")

    group.transfer_to_first()
    group.send_all(sent)
    group.file.write_text(alone)
    kill_migration_after(group, "removing replica 2")
    kill_migration_after(group, "stopped broker-a-2")
    assert "broker-a is a single broker" in group.run(*MIGRATE)
    group.send_all(sent)
    group.await_all(sent)
    group.run("down")


def test_pair_becomes_a_group(group: Group) -> None:
    raft = group.file.read_text()
    group.file.write_text(group.topology(replication="sync", replicas=2, in_sync_replicas=2))
    group.run("up")
    sent: list[bytes] = []
    with group.producer() as producer:
        send_all(producer, sent)
        group.await_log_of_master("broker-a-1")
        before = group.log(0).rstrip(b"\0")
        group.file.write_text(raft)
        group.run(*MIGRATE)
        send_all(producer, sent)
    assert group.log(0).startswith(before)
    assert (group.home / "store" / "broker-a-1.before-group-1" / "commitlog").is_dir()
    group.await_all(sent)
    eventually(lambda: all(each["lag_bytes"] in (0, None) for each in group.actors()), "all logs")
    os.kill(group.pid("broker-a-0"), signal.SIGKILL)
    group.send_all(sent)
    group.await_all(sent, "again")
    group.run("down")


@pytest.mark.parametrize("is_log_lost", [True, False], ids=["log-lost", "certificate-missing"])
def test_group_that_cannot_start_leaves_the_old_broker_running(group: Group, is_log_lost: bool) -> None:
    """Its service starts in the process of the old broker, but does not lead; or it does not start."""
    raft = group.file.read_text()
    alone = group.start_single()
    sent: list[bytes] = []
    with group.producer() as producer:
        send_all(producer, sent)
        group.file.write_text(raft)
        missing = str(group.home / "missing.pem")
        if is_log_lost:
            write_bound(group.home / "store" / "broker-a-0", 1 << 40)
        else:
            certificate = {"tls": "permissive", "tls_certificate": missing, "tls_key": missing}
            group.file.write_text(group.topology(settings=certificate))
        shown = group.run(*MIGRATE, code=1)
        assert ("does not lead its group" if is_log_lost else missing) in shown
        assert "starting broker-a-0 again with the former settings" in shown
        group.file.write_text(alone)
        assert "already running" in group.run("up")
        send_all(producer, sent)
    group.await_all(sent)
    assert not (group.home / "raft-groups" / "broker-a.json").exists()
    group.run("down")
