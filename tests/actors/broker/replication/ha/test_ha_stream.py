"""The stream of the CommitLog to slaves: complete, bounded, and independent of slow or wrong slaves."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from actors.broker.replication.ha import ha_connection
from actors.broker.replication.ha.ha_connection import Credit
from actors.broker.replication.ha.ha_frames import CHUNK_BYTES, HaFrameReader, encode_report
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, registered_broker, run, settings_of, with_broker
from tests.actors.broker.core.auth.access_peers import inner_file
from tests.actors.broker.core.reading.test_cold_reads import cool
from tests.actors.broker.replication.ha.slaves import (
    FakeSlave,
    figure,
    let_pass,
    log_of,
    master_of,
    slave_of,
    until,
    until_copied,
)
from tests.conftest import ClockAtRest
from tests.eventually import eventually_async
from tests.ports import free_port

FILE_BYTES = 1 << 20  # SMALL_STORE


async def fill(peer: Peer, count: int, size_bytes: int = 1000, topic: str = "T") -> None:
    await asyncio.gather(*(peer.send(topic, bytes([n % 251]) * size_bytes) for n in range(count)))


async def is_empty(slave: FakeSlave) -> bool:
    """Return True if the slave gets nothing while the master handles other requests."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not slave.log


def test_slave_gets_the_same_bytes_over_the_roll_of_files(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await fill(peer, 2500)
            await until_copied(peer, slave)
            assert slave.begin == 0
            assert slave.end > 2 * FILE_BYTES
            await until(peer, "slave_lag_bytes", 0)
            assert figure(peer, "slaves").startswith("127.0.0.1:")

    with_broker(story, master_of(tmp_path))


def test_slave_resumes_at_its_end_after_a_reconnect(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 50)
        async with slave_of(peer) as slave:
            await until_copied(peer, slave)
            had = slave.end
        await until(peer, "in_sync_replicas", 1)
        await fill(peer, 70)
        async with slave_of(peer, had) as slave:
            await until_copied(peer, slave)
            assert slave.begin == had

    with_broker(story, master_of(tmp_path))


def test_new_slave_starts_at_the_oldest_file(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 2500)
        store = peer.store
        store.flush_now()
        store.dispatch_now()
        store.retention.delete_expired()
        await eventually_async(lambda: store.positions.min == 2 * FILE_BYTES)  # the last file is kept
        async with slave_of(peer) as slave:
            await until_copied(peer, slave)
            assert slave.begin == store.positions.min
        async with slave_of(peer, 100) as old:
            await old.until_closed()

    with_broker(story, master_of(tmp_path, store={"file_reserved_time_h": 0, "clean_interval_ms": 10}))


def test_nothing_is_sent_before_the_first_report(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer, None) as slave:
            await fill(peer, 5)
            assert await is_empty(slave)
            assert figure(peer, "in_sync_replicas") == 1
            slave.send(bytes(3))  # a part of a report
            assert await is_empty(slave)
            slave.send(bytes(5))
            await until_copied(peer, slave)

    with_broker(story, master_of(tmp_path))


def test_idle_master_sends_heartbeats_and_drops_silent_slaves(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 1)
        async with slave_of(peer) as slave, slave_of(peer, None, "127.0.0.2") as silent:
            await until_copied(peer, slave)
            clock.advance(4_999)
            assert slave.heartbeats == 0
            clock.advance(1)
            await eventually_async(lambda: slave.heartbeats == 1)
            clock.advance(14_000)
            slave.report(slave.end)
            await eventually_async(lambda: slave.heartbeats == 2)
            assert not silent.is_closed
            clock.advance(1_000)
            await silent.until_closed()
            assert not slave.is_closed
            clock.advance(20_000)
            await slave.until_closed()

    with_broker(story, master_of(tmp_path), clock)


def test_cold_log_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 3000)
        cool(peer, monkeypatch)
        async with slave_of(peer) as slave:
            await until_copied(peer, slave)
        assert figure(peer, "cold_reads") >= 3

    with_broker(story, master_of(tmp_path))


