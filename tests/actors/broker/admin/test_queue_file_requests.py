"""REPLACE_QUEUE_FILE: the broker verifies a consume queue file that a job wrote, and puts it in place."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from actors.wire.admin_headers import ReplaceQueueFileHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.eventually import eventually_async

FILE_BYTES = 200  # ten units
CODE = RayMQRequestCode.REPLACE_QUEUE_FILE


async def replace(peer: Peer, offset: int, units: bytes, topic: str = "T") -> RemotingCommand:
    return await peer.ask(CODE, ReplaceQueueFileHeader(topic, 0, offset, zlib.crc32(units)).to_ext())


async def fill(peer: Peer) -> None:
    """Send 25 messages to queue T-0, and wait until they are dispatched."""
    for number in range(25):
        assert (await peer.send("T", b"%d" % number)).code == 0
    describe = peer.broker.describe
    await eventually_async(lambda: describe()["dispatched"] == describe()["written"])


def offer(root: Path, offset: int, units: bytes) -> None:
    """Write a new file of queue T-0 into the work directory of a re-index."""
    path = root / "raymq.reindex" / "new" / "consumequeue" / "T" / "0" / f"{offset * 20:020d}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(units)


def test_broker_replaces_a_damaged_file_and_serves_its_messages(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"consume_queue_file_bytes": FILE_BYTES})

    async def story(peer: Peer) -> None:
        await fill(peer)
        path = settings.store_root / "consumequeue" / "T" / "0" / f"{FILE_BYTES:020d}"
        units = path.read_bytes()
        path.write_bytes(b"\x01" * FILE_BYTES)
        assert [message.body for message in await peer.messages("T", 12)] == []
        offer(settings.store_root, 10, units)
        assert (await replace(peer, 10, units)).code == ResponseCode.SUCCESS
        assert path.read_bytes() == units
        assert (await peer.messages("T", 12))[0].body == b"12"
        assert (await peer.send("T", b"25")).code == 0

    with_broker(story, settings)


def test_broker_refuses_a_file_that_cannot_be_replaced(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"consume_queue_file_bytes": FILE_BYTES})

    async def story(peer: Peer) -> None:
        await fill(peer)
        first = (settings.store_root / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
        refusals = []
        for offset, topic in ((20, "T"), (5, "T"), (0, "../T"), (0, "T")):
            refusals.append(await replace(peer, offset, first, topic))
        offer(settings.store_root, 10, first)
        refusals.append(await replace(peer, 10, first))
        assert {refused.code for refused in refusals} == {ResponseCode.INVALID_PARAMETER}
        remarks = [refused.remark for refused in refusals]
        assert "has no full file that begins at offset 20: its offsets are 0 to 25" in remarks[0]
        assert "has no full file that begins at offset 5" in remarks[1]
        assert "queue ../T-0 does not exist" in remarks[2]
        assert "the new consume queue file does not exist" in remarks[3]
        assert "unit 0 does not point to the record that has its queue offset" in remarks[4]
        missing = await peer.ask(CODE, {"topic": "T"})
        assert missing.code != ResponseCode.SUCCESS
        assert "queueId" in missing.remark
        assert [message.body for message in await peer.messages("T", 10)][:2] == [b"10", b"11"]

    with_broker(story, settings)


@pytest.mark.parametrize(
    ("position", "size"),
    [
        (2**63 - 100, 200),  # the sum exceeds 64 bits
        (2**63 - 1, 2**31 - 1),
        (-(2**63), 91),
        (-1, 91),
        (0, 2**31 - 1),
        (0, -(2**31)),
    ],
)
def test_units_that_point_outside_the_log_are_refused(tmp_path: Path, position: int, size: int) -> None:
    settings = settings_of(tmp_path, {"consume_queue_file_bytes": FILE_BYTES})

    async def story(peer: Peer) -> None:
        await fill(peer)
        path = settings.store_root / "consumequeue" / "T" / "0" / f"{FILE_BYTES:020d}"
        units = path.read_bytes()
        for row in (0, 4, 9):
            damaged = bytearray(units)
            damaged[row * 20 : row * 20 + 12] = struct.pack(">qi", position, size)
            offer(settings.store_root, 10, bytes(damaged))
            refused = await replace(peer, 10, bytes(damaged))
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "does not point to the record" in (refused.remark or "")
        assert path.read_bytes() == units

    with_broker(story, settings)


def test_units_that_point_across_the_end_of_a_log_file_are_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, {"consume_queue_file_bytes": FILE_BYTES})
    log_file_bytes = 1 << 20

    async def story(peer: Peer) -> None:
        await fill(peer)
        for _ in range(3):
            await peer.send("Large", bytes(400_000))
        describe = peer.broker.describe
        await eventually_async(lambda: describe()["dispatched"] == describe()["written"] > log_file_bytes)
        path = settings.store_root / "consumequeue" / "T" / "0" / f"{FILE_BYTES:020d}"
        damaged = bytearray(path.read_bytes())
        damaged[9 * 20 : 9 * 20 + 12] = struct.pack(">qi", log_file_bytes - 10, 91)
        offer(settings.store_root, 10, bytes(damaged))
        refused = await replace(peer, 10, bytes(damaged))
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "unit 9 does not point to the record" in (refused.remark or "")

    with_broker(story, settings)
