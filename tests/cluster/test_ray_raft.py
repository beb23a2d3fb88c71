"""A Raft group on Ray: three replicas as actors elect their master, and keep every acknowledged message."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.client import PullConsumer
from store.tools.verify import verify
from tests.checkers import Recorder, assert_consistent
from tests.cluster.jumping_clocks import JumpingClocks
from tests.cluster.ray_storm import RayStorm
from tests.cluster.replica_group import Group, send_all, stopping_ray
from tests.eventually import NEVER_S, eventually
from tests.faults.node import BROKER
from tests.faults.standalone_process import paused
from tests.faults.storm_run import DURATION_S, print_seed, run_storm
from tests.faults.test_processes import TOPIC, Load, Reader, acknowledged

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]

REPLICAS = range(3)
FAULTS = {"leader": (0,), "follower": (1,), "leader and follower": (0, 1)}
"""Which processes are killed at once; 0 is the leader's."""
PAUSE_S = 30.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with stopping_ray(Group(tmp_path, 3, "raft", BROKER)) as started:
        yield started


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
        first = group.leader()

        lines = group.run("restart", "--rolling", "--topology").splitlines()
        moved = f"{first} has handed over the leadership; waiting 1 s until all clients know it"
        assert lines.index(moved) < lines.index(f"stopped {first}")
        stopped = [line.split()[1] for line in lines if line.startswith("stopped broker-a")]
        assert len(stopped) == len(REPLICAS)
        assert stopped[-1] == first
        send_all(producer, sent)

        os.kill(group.pid(group.leader()), signal.SIGKILL)  # Ray restarts it with the same members
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

    address = group.status(lost)["address"]
    group.run("up", "--join", lost)
    before = ids(group)
    replace = ("replica", "replace", "broker-a", "1", address, "--yes", "-n", group.nameserver)
    group.raymq(*replace)
    eventually(lambda: group.status(lost)["lag_bytes"] == 0, "the log of the new replica")
    with group.producer() as producer:
        send_all(producer, sent)
        os.kill(group.pid(group.leader()), signal.SIGKILL)
        send_all(producer, sent)
    eventually(group.serves, "all replicas serve")
    assert ids(group) == before
    assert "broker-a-1 serves" not in group.run("up")
    group.await_all(sent, "again")
    group.run("down")


def test_kills_and_pauses_of_replicas_under_load_lose_nothing(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kill −9 of the leader, of a follower and of two; SIGSTOP of the leader; the disk of one is deleted."""
    group.run("up")
    recorder = Recorder()
    outages_s: dict[str, float] = {}
    with PullConsumer(group.nameserver, group="over-kills") as consumer:
        consumer.subscribe(TOPIC)
        reader = Reader(consumer, recorder, "over-kills")
        with Load(group.nameserver, recorder) as sending:

            def outage_s(begin_s: float) -> float:
                """Return the seconds until a send is acknowledged that began after the fault."""
                sent = sending.acknowledged + 1
                eventually(lambda: sending.acknowledged > sent, "a send after the fault")
                return time.monotonic() - begin_s

            def wait() -> tuple[int, int, int]:
                """Read until all replicas serve and are level; return the processes, the leader's first."""
                seen = reader.poll()
                eventually(lambda: reader.poll() >= seen + 50, "messages")
                eventually(lambda: reader.poll() and group.serves(), "all replicas serve")
                found = sorted(replicas(group), key=lambda each: each["role"] != "leader")
                first, second, third = (int(each["process"]) for each in found)
                return first, second, third

            for name, faults in FAULTS.items():
                processes = wait()
                begin_s = time.monotonic()
                for number in faults:
                    os.kill(processes[number], signal.SIGKILL)
                outages_s[name] = outage_s(begin_s)
            with paused(wait()[0]):
                begin_s = time.monotonic()
                outages_s["pause of the leader"] = outage_s(begin_s)
                eventually(lambda: reader.poll() and time.monotonic() > begin_s + PAUSE_S, "30 s")
            _, follower, _ = wait()
            lost = next(each for each in replicas(group) if each["process"] == follower)
            shutil.rmtree(lost["store"])
            begin_s = time.monotonic()
            os.kill(follower, signal.SIGKILL)
            outages_s["disk of a follower"] = outage_s(begin_s)
            sent = sending.acknowledged
            eventually(lambda: reader.poll() and sending.acknowledged >= sent + 50, "sends to two of three")
        eventually(lambda: reader.poll() and reader.seen >= acknowledged(recorder), "every message")
        assert all(error.retriable for error in sending.errors), sending.errors
    with capsys.disabled():
        shown = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in outages_s.items())
        print(f"\n{sending.acknowledged:,} acknowledged, {len(sending.errors)} failed; outages: {shown}")  # noqa: T201 - the figures of docs/faults.md
    # Offsets of a group may fall back at another leader.
    assert_consistent(recorder.events, ignore=["not_sequential"])
    group.run("down")


@pytest.mark.flaky(reruns=0)
@pytest.mark.timeout(DURATION_S + NEVER_S)
def test_storm_of_faults_on_ray_loses_and_reorders_nothing(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `tests/faults/raft/test_storm_of_group.py`, and with lost disks, for a fifth of the time."""
    clocks = JumpingClocks(group.home / "clocks")
    group.environment |= clocks.environment
    group.run("up")
    seed, recorder = print_seed(), Recorder(group.home / "history")
    with RayStorm(group, clocks, recorder, random.Random(seed)) as storm:
        run_storm(storm, recorder, seed, lambda: storm.rage(DURATION_S / 5))
    with capsys.disabled():
        for name, outages_s in storm.outages_s.items():
            print(f"{name}: {', '.join(f'{each:.1f}' for each in outages_s)} s")  # noqa: T201 - the figures of docs/faults.md
        print(f"{len(storm.acknowledged):,} acknowledged")  # noqa: T201
    stores = [Path(each["store"]) for each in replicas(group)]
    group.run("down")
    for store in stores:
        assert verify(store).findings == []


def replicas(group: Group) -> list[dict[str, Any]]:
    """Return the replicas of the group as `raymq status` shows them."""
    return [each for each in group.actors() if each["role"] is not None]
