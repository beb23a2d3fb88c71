"""A slave follows its master over a socket, reconnects, and stops if their logs differ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.broker.core.role import Role
from actors.broker.replication.ha.ha_client import HaClient
from actors.broker.replication.promotion_epochs import PromotionEpochs
from actors.transport.tls.contexts import ClientTls
from actors.wire.headers import RegisterBrokerResponse
from store.common.clock import SystemClock
from tests.actors.broker.brokers import Peer, hang_disk, run, serving, settings_of
from tests.actors.broker.replication.ha.ha_port import HaPort, log_of
from tests.eventually import eventually_async

FILE_BYTES = 1 << 16
STORE = {"commit_log_file_bytes": FILE_BYTES, "flush": "async"}


def broker(
    root: Path, store: dict[str, Any] | None = None, **settings: Any
) -> AbstractAsyncContextManager[Peer]:
    return serving(settings_of(root, {**STORE, **(store or {})}, **settings))


class Following:
    """The HA client of a slave, which runs as a task."""

    def __init__(self, slave: Peer, master: Peer, ha_address: str, tls: ClientTls | None = None) -> None:
        graph = slave.broker.graph
        self.joins = 0
        addresses = RegisterBrokerResponse(ha_address, master.broker.address)
        self.client = HaClient(
            graph.loop.store,
            graph.loop.reads,
            SystemClock(),
            slave.client,
            lambda: addresses,
            graph.loop.server.request_tick,
            self._joined,
            PromotionEpochs(slave.broker.settings),
            tls,
        )
        self.task = asyncio.create_task(self.client.run())

    def _joined(self) -> None:
        self.joins += 1


@asynccontextmanager
async def following(root: Path, **slave_store: Any) -> AsyncIterator[tuple[Peer, Peer, HaPort, Following]]:
    """Yield a master, its slave, the master's HA port and the slave's HA client."""
    async with (
        broker(root / "m") as master,
        broker(root / "s", slave_store, role="slave", slave_read_enable=True) as slave,
        HaPort(master.store) as port,
    ):
        follower = Following(slave, master, port.address)
        try:
            yield master, slave, port, follower
        finally:
            follower.task.cancel()


async def until_equal(master: Peer, slave: Peer) -> None:
    """Wait until the slave has dispatched the master's whole log, and compare the bytes."""
    theirs, ours = (peer.store for peer in (master, slave))
    await eventually_async(lambda: ours.positions.dispatched == theirs.positions.written)
    assert log_of(ours) == log_of(theirs)


def test_slave_follows_over_rolling_files_and_reconnects(tmp_path: Path) -> None:
    async def story() -> None:
        async with following(tmp_path) as (master, slave, port, follower):
            for number in range(120):
                await master.send("T", b"%04d" % number + bytes(1000))
            assert master.store.positions.written > FILE_BYTES
            await until_equal(master, slave)
            assert (follower.client.state, follower.client.joined) == (
                "following", master.broker.address,
            )  # fmt: skip
            slave.tables.topics.ensure("T", 8)  # as a copy of the tables does
            assert [each.body[:4] for each in await slave.messages("T", 0)][:2] == [b"0000", b"0001"]

            port.disconnect()
            await eventually_async(lambda: port.connections == 2)
            await master.send("T", b"after")
            await until_equal(master, slave)
            assert follower.joins == 2

    run(story)


def test_sync_flush_reports_only_what_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with following(tmp_path, flush="sync") as (master, slave, port, _):
            await master.send("T")
            await until_equal(master, slave)
            before = master.store.positions.written
            await eventually_async(lambda: port.reports[-1] == before)
            may_continue = hang_disk(monkeypatch)
            try:
                await master.send("T", b"second")
                store, end = slave.store, master.store.positions.written
                await eventually_async(lambda: store.positions.written == end)
                assert port.reports[-1] == before
            finally:
                may_continue.set()
            await eventually_async(lambda: port.reports[-1] == end)

    run(story)


def test_different_log_stops_the_slave_with_both_positions_and_a_remedy(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path / "s", role="slave") as slave:
            await slave.role.become(Role.MASTER, 1)
            await slave.send("T", b"own")
            before = log_of(slave.store)
        async with following(tmp_path) as (master, slave, _, follower):
            for _ in range(3):
                await master.send("T", b"other")
            await asyncio.wait_for(follower.task, 10)
            assert "stopped: the CommitLog differs from the master's at offset" in follower.client.state
            assert "raymq replica resync" in follower.client.state
            assert log_of(slave.store) == before

    run(story)


def test_other_size_of_log_files_stops_the_slave_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with following(tmp_path, commit_log_file_bytes=2 * FILE_BYTES) as (_, slave, port, follower):
            await asyncio.wait_for(follower.task, 10)
            assert "log files have 65,536 bytes, this slave's 131,072" in follower.client.state
            assert (port.connections, slave.store.positions.written) == (0, 0)

    run(story)


def test_frames_at_another_offset_are_refused_and_retried(tmp_path: Path) -> None:
    async def story() -> None:
        async with following(tmp_path) as (master, slave, port, follower):
            port.skipped_bytes = 7
            await master.send("T")
            await eventually_async(lambda: "sent bytes at offset 8" in follower.client.state)
            assert slave.store.positions.written == 0
            port.skipped_bytes = 0
            await until_equal(master, slave)

    run(story)


def test_slave_waits_for_a_master_and_its_ha_port(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker(tmp_path, role="slave") as peer:

            def state() -> str:
                return str(peer.broker.describe()["replication_state"])

            await eventually_async(lambda: state() == "waiting: no nameserver knows a master of this broker")

    run(story)
