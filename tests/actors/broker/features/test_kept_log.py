"""Retention waits for the groups of `retention_waits_for`, such as those of lakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.internal_topics import WRITE_MANIFEST_TOPIC
from actors.wire.codes import RequestCode
from actors.wire.headers import CreateTopicHeader
from store.disk.disk_use import DiskUse
from tests.actors.broker.admin.test_cleaning import BODY, SMALL_LOG, FakeDisk, until
from tests.actors.broker.brokers import Peer, registered_broker, run, settings_of, slave_of, with_broker
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async

FILE_BYTES = 1 << 16
ROUNDS = 3
STORE = {**SMALL_LOG, "clean_interval_ms": 1000}
WAITS = {"retention_waits_for": ["*@lake"]}


class CountingDisk(FakeDisk):
    """A disk that counts the rounds of retention, which read its fill level."""

    rounds = 0

    def __call__(self, path: Path) -> DiskUse:
        self.rounds += path.name == "commitlog"
        return super().__call__(path)


async def ask_to_delete(peer: Peer) -> None:
    """Let all files expire, and ask the broker to delete them; it keeps the last one."""
    for path in (peer.store.root / "commitlog").iterdir():
        os.utime(path, (0, 0))
    assert (await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0


async def until_begin(peer: Peer, clock: ClockAtRest, disk: CountingDisk, file: int) -> None:
    """Wait until the log begins at `file`, and some rounds more, in which it must stay there."""
    await ask_to_delete(peer)
    await until(lambda: peer.store.positions.min >= file * FILE_BYTES, clock)
    rounds = disk.rounds + ROUNDS
    await until(lambda: disk.rounds >= rounds, clock)
    assert peer.store.positions.min == file * FILE_BYTES


def test_unread_log_is_kept_until_the_group_has_acknowledged_it(tmp_path: Path, clock, caplog) -> None:
    settings, disk = settings_of(tmp_path, STORE, **WAITS), CountingDisk()

    async def before(peer: Peer) -> None:  # each message has a file
        for topic in ("A", "B", "A", "B", "A", "B"):
            await peer.send(topic, BODY)
        await until_begin(peer, clock, disk, 0)
        assert "log_files_kept_for_groups" in caplog.text
        await peer.commit("lake", "A", 3)
        await until_begin(peer, clock, disk, 1)

    async def after_restart(peer: Peer) -> None:
        await until_begin(peer, clock, disk, 1)
        await peer.commit("lake", "B", 2)
        await until_begin(peer, clock, disk, 5)
        assert peer.broker.describe()["needed_log_files_deleted"] == 0

    with_broker(before, settings, clock, disk)
    with_broker(after_restart, settings, clock, disk)


@pytest.mark.parametrize(
    ("waits", "begin"),
    [
        ([], 4), (["orders@lake"], 1), (["ord*@lake"], 1), (["pay*@lake"], 2), (["*@lake"], 1),
        (["other@lake"], 4), (["orders@lake", "pay*@audit"], 1),
    ],
)  # fmt: skip
def test_log_is_kept_for_matching_topics_that_are_not_internal(
    waits: list[str], begin: int, tmp_path: Path, clock
) -> None:
    disk = CountingDisk()

    async def story(peer: Peer) -> None:
        for topic in (WRITE_MANIFEST_TOPIC, "orders", "pay-1", "%RETRY%G", "x"):
            await peer.send(topic, BODY)
        await peer.commit("lake", "x", 1)
        await until_begin(peer, clock, disk, begin)

    with_broker(story, settings_of(tmp_path, STORE, retention_waits_for=waits), clock, disk)


@pytest.mark.parametrize("end", ["settings", "topic", "skip"])
def test_hold_ends_with_the_setting_the_topic_or_a_reset(end: str, tmp_path: Path, clock) -> None:
    disk = CountingDisk()

    async def story(peer: Peer) -> None:
        for _ in range(3):
            await peer.send("T", BODY)
        await until_begin(peer, clock, disk, 0)
        if end == "settings":
            peer.broker.live.update({"retention_waits_for": ["other@lake"]})
        elif end == "topic":
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        else:
            await peer.commit("lake", "T", 3)
        await until_begin(peer, clock, disk, 2)

    with_broker(story, settings_of(tmp_path, STORE, **WAITS), clock, disk)


def test_log_is_not_kept_for_queues_that_no_group_can_read(tmp_path: Path, clock) -> None:
    disk = CountingDisk()

    async def story(peer: Peer) -> None:
        for queue_id in (1, 0, 0):
            await peer.send("T", BODY, queue_id=queue_id)
        await until_begin(peer, clock, disk, 0)
        create = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=2, perm=6)
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create.to_ext())).code == 0
        await until_begin(peer, clock, disk, 1)

    with_broker(story, settings_of(tmp_path, STORE, **WAITS), clock, disk)


def test_full_disk_ends_the_wait_with_an_event_and_a_figure(tmp_path: Path, clock, caplog) -> None:
    disk = CountingDisk(80)

    async def story(peer: Peer) -> None:
        for _ in range(6):
            await peer.send("T", BODY)
        await until_begin(peer, clock, disk, 0)
        disk.percent = 86
        await until(lambda: peer.store.positions.min > 0, clock)
        disk.percent = 80
        assert "needed_log_files_deleted" in caplog.text
        assert "messages of topic T that group lake has not read are lost to it" in caplog.text
        assert peer.broker.describe()["needed_log_files_deleted"] == peer.store.positions.min // FILE_BYTES

    with_broker(story, settings_of(tmp_path, STORE, **WAITS), clock, disk)


def test_slave_keeps_the_log_that_the_group_has_not_acknowledged(tmp_path: Path) -> None:
    """The offsets of the group are copied from the master."""
    store = {**SMALL_LOG, "clean_interval_ms": 10}

    async def story() -> None:
        async with (
            registered_broker(tmp_path / "master", replication="async", store=store, **WAITS) as (_, master),
            slave_of(master, tmp_path, store=store, **WAITS) as slave,
        ):
            for _ in range(4):
                await master.send("T", BODY)
            await master.commit("lake", "T", 2)
            await eventually_async(lambda: slave.tables.offsets.query("lake", "T", 0) == 2)
            for peer in (master, slave):
                await ask_to_delete(peer)
                await eventually_async(lambda at=peer.store.positions: at.min == 2 * FILE_BYTES)

    run(story)


@pytest.mark.parametrize("entry", ["orders", "@lake", "orders@", "or ders@lake", "a@b@c"])
def test_wait_without_topic_or_group_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="is not TOPIC@GROUP, for example orders@audit"):
        BrokerSettings.model_validate({"retention_waits_for": [entry]})
