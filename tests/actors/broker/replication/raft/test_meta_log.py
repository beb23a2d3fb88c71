"""A leader writes full sets of its tables, with the ends of all queues, at the right time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.broker.core.table_names import RESET, TOPIC
from actors.broker.replication.raft.group_tables import GroupTables
from actors.broker.replication.raft.meta_log import MetaLog
from store.common.clock import SystemClock
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from tests.sim.store_tables import SimTopics

FILE_BYTES = 8192


class Leader:
    """A leader whose records are all confirmed."""

    def __init__(self, root: Path) -> None:
        self.tables, self.topics = GroupTables(), SimTopics()
        self.store = MessageStore.open(
            root, StoreSettings(commit_log_file_bytes=FILE_BYTES, preallocate=False),
            StoreIdentity("DefaultCluster", "broker-a", 0), SystemClock(), sinks=(self.tables,),
        )  # fmt: skip
        self.meta = MetaLog(self.store, self.tables, {TOPIC: self.topics}, lambda: True)
        self.meta.take_over()

    def send(self, topic: str, count: int, size_bytes: int = 10) -> None:
        for _ in range(count):
            self.store.append(RecordDraft(topic, 0, bytes(size_bytes)))

    def dispatch(self) -> None:
        self.store.flush_now()
        self.store.dispatch_now()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "store")
    yield made
    made.store.close()


def test_full_set_waits_for_the_deletion_of_a_topic(leader: Leader) -> None:
    """Else it would have the ends of the deleted queues, and create them again."""
    leader.topics.put("T", {})
    leader.meta.changed(TOPIC, "T")
    leader.send("T", 3)
    leader.send("Other", 3, 4000)
    leader.dispatch()
    leader.topics.put("T", None)
    leader.meta.changed(TOPIC, "T")
    asyncio.run(leader.meta.turn())
    leader.dispatch()
    assert leader.tables.full_from == 0
    asyncio.run(leader.meta.turn())
    leader.dispatch()
    assert leader.tables.full_from > FILE_BYTES
    assert (leader.store.max_offset("T", 0), leader.store.max_offset("Other", 0)) == (0, 3)


def test_next_leader_writes_a_full_set_although_its_log_has_one(leader: Leader) -> None:
    """The last one may have had none any more when a replica began to copy its log."""
    leader.send("Other", 3, 4000)
    leader.dispatch()
    asyncio.run(leader.meta.turn())
    leader.dispatch()
    first = leader.tables.full_from
    assert first > 0
    asyncio.run(leader.meta.turn())
    leader.dispatch()
    assert leader.tables.full_from == first
    leader.meta.resign()
    leader.meta.take_over()
    leader.dispatch()
    assert leader.tables.full_from > first


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leader_keeps_resets_for_the_next_pull(leader: Leader, leads: bool) -> None:
    """A pull at another replica must not take them."""
    resets, copied = SimTopics(), SimTopics()
    resets.put("T@CG", [[0, 5]])
    log = MetaLog(leader.store, leader.tables, {RESET: resets}, lambda: True)
    log.take_over()
    assert log.log([(RESET, "T@CG")]) is None
    leader.dispatch()
    MetaLog(leader.store, GroupTables(), {RESET: copied}, lambda: leads)
    assert copied.all() == ({"T@CG": [[0, 5]]} if leads else {})