def test_slave_that_reads_nothing_is_bounded_and_dropped(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 60, 250_000)
        written = figure(peer, "written")
        with socket.socket() as slave:
            slave.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slave.connect(("127.0.0.1", peer.broker.settings.ha_listen_port))
            slave.send(encode_report(0))
            await until(peer, "in_sync_replicas", 2)

            async def sent() -> int:
                status = await peer.ask(RequestCode.GET_BROKER_HA_STATUS)
                return int(orjson.loads(status.body)["haConnectionInfo"][0]["transferFromWhere"])

            async def is_paused() -> bool:
                before = await sent()
                await fill(peer, 5)
                return before == await sent()

            await eventually_async(is_paused)
            assert await sent() < written

            def is_dropped() -> bool:
                clock.advance(100)
                with suppress(OSError):
                    slave.send(encode_report(0))  # so it is not silent
                return bool(figure(peer, "in_sync_replicas") == 1)

            await eventually_async(is_dropped)

    with_broker(story, master_of(tmp_path, store={"commit_log_file_bytes": 1 << 24}), clock)


def test_slaves_share_the_bytes_of_one_refill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refills, refill = [1], Credit.refill

    def refill_once(credit: Credit, max_bytes_per_s: int, interval_ms: int) -> None:
        if refills:
            refills.pop()
            refill(credit, max_bytes_per_s, interval_ms)

    monkeypatch.setattr(Credit, "refill", refill_once)

    async def story(peer: Peer) -> None:
        await fill(peer, 100)
        async with slave_of(peer) as first, slave_of(peer, local="127.0.0.2") as second:

            def sent() -> int:
                return len(first.log) + len(second.log)

            await eventually_async(lambda: sent() == 100)
            await fill(peer, 5)  # each of its turns sends what may be sent
            assert sent() == 100
            while not (first.log and second.log):  # each is the first one in its turn
                expected = sent() + 100
                refills.append(1)
                await eventually_async(lambda expected=expected: sent() == expected)

    with_broker(story, master_of(tmp_path, ha_max_bytes_per_s=1_000))


def test_rate_of_all_slaves_follows_the_live_setting(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 100)
        async with slave_of(peer) as slave:
            await eventually_async(lambda: len(slave.log) >= 2)
            assert slave.end < figure(peer, "written")
            peer.broker.live.update({"ha_max_bytes_per_s": 0})
            await until_copied(peer, slave)

    with_broker(story, master_of(tmp_path, ha_max_bytes_per_s=10))


