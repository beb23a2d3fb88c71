"""Disks that are full, read-only, failing or owned by another user, and stores with a second writer.

Errors name cause and remedy, no acknowledged message is lost, and writes resume when the cause is gone.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.broker.service import BrokerService, warm_up_once
from actors.host.service_host import ServiceHost, State
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from store.common.clock import SystemClock
from store.message_store import MessageStore
from store.ownership.divergence import Divergence, write_divergence
from store.store_errors import StoreError
from store.tools.resync import resyncing
from tests.actors.broker.brokers import Peer, run, settings_of, with_broker
from tests.checkers import Recorder
from tests.eventually import eventually, eventually_async
from tests.faults.aftermath import check_store, read_everything
from tests.faults.conftest import SmallDisk
from tests.faults.crasher import Crasher
from tests.faults.scenarios import TickingClock, Writer, open_store
from tests.store.conftest import a_draft

pytestmark = [pytest.mark.faults]

Disks = Callable[[int], SmallDisk]


class FullDiskStore:
    """Store with messages and their history on a small disk, which the test fills."""

    def __init__(self, disk: SmallDisk) -> None:
        self.disk = disk
        self.clock = TickingClock()
        self.store = open_store(disk.path / "store", self.clock)
        self.writer = Writer(self.store.root, self.store, Recorder())
        for _ in range(3):
            self.writer.send(padding=500)
        self.writer.settle()

    def readable(self) -> int:
        return read_everything(self.store, Recorder(), "reader")

    def check_recovery(self) -> None:
        """Append, and require that all messages are readable after a restart."""
        self.writer.send(padding=3000)
        self.writer.settle()
        self.store.close()
        check_store(self.store.root, "a disk that was full", events=self.writer.recorder.events, derived=True)


def test_full_disk_for_log_refuses_appends_until_space_is_free(small_disk: Disks) -> None:
    full = FullDiskStore(small_disk(256 << 10))
    full.disk.fill()
    full.writer.send(padding=2500)
    full.writer.send(padding=2500)
    needed = r"No space left on device: \d+ needs 8,192 bytes, and [\d,]+ are free \(make room on its disk\)"
    with pytest.raises(StoreError, match=needed):
        full.writer.send(padding=2500)
    full.writer.settle()
    assert full.readable() == 5
    full.disk.free()
    full.check_recovery()


@pytest.mark.parametrize("mounted", ["", "commitlog"], ids=["store", "commitlog"])
def test_store_with_a_mount_point_is_not_resynced(small_disk: Disks, tmp_path: Path, mounted: str) -> None:
    disk = small_disk(1 << 20)
    root = disk.path if not mounted else tmp_path / "store"
    store = open_store(root, TickingClock())
    store.close()
    if mounted:
        subprocess.run(["mount", "--bind", str(disk.path), str(root / mounted)], check=True)
    try:
        write_divergence(root, Divergence(0, "10.0.0.1:10911", 3, 4096, "differs"))
        before = sorted(tmp_path.rglob("*"))
        with (
            pytest.raises(StoreError, match=r"not on the file system of .* elsewhere by hand") as caught,
            resyncing(root),
        ):
            pass
        assert caught.value.path == root / mounted
        assert sorted(tmp_path.rglob("*")) == before
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(root / mounted)], check=True)


@pytest.mark.parametrize("kind", ["queue", "index"])
def test_full_disk_for_queues_or_index_refuses_appends_and_loses_nothing(
    small_disk: Disks, kind: str
) -> None:
    full = FullDiskStore(small_disk(256 << 10))
    store = full.store
    if kind == "index":  # an index file holds 63 keys: the next one must be created
        for _ in range(11):
            full.writer.send()
        full.writer.settle()
        for _ in range(30):
            full.writer.send()
    else:
        store.append(a_draft(topic="Another"))
    store.flush_now()
    full.disk.fill()
    store.advance()
    size = ": 20231114221320231 needs 1,400 bytes, and 0 are free" if kind == "index" else ""
    assert f"No space left on device{size} (make room on its disk)" in (store.write_refusal or "")
    with pytest.raises(StoreError, match="consume queues or index cannot be written: No space left"):
        store.append(a_draft())
    assert full.readable() >= 3
    full.disk.free()
    full.clock.leap(1000)
    full.writer.settle()
    assert store.write_refusal is None
    assert kind == "index" or store.max_offset("Another", 0) == 1
    full.check_recovery()


def test_full_disk_for_checkpoint_loses_nothing(small_disk: Disks) -> None:
    full = FullDiskStore(small_disk(256 << 10))
    checkpoint = (full.store.root / "raymq.derived").read_bytes()
    full.writer.send()
    full.writer.settle()
    full.disk.fill()
    full.clock.leap(3_600_001)
    full.store.advance()
    full.store.flush_now()
    full.writer.send()
    full.writer.settle()
    assert full.store.write_refusal is None
    with pytest.raises(StoreError, match=r"was not closed cleanly: No space left"):
        full.store.close()
    assert (full.store.root / "raymq.derived").read_bytes() == checkpoint
    assert (full.store.root / "abort").exists()
    full.disk.free()
    check_store(full.store.root, "a full disk", events=full.writer.recorder.events, derived=True)


def test_full_disk_for_tables_keeps_old_and_saves_new_ones_later(small_disk: Disks) -> None:
    disk = small_disk(4 << 20)
    store = {"commit_log_file_bytes": 1 << 16, "preallocate": False, "disk_refuse_writes_percent": 99}
    settings = settings_of(disk.path, store)

    async def story(peer: Peer) -> None:
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("Old", 2, 2, 6).to_ext())
        await peer.tables.save_definitions()
        disk.fill()
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("New", 3, 3, 6).to_ext())
        await peer.commit("G", "Old", 0)
        await peer.tables.save_definitions()
        saved = (settings.store_root / "config" / "topics.json").read_bytes()
        assert b'"Old"' in saved
        assert b'"New"' not in saved
        disk.free()
        await peer.tables.save_definitions()
        assert b'"New"' in (settings.store_root / "config" / "topics.json").read_bytes()

    async def later(peer: Peer) -> None:
        assert peer.tables.topics.find("New") is not None

    with_broker(story, settings)
    with_broker(later, settings)


def test_broker_start_on_full_disk_is_refused_until_space_is_free(
    small_disk: Disks,
) -> None:
    disk = small_disk(4 << 20)
    settings = settings_of(disk.path, {"commit_log_file_bytes": 1 << 16, "preallocate": False})

    async def sends(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    async def refused() -> None:
        with pytest.raises(StoreError, match=r"No space left on device \(make room on its disk\)"):
            await BrokerService(settings, SystemClock()).start()

    with_broker(sends, settings)
    disk.fill()
    run(refused)
    disk.free()
    with_broker(sends, settings)


def test_service_host_retries_start_until_disk_has_space(
    small_disk: Disks,
) -> None:
    warm_up_once()
    disk = small_disk(4 << 20)
    settings = settings_of(disk.path, {"commit_log_file_bytes": 1 << 16, "preallocate": False})
    (disk.path / "store").mkdir()
    disk.fill()

    host = ServiceHost(lambda: BrokerService(settings, SystemClock()), full_disk_retry_s=0.05)
    eventually(lambda: host.state is State.NOT_SERVING)
    assert "No space left on device" in host.reason
    disk.free()
    eventually(lambda: host.is_serving)
    assert host.reason == ""
    host.stop()


# ---- a disk that fails -----------------------------------------------------------------------------------


def failing(number: int) -> Callable[..., None]:
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_failed_fdatasync_makes_store_read_only_until_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = open_store(tmp_path / "store")
    writer = Writer(store.root, store, Recorder())
    writer.send()
    writer.settle()
    writer.send()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", failing(number))
        with pytest.raises(StoreError, match=os.strerror(number)):
            store.flush_now()
    assert [event.type for event in writer.recorder.events][-1] == "info", "the send ended with an error"
    for _ in range(2):  # the disk works again, but the store must stay read-only
        with pytest.raises(StoreError, match="restart the broker to recover"):
            store.append(a_draft())
        store.advance()
        assert store.flush_job() is None
    assert read_everything(store, Recorder(), "reader") == 1
    store.close()
    assert (store.root / "abort").exists()
    check_store(store.root, "a failed flush", events=writer.recorder.events, derived=True)


def test_failed_fdatasync_of_derived_files_is_repaired_by_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = TickingClock()
    store = open_store(tmp_path / "store", clock)
    writer = Writer(store.root, store, Recorder())
    writer.send()
    writer.settle()
    with monkeypatch.context() as disk:
        disk.setattr(os, "fdatasync", failing(errno.EIO))
        clock.leap(3_600_001)
        store.advance()
        store.finish_background()
    assert store.write_refusal is None
    writer.send()
    writer.settle()
    with pytest.raises(StoreError, match="derived files could not be made durable: restart"):
        store.close()
    assert (store.root / "abort").exists()
    check_store(store.root, "a failed checkpoint", events=writer.recorder.events, derived=True)


# ---- a disk that is not writable ---------------------------------------------------------------------------


def test_read_only_file_system_is_refused_with_file_and_remedy(small_disk: Disks) -> None:
    disk = small_disk(256 << 10)
    open_store(disk.path / "store").close()
    disk.make_read_only()
    with pytest.raises(StoreError, match=r"lock: .*Read-only file system \(mount the file system writable\)"):
        open_store(disk.path / "store")
    with pytest.raises(StoreError, match=r"Read-only file system"):
        open_store(disk.path / "new")


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """Yield a directory that every user can access, unlike pytest's directory or a private TMPDIR."""
    directory = Path(tempfile.mkdtemp(prefix="raymq-faults-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_store_of_another_user_is_refused_with_file_and_remedy(
    public_directory: Path, crashing: Crasher
) -> None:
    root = public_directory / "store"
    open_store(root).close()
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    crashing.run("open_as_nobody", root)
    error = (public_directory / "store.error").read_text()
    assert error.startswith(f"{root}/lock: cannot be opened: Permission denied (give the files to the user")
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


# ---- two writers -------------------------------------------------------------------------------------------


def lose_locks(store: MessageStore) -> None:
    """Remove the locks of an open store, so that another process can open it, as on a network disk."""
    (store.root / "lock").unlink()
    log, aside = store.root / "commitlog", store.root / "aside"
    log.rename(aside)  # the directory is also locked
    log.mkdir()
    for path in aside.iterdir():
        path.rename(log / path.name)
    aside.rmdir()


def files(store: MessageStore) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(store.root.rglob("*")) if path.is_file()}


