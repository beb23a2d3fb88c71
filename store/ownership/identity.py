"""Whose store this is, and who may write to it (design law 9).

<root>/raymq.json     names the store: format, cluster, broker, replica, store id, sizes of its files
<root>/raymq.epoch    a number, raised by each writer that opens the store
<root>/lock           its first byte is locked while a writer is there, as RocketMQ locks it
<root>/abort          exists while a writer is there or after one died; holds its PID
"""

import fcntl
import os
import struct
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from store.commitlog.log_paths import COMMIT_LOG, LogPaths
from store.disk.files import replace_file, sync_directory
from store.store_errors import StoreError, StoreFormatUnsupported, StoreLocked
from store.store_settings import StoreSettings

FORMAT_VERSION = 1
_IDENTITY_FILE = "raymq.json"
EPOCH_FILE = "raymq.epoch"
LOCK_FILE = "lock"
_ABORT_FILE = "abort"
_LOCK_RETRY_S = 0.05
_NAME_LOST = "(put a copy back; without one, move it away and set adopt_store: true on the broker)"
# struct flock of 64-bit Linux: type i16, whence i16, padding, start i64, length i64, pid i32
_FLOCK = struct.Struct("hh4xqqi4x")
# A POSIX lock goes when any descriptor of its file is closed in the process: one open of a root per process.
_locked_here: set[str] = set()

# Directories of stores that we do not read; an empty one is harmless.
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
    """What raymq.json says."""

    identity: StoreIdentity
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    index_slots: int
    index_entries: int
    commit_log_paths: tuple[str, ...] = (COMMIT_LOG,)
    """Where the log's files are, read-only directories among them; relative ones below the root."""