def test_ha_status_has_each_slave(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 3)
        async with slave_of(peer) as slave, slave_of(peer, 0, "127.0.0.2", acknowledges=False) as other:
            await until_copied(peer, slave)
            await until_copied(peer, other)
            await until(peer, "in_sync_replicas", 3)
            status = orjson.loads((await peer.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
            written = figure(peer, "written")
            assert (status["master"], status["inSyncSlaveNums"]) == (True, 2)
            by_host = {each["addr"].partition(":")[0]: each for each in status["haConnectionInfo"]}
            first, second = by_host["127.0.0.1"], by_host["127.0.0.2"]
            assert (first["slaveAckOffset"], first["diff"], first["inSync"]) == (written, 0, True)
            assert (second["slaveAckOffset"], second["diff"]) == (0, written)
            assert second["transferFromWhere"] == written

    with_broker(story, master_of(tmp_path))


def test_lag_in_seconds_is_the_age_of_the_oldest_missing_record(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        async with slave_of(peer, 0, acknowledges=False) as slave:
            await fill(peer, 3)
            await until_copied(peer, slave)
            await let_pass(clock, slave, lambda: figure(peer, "slave_lag_s") >= 3)
            assert figure(peer, "slave_lag_bytes") == slave.end
            slave.acknowledge()
            await until(peer, "slave_lag_s", 0)

    with_broker(story, master_of(tmp_path), clock)


def test_port_is_closed_without_replication(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert peer.broker.graph.identity.ha_address == ""
        assert "slaves" not in peer.broker.describe()

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize("is_allowed", [False, True])
def test_port_is_closed_with_users_unless_it_is_allowed(tmp_path: Path, is_allowed: bool) -> None:
    users = {"authentication_enabled": True, "inner_credentials_file": inner_file(tmp_path)}
    settings = master_of(tmp_path, "sync", ha_allow_unauthenticated=is_allowed, **users)

    async def story(peer: Peer) -> None:
        assert bool(peer.broker.graph.identity.ha_address) == is_allowed
        if is_allowed:
            async with slave_of(peer):
                await until(peer, "in_sync_replicas", 2)
        else:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", settings.ha_listen_port)

    with capture_logs() as logs:
        with_broker(story, settings)
    warnings = [entry["reason"] for entry in logs if entry["event"] == "ha_port_closed"]
    assert ["ha_allow_unauthenticated" in each for each in warnings] == ([] if is_allowed else [True])


def test_nameserver_returns_the_ha_address_to_slaves(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path, replication="async", ha_listen_port=port) as (
            nameserver,
            peer,
        ):
            for broker_id, expected in ((1, f"127.0.0.1:{port}"), (0, None)):
                address = "127.0.0.1:1" if broker_id else peer.broker.address
                header = RegisterBrokerHeader("broker-a", address, "DefaultCluster", broker_id)
                command = RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext())
                response = await peer.client.invoke(nameserver.address, command, TIMEOUT_MS)
                assert response.ext.get("haServerAddr") == expected

    port = free_port()
    run(story)


def test_file_stays_mapped_while_it_is_sent(tmp_path: Path) -> None:
    """The files are deleted while their bytes wait in the socket buffer of a slave that does not read."""

    async def story(peer: Peer) -> None:
        await fill(peer, 12, 1_000_000)
        store, root = peer.store, peer.broker.settings.store_root
        original = log_of(root, 0, store.positions.written)
        with socket.socket() as slave:
            slave.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slave.connect(("127.0.0.1", peer.broker.settings.ha_listen_port))
            slave.send(encode_report(0))
            slave.setblocking(False)
            await until(peer, "in_sync_replicas", 2)
            store.flush_now()
            store.dispatch_now()
            store.retention.delete_expired()
            await eventually_async(lambda: store.positions.min > 8_000_000)
            log, reader, loop = bytearray(), HaFrameReader(), asyncio.get_running_loop()
            with suppress(ConnectionError):  # the master disconnects: the rest is deleted
                while data := await loop.sock_recv(slave, 1 << 20):
                    for frame in reader.received(data):
                        log += frame.data
        assert log
        assert bytes(log) == original[: len(log)]

    retention = {"file_reserved_time_h": 0, "clean_interval_ms": 10, "delete_files_interval_ms": 10}
    with_broker(story, master_of(tmp_path, store={"commit_log_file_bytes": 1 << 21, **retention}))


def test_slave_has_the_whole_log_after_a_clean_stop(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        nonlocal copy
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            sends = [asyncio.ensure_future(peer.send("T", bytes(30_000))) for _ in range(400)]
            await sends[0]
            await peer.broker.stop()
            await asyncio.gather(*sends, return_exceptions=True)
            await slave.until_closed()
            copy = bytes(slave.log)
        await peer.broker.start()

    copy = b""
    settings = master_of(tmp_path)
    with_broker(story, settings)
    assert len(copy) > CHUNK_BYTES
    assert log_of(settings.store_root, 0, len(copy)) == copy
    assert not log_of(settings.store_root, len(copy), len(copy) + 1000).strip(b"\0")
    shutil.rmtree(tmp_path)
    assert ha_connection.TURN_BYTES % CHUNK_BYTES == 0
