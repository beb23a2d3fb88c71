"""SavedSink: a dispatch sink with state that outlives the process.

    accept ──→ state ──(each checkpoint)──→ <store>/sinks/<name>
    start  ──→ load  ──→ dispatch resumes at the CommitLog offset in the file

Each sink has a file of its own, so a feature can add one without any other part that knows it: recovery
dispatches what the file lacks, a rebuild removes the file, a resync sets it aside, and a verification checks
it. Its content is the CRC-32 of the rest as 8 hexadecimal digits, and JSON:

    5f3a09c1{"storeId": "…", "end": 4096, "state": …}
"""

import binascii
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from store.common.logs import get_logger
from store.disk.files import sync_directory
from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.message.json_fields import typed

_log = get_logger(__name__)

SINKS: Final = "sinks"
"""The directory of the files, in the root of the store."""
_CRC_DIGITS: Final = 8
_NAME: Final = re.compile(r"[a-z0-9-]{1,100}")


class SavedState(NamedTuple):
    """The content of a file."""

    store_id: str
    end: int
    """The CommitLog offset before which all records are in the state."""
    state: Any

    def encode(self) -> bytes:
        """Return the content of the file."""
        body = orjson.dumps({"storeId": self.store_id, "end": self.end, "state": self.state})
        return b"%08x" % binascii.crc32(body) + body


def read_state(path: Path) -> SavedState:
    """Return the content of a file. Raises ValueError if it is damaged, OSError."""
    content = path.read_bytes()
    crc, body = content[:_CRC_DIGITS], content[_CRC_DIGITS:]
    if crc != b"%08x" % binascii.crc32(body):
        raise ValueError("its CRC does not match its content")
    fields = typed(orjson.loads(body), dict[str, Any], "state")
    end = typed(fields.get("end"), int, "end")
    return SavedState(typed(fields.get("storeId"), str, "storeId"), end, fields.get("state"))


def state_files(root: Path) -> list[Path]:
    """Return the files of all sinks, also of those that no feature has now."""
    return sorted(path for path in (root / SINKS).glob("*") if _NAME.fullmatch(path.name))


def check_state(path: Path, store_id: str, log_end: int) -> None:
    """Raise ValueError unless a file is valid, and has only records of the store's log."""
    saved = read_state(path)
    if saved.store_id != store_id:
        raise ValueError(f"it is of store {saved.store_id}, not of {store_id}")
    if saved.end > log_end:
        raise ValueError(f"end is {saved.end:,}, but the log ends at {log_end:,}")


def drop_lost_states(root: Path, store_id: str, log_end: int) -> None:
    """Remove the files that have more than the log: it may get other records there. Raises OSError."""
    for path in state_files(root):
        try:
            check_state(path, store_id, log_end)
        except ValueError as error:
            _log.warning("sink_state_lost", path=str(path), error=str(error))
            path.unlink()
            sync_directory(path.parent)


class SavedSink(ABC):
    """Derives a state from every dispatched record, each of which it gets once."""

    def __init__(self, name: str) -> None:
        """Create the sink without state; `name` is that of its file."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"sink name {name!r:.200}: use 1 to 100 of the characters a-z, 0-9 and -")
        self.name = name
        self._store_id = ""
        self._end = self._log_min = 0
        self._is_stale = False

    @abstractmethod
    def add(self, offset: int, record: memoryview) -> None:
        """Add the record at a CommitLog offset to the state."""

    @abstractmethod
    def state(self) -> Any:
        """Return the state as a JSON value; called on the store's thread at each checkpoint."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Replace the state by one that `state` returned; None: it begins without one.

        Raises ValueError or TypeError if it is invalid: it is derived again then.
        """

    # ---- of the store --------------------------------------------------------------------------------------

    def load(self, root: Path, store_id: str, log_min: int) -> None:
        """Load the state, when the store at `root` is opened, after `drop_lost_states`. Raises OSError."""
        self._store_id, self._end, self._is_stale, self._log_min = store_id, 0, False, log_min
        path = root / SINKS / self.name
        saved = read_state(path) if path.exists() else SavedState(store_id, 0, None)
        try:
            self.restore(saved.state)
            self._end = saved.end
        except (ValueError, TypeError) as error:
            _log.warning("sink_state_lost", path=str(path), error=str(error))
            self.restore(None)
        if 0 < self._end < log_min:
            _log.warning("sink_gap_skipped", sink=self.name, end=self._end, log_min=log_min)

    def saved(self, log_min: int) -> bytes | None:
        """Return the present content of the file; None if the log was truncated since the start.

        Args:
            log_min: The CommitLog offset at which the log begins now.
        """
        self._log_min = log_min
        return None if self._is_stale else SavedState(self._store_id, self._end, self.state()).encode()

    @property
    def missing_from(self) -> int:
        """The CommitLog offset before which all records are in the state."""
        return self._end

    def accept(self, batch: RecordBatch) -> None:
        """Add the records of a batch that are not in the state yet."""
        position, size = batch.rows[-1, : kernel.ROW_SIZE + 1].tolist()
        end = batch.file.base + position + size
        if end <= self._end or self._is_stale:
            return
        for offset, record in batch.records():
            if offset >= self._end:
                self.add(offset, record)
                self._end = offset + len(record)

    def rewind(self, offset: int) -> None:
        """Give the state up if it has records that are truncated; the next start derives it again."""
        if offset < self._end:
            self._is_stale = True
