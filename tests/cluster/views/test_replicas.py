"""The replicas of a broker as the console and `raymq broker list` show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from cluster.client import Admin
from cluster.views.brokers import BrokerView, list_brokers
from cluster.views.samples import ClusterState, take_sample
from store.common.clock import SystemClock
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.cluster.client.conftest import Cluster
from tests.eventually import eventually, eventually_async


def views(address: str) -> list[BrokerView]:
    with Admin(address) as admin:
        return list_brokers(admin, SystemClock())


def test_replicas_of_a_raft_group_show_role_term_lag_and_sync(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"x")
            address = group.nameserver

            async def are_in_sync() -> bool:
                found = [each.replica for each in await asyncio.to_thread(views, address) if each.replica]
                return len(found) == 3 and sum(each.is_in_sync is True for each in found) == 2

            await eventually_async(are_in_sync)
            found = await asyncio.to_thread(views, address)
            states = [each.replica for each in found]
            assert all(state is not None for state in states)
            numbers = [state.number for state in states if state]
            assert (numbers[0], sorted(numbers)) == (leader, [0, 1, 2])
            term = found[0].load.raft_term if found[0].load else None
            assert [state.term for state in states if state] == [term] * 3
            texts = [state.role for state in states if state]
            assert texts == [f"leader, term {term}"] + [f"follower, term {term}, 0 B behind, in sync"] * 2
            assert asdict(found[1])["replica"]["lag_bytes"] == 0

    run(story)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """A master with a slave, and another broker without."""
    made = Cluster(tmp_path, brokers=0)
    made.start_broker("a", replication="async")
    made.start_broker("b")
    made.start_broker("slave", broker_name="a", role="slave", replica=1)
    yield made
    made.stop()


def test_slaves_show_their_lag_and_replicas_that_do_not_respond_their_problem(pair: Cluster) -> None:
    eventually(lambda: len(views(pair.address)) == 3)
    eventually(lambda: any(each.replica and each.replica.is_in_sync for each in views(pair.address)))
    master, slave, single = views(pair.address)
    assert (master.replica and master.replica.role, single.replica) == ("master", None)
    assert slave.replica is not None
    assert (slave.id, slave.replica.number, slave.load) == (2, 1, None)
    assert slave.replica.role == "slave, 0 B behind, in sync"
    with Admin(pair.address) as admin:
        before = take_sample(admin, SystemClock(), ClusterState())
        pair.stop_broker("slave")
        after = take_sample(admin, SystemClock(), before)
    assert [problem for problem in after.problems if "a (id 2)" in problem]