def test_fenced_writer_changes_no_file_and_acknowledges_nothing(tmp_path: Path, crashing: Crasher) -> None:
    """The epoch fences the old writer if its lock is lost, by removal of the file or on a network disk."""
    clock = TickingClock()
    root = tmp_path / "store"
    old = open_store(root, clock)
    writer = Writer(root, old)
    writer.send()
    writer.settle()
    lose_locks(old)
    crashing.run("reopen", root)  # another process opens the store, appends, and does not close it
    after_reopen = files(old)

    clock.leap(60)
    old.advance()
    assert "another writer" in (old.write_refusal or "")
    with pytest.raises(StoreError, match="another writer has opened this store"):
        old.append(a_draft())
    clock.leap(3_600_001)
    old.advance()
    old.close()
    assert files(old) == after_reopen
    check_store(root, "two writers", derived=True)


def test_append_that_waits_for_flush_fails_when_writer_is_fenced(tmp_path: Path, crashing: Crasher) -> None:
    old = open_store(tmp_path / "store")
    results: list[StoreError | None] = []
    result = old.append(a_draft(b"too late"))
    old.on_confirmed(result.physical_offset + result.size_bytes, results.append)
    old.flush_now()
    lose_locks(old)
    crashing.run("reopen", old.root)
    old.advance()
    assert "another writer" in str(results[0])
    old.close()


def test_fenced_broker_saves_no_table(
    tmp_path: Path,
) -> None:
    settings = settings_of(tmp_path)

    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.tables.save_definitions()
        epoch = settings.store_root / "raymq.epoch"
        successor = epoch.with_name("raymq.epoch.new")
        successor.write_text("2\n")
        successor.rename(epoch)
        saved = {path: path.read_bytes() for path in (settings.store_root / "config").iterdir()}

        async def is_superseded() -> bool:
            await peer.send("T")
            return peer.store.is_superseded

        await eventually_async(is_superseded, "the epoch check of the broker")
        refused = await peer.send("T", b"late")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "another writer has opened this store" in (refused.remark or "")
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("Late", 2, 2, 6).to_ext())
        await peer.commit("G", "T", 1)
        await peer.tables.save_definitions()
        await peer.tables.save_offsets()
        assert {path: path.read_bytes() for path in (settings.store_root / "config").iterdir()} == saved

    with_broker(story, settings)
