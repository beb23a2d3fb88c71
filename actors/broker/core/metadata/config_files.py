"""ConfigFiles: the broker's tables on disk (RocketMQ's `config/*.json`), saved after they have changed.

The event loop takes a snapshot of a table as plain data. A thread encodes, writes and syncs it, one file at a
time. A table that may be large is encoded on the event loop instead, one piece per turn, because an encoder
in a thread would hold the GIL for the whole table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from store.common.json_file import JsonConfigFile
from store.common.logs import get_logger
from store.metadata.pieces import content_pieces

_log = get_logger(__name__)

Parsed = TypeVar("Parsed")


class Encodable(Protocol):
    """A table."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file; later changes of the table do not affect it."""


Table = TypeVar("Table", bound=Encodable)

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
LMQ_OFFSETS = "lmqConsumerOffset.json"
"""RocketMQ saves the offsets of all groups here instead if `enableLmq` is set. It is only read."""
DELAYS = "delayOffset.json"
FILTERS = "consumerFilter.json"
ORDERS = "consumerOrderInfo.json"
GENERATIONS = "raymqGenerations.json"
REQUEST_MODES = "messageRequestMode.json"


@dataclass(slots=True)
class _Entry:
    file: JsonConfigFile
    pieces: Callable[[], Iterator[bytes]]
    is_dirty: bool = False
    changes: int = 0


class ConfigFiles:
    """The config files of one broker, each with a function that returns its current content."""

    def __init__(self, store_root: Path) -> None:
        self._directory = store_root / "config"
        # One object per file, because it remembers if the file was damaged.
        self._files: dict[str, JsonConfigFile] = {}
        self._entries: dict[str, _Entry] = {}
        self._saving = asyncio.Lock()
        self.changed = asyncio.Event()
        """Set while a file may have to be saved."""

    def load(self, name: str, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """Return the parsed file, or its backup if the file is damaged, or `parse({})` if there is no file.

        Raises:
            StoreError: the file and its backup are damaged.
        """
        found = self._file(name).read(parse)
        return parse({}) if found is None else found

    def open(self, name: str, parse: Callable[[dict[str, Any]], Table]) -> Table:
        """Load a file as `load` does, and register it: after `mark_changed`, `save_changed` writes it."""
        table = self.load(name, parse)
        self.register_large(name, lambda: content_pieces(table.to_json()))
        return table

    def _file(self, name: str) -> JsonConfigFile:
        return self._files.setdefault(name, JsonConfigFile(self._directory / name))

    def register_large(self, name: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        """Register a file for a large table, which `pieces` encodes as JSON piece by piece."""
        self._entries[name] = _Entry(self._file(name), pieces)

    def mark_changed(self, name: str) -> None:
        """Mark a registered file as changed, so that the next `save_changed` writes it."""
        entry = self._entries[name]
        entry.changes += 1
        self._make_dirty(entry)

    def changes(self, name: str) -> int:
        """Return how often a registered file was marked as changed."""
        return self._entries[name].changes

    async def save_changed(self) -> None:
        """Write all files that are marked as changed. A file that cannot be written stays marked.

        If the caller is cancelled, the save continues in its thread, and the next call waits for it.
        """
        await asyncio.shield(self._save_changed())

    async def _save_changed(self) -> None:
        async with self._saving:
            for name, entry in self._entries.items():
                if not entry.is_dirty:
                    continue
                entry.is_dirty = False
                try:
                    await _save(entry)
                except OSError as error:
                    self._make_dirty(entry)
                    _log.error("config_save_failed", file=name, error=str(error))
                except Exception:
                    self._make_dirty(entry)  # else the restarted task would not save it
                    raise

    def _make_dirty(self, entry: _Entry) -> None:
        entry.is_dirty = True
        self.changed.set()


async def _save(entry: _Entry) -> None:
    """Write the current content of a file. Raises OSError."""
    text = bytearray()
    for piece in entry.pieces():
        text += piece
        await asyncio.sleep(0)
    await asyncio.to_thread(entry.file.save_text, bytes(text))
