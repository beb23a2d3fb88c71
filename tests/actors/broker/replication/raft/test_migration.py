"""The store of a single broker becomes a Raft group and a single broker's again, with all of its tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.raft.conversion import bootstrap_group, leave_group
from actors.raft.members import Member
from actors.wire.codes import RequestCode, ResponseCode
from cluster.control.new_stores import NewStore, create_joining_stores
from store.ownership.identity import StoreIdentity, read_name
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, run, settings_of
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies, log_of
from tests.actors.broker.replication.raft.test_member_change import added, changed, removed
from tests.actors.broker.replication.raft.test_tables_of_group import (
    commit,
    create_group,
    create_topic,
    tables,
)
from tests.eventually import eventually_async

pytestmark = pytest.mark.extended
COUNT = 3


class Migrated(Group):
    """A broker with a store of its own, which becomes replica 0 of a group and a single broker again."""

    _groups = 0
    """How many groups it has become."""

    async def __aenter__(self) -> Migrated:
        await self._nameserver.start()
        return self

    async def start_single(self) -> Peer:
        made = settings_of(
            self._root / "0", self._store, vip_channel=False, nameservers=self._nameserver.address
        )
        self.settings = [BrokerSettings.model_validate({**made.model_dump(), "listen_port": self._ports[0]})]
        await self.start(0)
        return self.peers[0]

    async def start_group(self) -> None:
        """Convert the store, and start replica 0, which leads, and the others, which are added."""
        root = self.settings[0].store_root
        first = read_name(root)
        assert first is not None
        bootstrap_group(root, first.identity)
        self._groups += 1
        ids = [first.store_id, *(f"store-{self._groups}-{number}" for number in range(1, COUNT))]
        self.settings = [self._settings_of(0, ids)]
        await self.start(0)
        await eventually_async(lambda: self.figure(0, "role") == "master")
        for number in range(1, COUNT):
            made = self._settings_of(number, ids)
            made = made.model_copy(update={"store_root": self._root / f"{number}-{self._groups}"})
            self.settings.append(made)
            self.create(made, ids[number])
            await self.start(number)
            await changed(self, **added(self, Member(number, ids[number])))

    def create(self, made: BrokerSettings, store_id: str) -> None:
        identity = StoreIdentity(made.cluster_name, made.broker_name, made.replica)
        settings = made.store.model_dump(mode="json", exclude_unset=True)
        assert create_joining_stores([NewStore(str(made.store_root), identity, settings, store_id)]) == []

    async def leave(self) -> None:
        for number in range(1, COUNT):
            await changed(self, **removed(self.member(number)))
            await self.stop(number)
        await self.stop(0)
        made = self.settings[0]
        with pytest.raises(StoreError, match="belongs to a replica of a Raft group"):
            await self.start_single()
        leave_group(made.store_root, StoreIdentity(made.cluster_name, made.broker_name))

    def member(self, number: int) -> Member:
        return Member(number, self.figure(number, "store_id"))


def test_store_keeps_log_and_tables_through_group_single_and_group(tmp_path: Path) -> None:
    async def delete_topic(peer: Peer, name: str) -> None:
        response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
        assert response.code == ResponseCode.SUCCESS, response.remark

    async def story() -> None:
        async with Migrated(tmp_path) as group:
            single = await group.start_single()
            for ask in (
                partial(create_topic, name="kept", queues=7),
                partial(create_topic, name="gone", queues=2),
                partial(create_group, name="audit"),
            ):
                assert (await ask(single)).code == ResponseCode.SUCCESS
            for body in (b"one", b"two", b"three"):
                await group.send(body, [0])
            await commit(single, "audit", "T", 1)
            assert tables(group, 0)["offsets"]["T@audit"] == {0: 1}
            before = log_of(group, 0)
            await group.stop(0)

            await group.start_group()
            assert log_of(group, 0).startswith(before)
            wanted = tables(group, 0)
            assert wanted["offsets"]["T@audit"] == {0: 1}
            for each in (1, 2):
                await eventually_async(lambda each=each: tables(group, each) == wanted)  # type: ignore[misc]
            await group.send(b"four", [0])
            await commit(group.peers[0], "audit", "T", 2)
            await eventually_async(lambda: tables(group, 1)["offsets"]["T@audit"] == {0: 2})
            await group.leave()

            single = await group.start_single()
            assert await bodies(group, 0) == [b"one", b"two", b"three", b"four"]
            assert tables(group, 0)["offsets"]["T@audit"] == {0: 2}
            await delete_topic(single, "gone")
            await create_topic(single, "kept", 3)
            await group.send(b"five", [0])
            await commit(single, "audit", "T", 5)
            await group.stop(0)

            await group.start_group()
            wanted = tables(group, 0)
            assert wanted["offsets"]["T@audit"] == {0: 5}
            assert "gone" not in wanted["topics"]
            for each in (1, 2):
                await eventually_async(lambda each=each: tables(group, each) == wanted)  # type: ignore[misc]
            await group.stop(0)
            leader = await group.send(b"six", [1, 2])
            assert await bodies(group, leader) == [b"one", b"two", b"three", b"four", b"five", b"six"]
            assert tables(group, leader)["topics"] == wanted["topics"]

    run(story)
