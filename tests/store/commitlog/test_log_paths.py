"""A CommitLog in several directories: distribution of new files, full disks, read-only and missing disks."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.stores.store import app
from store.commitlog import log_paths, mapped_file
from store.disk.disk_use import DiskUse
from store.store_errors import StoreError
from store.tools.dump import dump

FILE_BYTES = 8192


def fill(store, draft, count: int) -> list[int]:
    """Append messages that fill one file each, and return their CommitLog offsets."""
    return [store.append(draft(b"%d" % number * 6000)).physical_offset for number in range(count)]


def file_numbers(*directories: Path) -> list[list[int]]:
    """Return the numbers of the log files in each directory."""
    return [
        sorted(int(path.name) // FILE_BYTES for path in directory.iterdir() if path.is_file())
        for directory in directories
    ]


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    return [tmp_path / "disk-1", tmp_path / "disk-2", tmp_path / "disk-3"]


def comma_separated(*directories: Path) -> str:
    return ",".join(map(str, directories))


@pytest.mark.parametrize("preallocate", [False, True])
def test_new_files_are_created_in_the_directories_in_turn(stores, draft, drain, read_all, disks, preallocate):
    store = stores.open(storePathCommitLog=comma_separated(*reversed(disks)), preallocate=preallocate)
    fill(store, draft, 7)
    drain(store)
    assert len(read_all(store)) == 7
    store.close()
    assert file_numbers(*disks) == [[0, 3, 6], [1, 4], [2, 5]]
    again = stores.open(storePathCommitLog=comma_separated(*disks))
    assert len(read_all(again)) == 7
    assert fill(again, draft, 1) == [7 * FILE_BYTES]
    assert file_numbers(*disks) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_killed_store_with_several_directories_is_recovered_and_dumped(stores, draft, read_all, disks):
    store = stores.open(storePathCommitLog=comma_separated(*disks[:2]))
    fill(store, draft, 4)
    store.close()
    (store.root / "raymq.derived").unlink()
    (store.root / "abort").touch()
    path = disks[1] / f"{FILE_BYTES * 3:020d}"
    path.write_bytes(bytes(FILE_BYTES))  # the last record was not flushed to the disk
    assert [line["commitLogOffset"] for line in dump(store.root)] == [0, 8192, 16384]
    again = stores.open(storePathCommitLog=comma_separated(*disks[:2]))
    assert len(read_all(again)) == 3
    assert fill(again, draft, 1) == [3 * FILE_BYTES]


def test_rocketmq_store_is_dumped_with_its_directories_as_options(stores, draft, drain, disks):
    store = stores.open(commit_log_paths=disks[:2])
    store.append(draft(b"first", keys="k"))
    fill(store, draft, 3)
    drain(store)
    store.close()
    (store.root / "raymq.json").unlink()  # RocketMQ writes none
    arguments = [str(store.root), "--json", "--commit-log", str(disks[0]), "--commit-log", str(disks[1])]
    dumped = CliRunner().invoke(app, ["dump", *arguments])
    assert dumped.exit_code == 0
    assert [json.loads(line)["queueOffset"] for line in dumped.stdout.splitlines()] == [0, 1, 2, 3]
    [root, *options] = arguments
    found = CliRunner().invoke(app, ["query", root, "Topic", "k", *options])
    assert json.loads(found.stdout)["commitLogOffsets"] == [0]
    in_pipe = CliRunner().invoke(app, ["dump", *(each for each in arguments if each != "--json")])
    assert in_pipe.stdout == dumped.stdout
    in_pipe = CliRunner().invoke(app, ["query", root, "Topic", "k", *options[1:]])
    assert in_pipe.stdout == found.stdout
    assert "not a store: it has no directory commitlog" in CliRunner().invoke(app, ["dump", root]).output


def test_read_only_directory_is_read_and_gets_no_new_files(stores, draft, drain, read_all, disks):
    old, new, _ = disks
    store = stores.open(storePathCommitLog=str(old))
    fill(store, draft, 2)
    store.close()
    again = stores.open(storePathCommitLog=comma_separated(old, new), readOnlyCommitLogStorePaths=str(old))
    fill(again, draft, 2)
    drain(again)
    assert len(read_all(again)) == 4
    assert file_numbers(old, new) == [[0, 1], [2, 3]]


def test_files_on_a_disk_mounted_read_only_are_read(stores, draft, drain, read_all, disks, monkeypatch):
    old, new, _ = disks
    store = stores.open(storePathCommitLog=str(old))
    fill(store, draft, 2)
    store.close()
    opened = os.open

    def refuse_to_write(path, flags, *more, **named):
        if str(path).startswith(f"{old}/") and flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(mapped_file.os, "open", refuse_to_write)
    again = stores.open(commit_log_paths=[new], read_only_commit_log_paths=[old])
    assert len(read_all(again)) == 2
    with pytest.raises(
        StoreError, match=rf"{old}/{FILE_BYTES:020d}: the next record must be appended to this file"
    ):
        again.append(draft(b"small"))


def test_disk_above_the_force_level_gets_no_new_file_unless_all_are(stores, draft, disks, monkeypatch):
    used = {str(disk): 10 for disk in disks}
    monkeypatch.setattr(log_paths, "disk_use", lambda path: DiskUse(used[str(path)], 100 - used[str(path)]))
    store = stores.open(commit_log_paths=disks)
    used[str(disks[1])] = 86
    fill(store, draft, 4)
    assert file_numbers(*disks) == [[0, 2], [], [1, 3]]
    used.update({str(disk): 99 for disk in disks})
    fill(store, draft, 1)
    assert file_numbers(*disks) == [[0, 2], [4], [1, 3]]


def test_failed_allocation_is_retried_on_the_next_disk(stores, draft, disks, monkeypatch):
    allocate_now = os.posix_fallocate
    full = {disks[0]}

    def fallocate(descriptor: int, *arguments: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.parent in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate_now(descriptor, *arguments)

    monkeypatch.setattr(mapped_file.os, "posix_fallocate", fallocate)
    monkeypatch.setattr(log_paths.LogPaths, "_scratch", lambda _, directory: directory)
    store = stores.open(commit_log_paths=disks[:2])
    fill(store, draft, 2)
    assert file_numbers(*disks[:2]) == [[], [0, 1]]
    full.add(disks[1])
    with pytest.raises(StoreError, match="No space left on device"):
        fill(store, draft, 1)
    full.clear()
    assert fill(store, draft, 1) == [2 * FILE_BYTES]
    assert file_numbers(*disks[:2]) == [[2], [0, 1]]


def test_omitting_a_directory_that_holds_files_is_refused(stores, draft, disks):
    store = stores.open(commit_log_paths=disks[:2])
    fill(store, draft, 2)
    store.close()
    with pytest.raises(StoreError, match=r"disk-2: contains files of this store's CommitLog.*add it"):
        stores.open(commit_log_paths=disks[:1])
    stores.open(commit_log_paths=disks[:1], read_only_commit_log_paths=disks[1:2])


def test_same_file_in_two_directories_is_refused(stores, draft, disks):
    store = stores.open(commit_log_paths=disks[:2])
    fill(store, draft, 2)
    store.close()
    (disks[1] / f"{0:020d}").write_bytes((disks[0] / f"{0:020d}").read_bytes())
    with pytest.raises(StoreError, match=r"the same file is also in .*: move one of them away"):
        stores.open(commit_log_paths=disks[:2])


def test_missing_read_only_directory_is_refused(stores, disks):
    with pytest.raises(StoreError, match=r"disk-3: read-only CommitLog directory does not exist"):
        stores.open(read_only_commit_log_paths=disks[2:])


def test_unmounted_disk_is_refused_and_no_new_log_is_created(stores, draft, disks, read_all):
    store = stores.open(commit_log_paths=disks[:2])
    fill(store, draft, 1)
    store.close()
    [alone] = [disk for disk in disks[:2] if not any(disk.iterdir())]
    for away in (alone, disks[0]):
        away.rename(stores.directory / "away")
        with pytest.raises(StoreError, match=f"{away.name}: .* mount its disk"):
            stores.open(commit_log_paths=disks[:2])
        assert not away.exists()
        (stores.directory / "away").rename(away)
    assert len(read_all(stores.open(commit_log_paths=disks[:2]))) == 1


def test_second_store_with_the_same_directory_is_refused(stores, disks):
    stores.open("one", commit_log_paths=disks[:1])
    with pytest.raises(StoreError, match=r"disk-1: CommitLog directory is in use by another running broker"):
        stores.open("two", commit_log_paths=disks[:2])
    stores.open("two", commit_log_paths=disks[1:2])
