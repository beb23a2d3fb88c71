"""Stores of a Deduplicator: the keys of the messages that a listener has consumed.

    MemorySeen   in the process: forgotten when the process ends
    SqliteSeen   in a file: kept over restarts, and shared by the consumers of one machine

Both keep the newest `max_keys` keys. A key that was dropped counts as new again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from cluster.client.errors import ConfigInvalid
from store.common.bounded_dict import BoundedDict

DEFAULT_MAX_KEYS = 1_000_000
BUSY_TIMEOUT_S = 30.0
"""How long a call waits while another process writes to the file."""

_KEYS_PER_QUERY = 500  # SQLite allows 999 parameters in one statement, or more in newer versions

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS raymq_seen (seq INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE)"
)

_INSERT = "INSERT INTO raymq_seen (key) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM raymq_seen WHERE key = ?1)"


class SeenStore(Protocol):
    """Keys of consumed messages. Several threads may call it. Its methods may block."""

    def seen(self, keys: Collection[str]) -> set[str]:
        """Return those of `keys` that are marked. An exception makes the consumer retry the messages."""

    def mark(self, keys: Sequence[str]) -> None:
        """Mark `keys`, all of them or none. A key may be marked already."""

    def close(self) -> None:
        """Release the resources of the store."""


class MemorySeen:
    """Keeps the newest `max_keys` keys in memory, about 200 bytes each. The end of the process loses them."""

    def __init__(self, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self._keys = BoundedDict[str, None](checked_max_keys(max_keys))
        self._lock = threading.Lock()

    def seen(self, keys: Collection[str]) -> set[str]:
        """Return those of `keys` that are marked."""
        with self._lock:
            return {key for key in keys if key in self._keys}

    def mark(self, keys: Sequence[str]) -> None:
        """Mark `keys`, and drop the oldest keys beyond `max_keys`."""
        with self._lock:
            for key in keys:
                self._keys[key] = None

    def close(self) -> None:
        """Do nothing."""


class SqliteSeen:
    """Keeps the newest `max_keys` keys in a SQLite file, about 150 bytes each.

    Marks survive the kill of the process. A power loss may lose the last ones, so their messages may be
    consumed again. The consumers of one group on one machine may share the file; use another file for each
    group, and a local disk.

    Raises:
        ConfigInvalid: `path` cannot be opened as a SQLite file, or `max_keys` is not a positive integer.
    """

    def __init__(self, path: str | Path, max_keys: int = DEFAULT_MAX_KEYS) -> None:
        self._max_keys = checked_max_keys(max_keys)
        self._lock = threading.Lock()
        file = Path(path).expanduser()
        try:
            # isolation_level=None: `mark` begins its transaction itself. The lock makes threads take turns.
            self._connection = sqlite3.connect(
                file, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise ConfigInvalid(
                f"cannot open {file}: {error}: give a path in an existing directory"
            ) from error
        try:
            # With the write-ahead log, a commit needs no fsync and survives the kill of the process.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(_SCHEMA)
        except sqlite3.Error as error:
            self._connection.close()
            raise ConfigInvalid(
                f"cannot use {file}: {error}: give a new file or one of SqliteSeen"
            ) from error

    def seen(self, keys: Collection[str]) -> set[str]:
        """Return those of `keys` that are marked."""
        found: set[str] = set()
        remaining = iter(keys)
        with self._lock:
            while part := list(islice(remaining, _KEYS_PER_QUERY)):
                places = ",".join("?" * len(part))
                query = f"SELECT key FROM raymq_seen WHERE key IN ({places})"
                found.update(key for (key,) in self._connection.execute(query, part))
        return found

    def mark(self, keys: Sequence[str]) -> None:
        """Mark `keys` and drop the oldest keys beyond `max_keys`, in one transaction."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                # Not INSERT OR IGNORE, which uses a number of the sequence for each ignored row.
                self._connection.executemany(_INSERT, ((key,) for key in keys))
                self._connection.execute(
                    "DELETE FROM raymq_seen WHERE seq <= (SELECT max(seq) FROM raymq_seen) - ?",
                    (self._max_keys,),
                )
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.rollback()
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def checked_max_keys(max_keys: object) -> int:
    """Return `max_keys`. Raises ConfigInvalid unless it is a positive integer."""
    if type(max_keys) is not int or max_keys < 1:
        raise ConfigInvalid(f"max_keys is {max_keys!r}: it must be an integer greater than 0")
    return max_keys
