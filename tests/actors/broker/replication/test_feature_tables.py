"""A table of a feature reaches slaves and followers, which no line outside of the feature arranges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.broker.core.capability import Capability, Feature
from actors.broker.core.feature_table import FeatureTable
from store.dispatch.saved_sink import SavedSink
from tests.actors.broker.brokers import registered_broker, run, slave_of
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async
from tests.ports import free_port

GET_LIMITS = 9_002


class Records(SavedSink):
    """Counts the records of the log."""

    def __init__(self) -> None:
        super().__init__("records")
        self.count = 0

    def add(self, offset: int, record: memoryview) -> None:
        self.count += 1

    def state(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        self.count = state or 0


class Limits:
    """A feature with a table and a sink with state."""

    def __init__(self) -> None:
        self.table, self.records = FeatureTable("limit", GET_LIMITS, of_topics=True), Records()

    @property
    def feature(self) -> Feature:
        return Feature(
            lambda parts: Capability(),
            sinks=lambda root, settings: (self.records,),
            tables=(self.table,),
        )


def test_table_and_sink_of_a_feature_follow_the_master(tmp_path: Path) -> None:
    async def story() -> None:
        theirs, ours = Limits(), Limits()
        settings = {"replication": "async", "ha_listen_port": free_port()}
        async with (
            registered_broker(tmp_path, [theirs.feature], **settings) as (_, master),
            slave_of(master, tmp_path, features=[ours.feature]),
        ):
            theirs.table.put("T@CG", {"perSecond": 5})
            await eventually_async(lambda: ours.table.all() == {"T@CG": {"perSecond": 5}})
            theirs.table.put("T@CG", None)
            theirs.table.put("U@CG", 7)
            assert (await master.send("T", b"1")).code == 0
            await eventually_async(lambda: ours.table.all() == {"U@CG": 7})
            await eventually_async(lambda: ours.records.count == theirs.records.count > 0)
        again = Limits()
        async with registered_broker(tmp_path, [again.feature], **settings):
            assert again.table.all() == {"U@CG": 7}
            assert again.records.count == theirs.records.count

    run(story)


class LimitedGroup(Group):
    """A group whose replicas have the feature."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.limits: dict[int, Limits] = {}

    def features_of(self, replica: int) -> Sequence[Feature]:
        self.limits[replica] = Limits()
        return (self.limits[replica].feature,)


def test_table_and_sink_of_a_feature_follow_the_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with LimitedGroup(tmp_path) as group:
            leader, _ = await group.of_leader(lambda peer: peer.send("T", b"1"))
            others = [each for each in group.limits if each != leader]
            group.limits[leader].table.put("T@CG", 1)
            group.limits[leader].table.put("U@CG", 2)
            for each in others:
                await eventually_async(
                    lambda each=each: group.limits[each].table.all() == {"T@CG": 1, "U@CG": 2}
                )
            group.limits[leader].table.put("U@CG", None)
            for each in others:
                await eventually_async(lambda each=each: group.limits[each].table.all() == {"T@CG": 1})
            await group.stop(others[0])
            await group.start(others[0])
            restarted = group.limits[others[0]]
            assert restarted.table.all() == {"T@CG": 1}
            await eventually_async(lambda: restarted.records.count == group.limits[leader].records.count > 0)

    run(story)
