"""A replica whose log is too old or damaged gets what it lacks from its leader, and serves it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from actors.raft.bound_file import write_bound
from actors.wire.codes import RequestCode, ResponseCode
from store.recovery.summary import read_summary, summary_path
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.eventually import eventually_async

FILE_BYTES = 8192
SMALL = {
    "commit_log_file_bytes": FILE_BYTES,
    "file_reserved_time_h": 1,
    "clean_interval_ms": 10,
    "delete_files_interval_ms": 0,
}


async def fill(group: Group, count: int) -> int:
    """Send messages, each of a third of a log file, and return the last leader."""
    leader = -1
    for number in range(count):
        leader = await group.send(b"%04d" % number + bytes(2000), group.peers)
    return leader


def confirmed(group: Group, replica: int) -> bytes:
    """Return the confirmed bytes of a replica's log from its beginning on."""
    store = group.peers[replica].store
    data, begin, end = b"", store.positions.min, store.positions.confirmed
    while begin + len(data) < end:
        data += bytes(store.log_bytes(begin + len(data), end - begin - len(data)))
    return data


async def request_deletion(group: Group, offset: int) -> None:
    """Let the replicas that run delete their log files before `offset` within their next rounds."""
    for replica, peer in group.peers.items():
        for path in (group.root(replica) / "commitlog").iterdir():
            if path.name.isdigit() and int(path.name) + FILE_BYTES <= offset:
                with suppress(FileNotFoundError):  # deleted by a round
                    os.utime(path, (0, 0))
        response = await peer.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert response.code == ResponseCode.SUCCESS


async def delete_files(group: Group, offset: int, caplog: pytest.LogCaptureFixture | None = None) -> None:
    """Let the replicas that run delete their log files before `offset`.

    The leader keeps them for the replica that is stopped; then as if that was an hour ago. A request is
    valid for 20 rounds, of 10 ms each, and a replica may not have written all files yet: it is repeated.
    """

    async def are_kept() -> bool:
        await request_deletion(group, offset)
        return caplog is None or "log_files_kept_for_replicas" in caplog.text

    async def are_deleted() -> bool:
        await request_deletion(group, offset)
        return all(group.log_begin(each) == offset for each in group.peers)

    await eventually_async(are_kept)
    for peer in group.peers.values():
        peer.store.retention.keep_from("replicas", lambda: None)
    await eventually_async(are_deleted)


async def served(group: Group, replica: int) -> list[bytes]:
    """Return the beginnings of the bodies that a replica serves from its first offset on."""
    peer = group.peers[replica]
    place, found = await peer.offset(RequestCode.GET_MIN_OFFSET, "T"), []
    while page := await peer.messages("T", place + len(found)):
        found += [each.body[:4] for each in page]
    return found


async def has_caught_up(group: Group, replica: int, leader: int) -> bool:
    if replica not in group.peers:
        return False  # it restarts itself
    begin = group.log_begin(replica)
    ahead = confirmed(group, leader)[max(begin - group.log_begin(leader), 0) :]
    return len(ahead) > 0 and confirmed(group, replica) == ahead


def test_too_old_replica_copies_the_log_again_from_its_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            leader = await fill(group, 1)
            old = (leader + 1) % 3
            await group.stop(old)
            leader = await fill(group, 12)
            offset = 3 * FILE_BYTES
            await delete_files(group, offset, caplog)
            await group.start(old)
            await eventually_async(lambda: has_caught_up(group, old, leader))
            assert (group.restarts, group.log_begin(old)) == (1, offset)
            leader = await fill(group, 1)
            await eventually_async(lambda: has_caught_up(group, old, leader))
            assert await served(group, old) == await served(group, leader)
            await group.stop(old)
            await group.start(old)
            leader = await fill(group, 1)
            await eventually_async(lambda: has_caught_up(group, old, leader))
            assert group.restarts == 1
            assert await served(group, old) == await served(group, leader)

    run(story)


def flip(group: Group, replica: int, offset: int) -> None:
    """Change a byte of a stopped replica's log, and let its next start check the whole log."""
    root = group.root(replica)
    summary = read_summary(root, group.members[replica].store_id)
    assert summary is not None
    write_bound(root, summary.position)
    summary_path(root).unlink()
    base = offset // FILE_BYTES * FILE_BYTES
    with (root / "commitlog" / f"{base:020}").open("r+b") as file:
        file.seek(offset - base)
        byte = file.read(1)[0]
        file.seek(offset - base)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.extended
def test_damaged_records_are_repaired_or_deleted_as_at_the_leader(tmp_path: Path) -> None:
    """A flipped byte of a size hides records from recovery: consume queues are derived again."""

    async def story() -> None:
        async with Group(tmp_path, **SMALL) as group:
            leader = await fill(group, 14)
            await eventually_async(lambda: has_caught_up(group, (leader + 1) % 3, leader))
            damaged = (leader + 1) % 3
            await group.stop(damaged)
            flip(group, damaged, FILE_BYTES * 2 + 1)
            await group.start(damaged)
            await eventually_async(lambda: group.restarts == 1)
            leader = await fill(group, 1)
            await eventually_async(lambda: has_caught_up(group, damaged, leader))
            assert await served(group, damaged) == await served(group, leader)

            await group.stop(damaged)
            flip(group, damaged, FILE_BYTES + 1)
            await delete_files(group, 3 * FILE_BYTES)
            await group.start(damaged)
            await eventually_async(lambda: group.log_begin(damaged) == 3 * FILE_BYTES)
            leader = await fill(group, 1)
            await eventually_async(lambda: has_caught_up(group, damaged, leader))
            assert group.restarts == 1
            assert await served(group, damaged) == await served(group, leader)

    run(story)
