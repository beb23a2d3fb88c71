"""The identity of a store and the guarantee that only one process writes to it.

<root>/raymq.json     identity of the store: format, cluster, broker, replica, store id, file sizes
<root>/raymq.epoch    a number that each writer increases when it opens the store
<root>/lock           a writer holds a POSIX lock on its first byte, as RocketMQ does
<root>/abort          exists while a writer runs and after one was killed; contains its PID
"""

import fcntl
import os
import struct
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from store.commitlog.log_paths import COMMIT_LOG, LogPaths
from store.common.file_lock import EXCLUSIVE, try_lock
from store.disk.files import replace_file, sync_directory
from store.store_errors import StoreError, StoreFormatUnsupported, StoreLocked
from store.store_settings import StoreSettings

FORMAT_VERSION = 1
_IDENTITY_FILE = "raymq.json"
EPOCH_FILE = "raymq.epoch"
LOCK_FILE = "lock"
_ABORT_FILE = "abort"
_NAME_REMEDY = (
    "(restore the file from a copy; without one, move it away and set adopt_store: true on the broker)"
)
# struct flock of 64-bit Linux: type i16, whence i16, padding, start i64, length i64, pid i32
_FLOCK = struct.Struct("hh4xqqi4x")
# The lock files that this process has open. It must not open one of them twice: closing any descriptor of a
# file releases all POSIX locks that the process holds on the file.
_locked_here: set[str] = set()

# Directories of kinds of stores that are not supported; an empty directory is harmless.
_FOREIGN = {
    "batchconsumequeue": "batch consume queues",
    "consumequeue_r": "RocksDB consume queues",
    "consumequeue_ext": "extended consume queues (enableConsumeQueueExt)",
}


@dataclass(frozen=True)
class StoreIdentity:
    """The broker replica that a store belongs to."""

    cluster: str
    broker: str
    replica: int = 0


@dataclass(frozen=True)
class StoreName:
    """The content of raymq.json: the broker replica to which a store belongs, and the store's file sizes."""

    identity: StoreIdentity
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    commit_log_paths: tuple[str, ...] = (COMMIT_LOG,)
    """Directories of the CommitLog's files, including read-only ones.

    Relative paths are relative to the root.
    """


def read_name(root: Path) -> StoreName | None:
    """Return the content of raymq.json of the store at `root`, or None if the file does not exist.

    Raises StoreError if the file is damaged, StoreFormatUnsupported if a later version wrote it.
    """
    path = root / _IDENTITY_FILE
    try:
        content: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as error:
        raise StoreError(f"is not valid JSON: {error} {_NAME_REMEDY}", path) from error
    if not isinstance(content, dict):
        raise StoreError(f"is not a JSON object {_NAME_REMEDY}", path)
    try:
        if content["formatVersion"] != FORMAT_VERSION:
            raise StoreFormatUnsupported(
                f"store format {content['formatVersion']} is not supported, only format {FORMAT_VERSION}: "
                "use the version of RayMQ that wrote the store",
                path,
            )
        identity = StoreIdentity(content["cluster"], content["broker"], content["replica"])
        files = content["files"]
        return StoreName(
            identity,
            content["storeId"],
            files["commitLogFileBytes"],
            files["consumeQueueFileBytes"],
            files["indexSlots"],
            files["indexEntries"],
            tuple(map(str, content.get("commitLogPaths", (COMMIT_LOG,)))),
        )
    except (KeyError, TypeError) as error:
        raise StoreError(f"has no valid field {error} {_NAME_REMEDY}", path) from error


