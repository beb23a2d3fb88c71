"""Peers of the HA port that are no slaves: disconnected with a reason, without cost for others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from actors.broker.replication.ha import ha_server
from actors.broker.replication.ha.ha_frames import encode_report
from actors.broker.replication.ha.ha_server import CONNECTIONS
from tests.actors.broker.brokers import Peer, with_broker
from tests.actors.broker.replication.ha.slaves import figure, master_of, slave_of, until, until_copied
from tests.eventually import eventually_async

GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 8,  # a negative end
    encode_report(1 << 40),
    encode_report(-(1 << 63)),
    b"\x00" * 8 * 5_000,  # a flood
    b"\x00\x00\x00\x10{}" * 4,
    bytes(range(256)),
)


def reasons(logs: Sequence[dict[str, object]]) -> list[str]:
    return [str(entry["reason"]) for entry in logs if entry["event"] == "slave_refused"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_peer_that_is_no_slave_is_disconnected_with_a_reason(tmp_path: Path, garbage: bytes) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        with capture_logs() as logs:
            async with slave_of(peer, None) as other:
                other.send(garbage)
                await other.until_closed()
        assert len(reasons(logs)) == 1
        await until(peer, "slave_connections", 0)
        assert figure(peer, "in_sync_replicas") == 1

    with_broker(story, master_of(tmp_path))


def test_random_bytes_neither_confirm_nor_stop_the_master(tmp_path: Path) -> None:
    rng = random.Random(5)

    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await until(peer, "in_sync_replicas", 2)
            assert (await peer.send("T", b"first")).code == 0
            slave.acknowledges = False
            send = asyncio.ensure_future(peer.send("T", b"second"))
            await eventually_async(lambda: figure(peer, "sends_waiting") == 1)
            for _ in range(30):
                async with slave_of(peer, None, f"127.0.0.{rng.randrange(2, 250)}") as other:
                    for _ in range(rng.randrange(1, 4)):
                        other.send(
                            b"\x01" + rng.randbytes(rng.randrange(7, 40))
                        )  # beyond the log, or negative
                    await other.until_closed()
            assert not send.done()
            slave.acknowledge()
            assert (await send).code == 0
            await until_copied(peer, slave)

    with_broker(story, master_of(tmp_path, "sync"))


def test_connections_without_a_report_give_their_place_to_slaves(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        port, limit = peer.broker.settings.ha_listen_port, CONNECTIONS.limit
        writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(limit)]
        await until(peer, "slave_connections", limit)
        async with slave_of(peer) as slave:
            await peer.send("T")
            await until_copied(peer, slave)
            writers += [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(limit)]
            await peer.send("T")
            await until_copied(peer, slave)
            assert not slave.is_closed
        for writer in writers:
            writer.close()


def test_slaves_over_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ha_server, "CONNECTIONS", replace(CONNECTIONS, limit=1))

    async def story(peer: Peer) -> None:
        async with slave_of(peer) as slave:
            await peer.send("T")
            await until_copied(peer, slave)
            async with slave_of(peer, local="127.0.0.2") as one_more:
                await one_more.until_closed()
            await peer.send("T")
            await until_copied(peer, slave)

    with_broker(story, master_of(tmp_path))