def read_name(root: Path) -> StoreName | None:
    """The name of the store at `root`; None when it has none.

    Raises StoreError when the file cannot be understood.
    """
    path = root / _IDENTITY_FILE
    try:
        content: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as error:
        raise StoreError(f"is no JSON: {error} {_NAME_LOST}", path) from error
    if not isinstance(content, dict):
        raise StoreError(f"is no JSON object {_NAME_LOST}", path)
    try:
        if content["formatVersion"] != FORMAT_VERSION:
            raise StoreFormatUnsupported(
                f"format {content['formatVersion']}, this program knows {FORMAT_VERSION}", path
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
        raise StoreError(f"lacks {error} {_NAME_LOST}", path) from error


def write_name(root: Path, name: StoreName) -> None:
    """Name a store."""
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
    """Raise StoreError, with the kind's name, for a store that would only be half read."""
    for directory, kind in _FOREIGN.items():
        path = root / directory
        if path.is_dir() and any(path.iterdir()):
            raise StoreError(f"{kind} are not supported: nothing was changed", path)
    for path in sorted(root.glob("dledger-*")) if root.is_dir() else []:
        raise StoreError("a DLedger log is not supported: nothing was changed", path)


def settle_name(root: Path, identity: StoreIdentity, settings: StoreSettings, *, adopt: bool) -> StoreName:
    """The store's name after checks: it is ours and has the file sizes of `settings`.

    A new one is not written yet.

    Raises StoreError for a store of another broker, and for one without a name unless `adopt` is set.
    """
    name = read_name(root)
    read_only = settings.read_only_commit_log_paths
    log_paths = tuple(map(str, dict.fromkeys((*settings.commit_log_paths, *read_only))))
    if name is None:
        if not adopt and not LogPaths(root, settings.commit_log_paths, read_only).is_empty:
            raise StoreError(
                "a store that RayMQ has not made (there is no raymq.json): "
                "set adopt_store: true on the broker if no other uses it",
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
            f"belongs to {_spelled(name.identity)}, not to {_spelled(identity)}", root / _IDENTITY_FILE
        )
    for setting in ("commit_log_file_bytes", "consume_queue_file_bytes", "index_slots", "index_entries"):
        made_with, wanted = getattr(name, setting), getattr(settings, setting)
        if made_with != wanted:
            raise StoreError(
                f"the store was made with {setting} {made_with:,}, "
                f"the settings say {wanted:,}: set it to {made_with}",
                root / _IDENTITY_FILE,
            )
    _refuse_to_leave_files(root, name.commit_log_paths, log_paths)
    _refuse_without_a_disk(root, {*name.commit_log_paths} & {*log_paths})
    return replace(name, commit_log_paths=log_paths)


def _refuse_without_a_disk(root: Path, noted: Iterable[str]) -> None:
    """Raise StoreError when a directory beside the store, with a part of its log, is not there."""
    for directory in sorted(root / path for path in noted):
        if not directory.is_relative_to(root) and not directory.is_dir():
            raise StoreError(
                "the directory with files of this store's CommitLog does not exist: mount its disk, "
                "or make the directory if they are lost",
                directory,
            )


def _refuse_to_leave_files(root: Path, noted: Iterable[str], configured: Iterable[str]) -> None:
    """Raise StoreError when a directory with a part of the log is no longer in the settings."""
    left_out = {root / path for path in noted} - {root / path for path in configured}
    for directory in sorted(left_out):
        if not LogPaths(root, [directory]).is_empty:
            raise StoreError(
                "holds files of this store's CommitLog, but the settings do not name it: add it to "
                "commit_log_paths, or to read_only_commit_log_paths if it is to get no new files",
                directory,
            )


def _spelled(identity: StoreIdentity) -> str:
    return f"broker {identity.broker!r}, replica {identity.replica}, of cluster {identity.cluster!r}"


class StoreLock:
    """The lock of a store's root, held until `release`."""

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_FILE
        self._key = str(self._path.resolve())
        self._descriptor = -1

    def acquire(self, wait_ms: int) -> None:
        """Take the lock; try for `wait_ms`. Raises StoreLocked with the PID of its holder."""
        if self._key in _locked_here:
            raise StoreError("is open in this very process", self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    holder = self._holder(descriptor)
                    os.close(descriptor)
                    raise StoreLocked(
                        f"is locked by another process{holder}: end that one first "
                        f"(tried for {wait_ms:,} ms)",
                        self._path.parent,
                    ) from None
            time.sleep(_LOCK_RETRY_S)
        os.pwrite(descriptor, b"lock", 0)
        self._descriptor = descriptor
        _locked_here.add(self._key)

    @staticmethod
    def _holder(descriptor: int) -> str:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        except OSError:
            return ""
        return f", PID {answer[4]}" if answer[0] != fcntl.F_UNLCK else ""

    def release(self) -> None:
        """Let go of the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_here.discard(self._key)


def writer_of(root: Path) -> int | None:
    """The process that has the store open, 0 if that is not to be found out; None when none has."""
    path = root / LOCK_FILE
    if str(path.resolve()) in _locked_here:
        return os.getpid()  # and nothing may be opened: closing it would end the lock
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        answer = _FLOCK.unpack(
            fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
        )
        return None if answer[0] == fcntl.F_UNLCK else int(answer[4])
    except OSError:
        return 0
    finally:
        os.close(descriptor)


class WriterEpoch:
    """This writer's number. It is no longer the writer once another has raised the epoch."""

    def __init__(self, root: Path) -> None:
        self._path = root / EPOCH_FILE
        self._descriptor = -1
        self.number = 0

    def raise_epoch(self) -> None:
        """Become the writer. Raises StoreError when the file is damaged, OSError."""
        try:
            text = self._path.read_text()
            self.number = int(text) + 1 if text.strip() else 1
        except FileNotFoundError:
            self.number = 1
        except ValueError as error:
            raise StoreError(
                "holds no number (write one into it that is above every epoch this store has had)", self._path
            ) from error
        replace_file(self._path, f"{self.number}\n".encode())
        self._descriptor = os.open(self._path, os.O_RDONLY)

    def is_ours(self) -> bool:
        """Whether nobody has raised the epoch since: a new epoch takes the file's place, so ours has no name
        then.
        """
        return self._descriptor >= 0 and os.fstat(self._descriptor).st_nlink > 0

    def close(self) -> None:
        """Stop being the writer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_epoch(root: Path) -> int:
    """The number of the last writer; 0 when there was none, or when it cannot be read."""
    try:
        return int((root / EPOCH_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return 0


class AbortFile:
    """Tells the next start whether this one ended in order."""

    def __init__(self, root: Path) -> None:
        self._path = root / _ABORT_FILE

    @property
    def exists(self) -> bool:
        """Whether the last writer was not closed cleanly."""
        return self._path.exists()

    def create(self) -> None:
        """A writer has begun."""
        self._path.write_text(str(os.getpid()))
        sync_directory(self._path.parent)

    def remove(self) -> None:
        """The writer has ended in order."""
        self._path.unlink(missing_ok=True)
        sync_directory(self._path.parent)


class Guards(NamedTuple):
    """What keeps other writers out."""

    lock: StoreLock
    epoch: WriterEpoch
    abort: AbortFile

    @classmethod
    def take(cls, root: Path, wait_ms: int) -> "Guards":
        """Lock the store at `root`, and no more yet. Raises StoreError, OSError."""
        lock = StoreLock(root)
        lock.acquire(wait_ms)
        return cls(lock, WriterEpoch(root), AbortFile(root))

    def release(self) -> None:
        """Let others in."""
        self.epoch.close()
        self.lock.release()