def write_name(root: Path, name: StoreName) -> None:
    """Write raymq.json of the store at `root`, durably. Raises OSError."""
    content = {
        "formatVersion": FORMAT_VERSION,
        **asdict(name.identity),
        "storeId": name.store_id,
        "files": {
            "commitLogFileBytes": name.commit_log_file_bytes,
            "consumeQueueFileBytes": name.consume_queue_file_bytes,
            "indexSlots": name.index_slots,
            "indexEntries": name.index_entries,
        },
        "commitLogPaths": name.commit_log_paths,
    }
    replace_file(root / _IDENTITY_FILE, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def refuse_foreign_kinds(root: Path) -> None:
    """Raise StoreError if the store has files that RayMQ cannot read (RocksDB consume queues, DLedger, …)."""
    for directory, kind in _FOREIGN.items():
        path = root / directory
        if path.is_dir() and any(path.iterdir()):
            raise StoreError(f"{kind} are not supported: nothing was changed", path)
    for path in sorted(root.glob("dledger-*")) if root.is_dir() else []:
        raise StoreError("a DLedger log is not supported: nothing was changed", path)


def resolve_name(root: Path, identity: StoreIdentity, settings: StoreSettings, *, adopt: bool) -> StoreName:
    """Check an existing raymq.json, and return the content to be written to it; nothing is written.

    Raises StoreError if the store belongs to another broker, has other file sizes than `settings`, or has a
    log but no raymq.json and `adopt` is not set.
    """
    name = read_name(root)
    read_only = settings.read_only_commit_log_paths
    log_paths = tuple(map(str, dict.fromkeys((*settings.commit_log_paths, *read_only))))
    if name is None:
        if not adopt and not LogPaths(root, settings.commit_log_paths, read_only).is_empty:
            raise StoreError(
                "this store was not created by RayMQ (it has no raymq.json): "
                "set adopt_store: true on the broker if no other broker uses it",
                root,
            )
        return StoreName(
            identity,
            uuid.uuid4().hex,
            settings.commit_log_file_bytes,
            settings.consume_queue_file_bytes,
            settings.index_slots,
            settings.index_entries,
            log_paths,
        )
    if name.identity != identity:
        raise StoreError(
            f"the store belongs to {_describe(name.identity)}, not to {_describe(identity)}: "
            "set another store root for this broker",
            root / _IDENTITY_FILE,
        )
    for setting in ("commit_log_file_bytes", "consume_queue_file_bytes", "index_slots", "index_entries"):
        made_with, wanted = getattr(name, setting), getattr(settings, setting)
        if made_with != wanted:
            raise StoreError(
                f"the store was created with {setting} {made_with:,}, "
                f"but the settings have {wanted:,}: set it to {made_with}",
                root / _IDENTITY_FILE,
            )
    _check_no_directory_dropped(root, name.commit_log_paths, log_paths)
    _check_directories_exist(root, {*name.commit_log_paths} & {*log_paths})
    return replace(name, commit_log_paths=log_paths)


def _check_directories_exist(root: Path, noted: Iterable[str]) -> None:
    """Raise StoreError if a CommitLog directory outside the store's root does not exist."""
    for directory in sorted(root / path for path in noted):
        if not directory.is_relative_to(root) and not directory.is_dir():
            raise StoreError(
                "no such directory, but it contained files of this store's CommitLog: mount its disk, "
                "or create the directory if the files are lost",
                directory,
            )


def _check_no_directory_dropped(root: Path, noted: Iterable[str], configured: Iterable[str]) -> None:
    """Raise StoreError if a CommitLog directory that contains log files is no longer in the settings."""
    left_out = {root / path for path in noted} - {root / path for path in configured}
    for directory in sorted(left_out):
        if not LogPaths(root, [directory]).is_empty:
            raise StoreError(
                "contains files of this store's CommitLog but is not in the settings: add it to "
                "commit_log_paths, or to read_only_commit_log_paths if it shall get no new files",
                directory,
            )


def _describe(identity: StoreIdentity) -> str:
    return f"broker {identity.broker!r}, replica {identity.replica}, of cluster {identity.cluster!r}"


class StoreLock:
    """The lock of a store, held from `acquire` to `release`; RocketMQ uses the same lock file."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._key = str(self._path.resolve())
        self._descriptor = -1

    def acquire(self, wait_ms: int) -> None:
        """Lock the store. If it is locked by another process, retry for up to `wait_ms`.

        Raises StoreLocked, with the PID of the other process, if that process still holds the lock then, and
        StoreError if this process already holds the lock.
        """
        if self._key in _locked_here:
            raise StoreError("the store is already open in this process: close it first", self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        # RocketMQ locks the first byte.
        if not try_lock(descriptor, wait_ms / 1000, lambda file: fcntl.lockf(file, EXCLUSIVE, 1, 0)):
            holder = self._holder(descriptor)
            os.close(descriptor)
            raise StoreLocked(
                f"the store is locked by another process{holder}: stop that process first "
                f"(tried for {wait_ms:,} ms)",
                self._path.parent,
            )
        os.pwrite(descriptor, b"lock", 0)
        self._descriptor = descriptor
        _locked_here.add(self._key)

    @staticmethod
    def _holder(descriptor: int) -> str:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            result = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
        except OSError:
            return ""
        return f", PID {result[4]}" if result[0] != fcntl.F_UNLCK else ""

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_here.discard(self._key)


def writer_of(root: Path) -> int | None:
    """Return the PID of the process that holds the store's lock, or None if no process holds it.

    Return 0 if the PID cannot be determined.
    """
    path = root / LOCK_FILE
    if str(path.resolve()) in _locked_here:
        return os.getpid()  # do not open the file: closing it would release the lock
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        result = _FLOCK.unpack(
            fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        )
        return None if result[0] == fcntl.F_UNLCK else int(result[4])
    except OSError:
        return 0
    finally:
        os.close(descriptor)


class WriterEpoch:
    """The epoch file of a store, and the epoch number of this writer.

    Another process that opens the store for writing increases the epoch. This writer is then fenced: it must
    not write any more.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / EPOCH_FILE
        self._descriptor = -1
        self.number = 0

    def raise_epoch(self) -> None:
        """Increase the store's epoch and become its writer.

        Raises StoreError if the epoch file is damaged, OSError if it cannot be written.
        """
        try:
            text = self._path.read_text()
            self.number = int(text) + 1 if text.strip() else 1
        except FileNotFoundError:
            self.number = 1
        except ValueError as error:
            raise StoreError(
                "does not contain a number: write one into it that is greater than every epoch of this store",
                self._path,
            ) from error
        replace_file(self._path, f"{self.number}\n".encode())
        self._descriptor = os.open(self._path, os.O_RDONLY)

    def is_ours(self) -> bool:
        """Return True if no other process has increased the epoch, so that this process may write."""
        # A new epoch replaces the file, so the file that this writer has open then has no link left.
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Close the epoch file; `is_ours` is False from now on."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_writer_epoch(root: Path) -> int:
    """Return the epoch of the last writer, or 0 if the store had no writer or the file is damaged."""
    try:
        return int((root / EPOCH_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


class AbortFile:
    """The `abort` file: if it exists at a start, the previous writer was not closed cleanly."""

    def __init__(self, root: Path) -> None:
        self._path = root / _ABORT_FILE

    @property
    def exists(self) -> bool:
        """True if a writer runs, or if the last one was not closed cleanly."""
        return self._path.exists()

    def create(self) -> None:
        """Create the file with the PID of this process, durably, when a writer starts."""
        self._path.write_text(str(os.getpid()))
        sync_directory(self._path.parent)

    def remove(self) -> None:
        """Remove the file, durably, when the writer was closed cleanly."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)


class Guards(NamedTuple):
    """The three files that keep other writers out of a store: lock, epoch and abort file."""

    lock: StoreLock
    epoch: WriterEpoch
    abort: AbortFile

    @classmethod
    def take(cls, root: Path, wait_ms: int) -> "Guards":
        """Lock the store at `root`; epoch and abort file are not changed yet.

        Raises StoreLocked if another process holds the lock after `wait_ms`; see `StoreLock.acquire`.
        """
        lock = StoreLock(root)
        lock.acquire(wait_ms)
        return cls(lock, WriterEpoch(root), AbortFile(root))

    def release(self) -> None:
        """Close the epoch file and release the lock, so that another process can open the store."""
        self.epoch.close()
        self.lock.release()
