"""ConfigFiles: the broker's tables on disk, RocketMQ's `config/*.json`, saved off the loop after changes.

The loop takes a snapshot of a table as plain data; a thread encodes, writes and syncs it, one file at a time.
A table that may be large is encoded on the loop, one piece per turn: an encoder in a thread would hold the
GIL, and for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from store.logs import get_logger
from store.metadata import JsonConfigFile

_log = get_logger(__name__)

Parsed = TypeVar("Parsed")

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
FILTERS = "consumerFilter.json"
GENERATIONS = "raymqGenerations.json"
REQUEST_MODES = "messageRequestMode.json"


@dataclass(slots=True)
class _Entry:
    file: JsonConfigFile
    snapshot: Callable[[], dict[str, Any]] | None = None
    pieces: Callable[[], Iterator[bytes]] | None = None
    is_dirty: bool = False


class ConfigFiles:
    """The files of one broker, each with the function that returns its current content."""

    def __init__(self, store_root: Path) -> None:
        self._directory = store_root / "config"
        # One object for each file: it remembers if the file was damaged.
        self._files: dict[str, JsonConfigFile] = {}
        self._entries: dict[str, _Entry] = {}
        self._saving = asyncio.Lock()

    def load(self, name: str, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """Return the parsed file or its backup, or `parse({})` without a file.

        Raises:
            StoreError: both are damaged.
        """
        found = self._file(name).read(parse)
        return parse({}) if found is None else found

    def keep(self, name: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Save what `snapshot` returns whenever the file is marked as changed."""
        self._entries[name] = _Entry(self._file(name), snapshot)

    def _file(self, name: str) -> JsonConfigFile:
        return self._files.setdefault(name, JsonConfigFile(self._directory / name))

    def keep_large(self, name: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        """As `keep`, for a table that `pieces` encodes as JSON piece by piece."""
        self._entries[name] = _Entry(self._file(name), pieces=pieces)

    def changed(self, name: str) -> None:
        """Mark the file as changed."""
        self._entries[name].is_dirty = True

    async def save_changed(self) -> None:
        """Save the changed files off the loop. A file that cannot be written stays marked.

        A save goes on if the caller is cancelled, because its thread does; the next call waits for it.
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
                    entry.is_dirty = True
                    _log.error("config_save_failed", file=name, error=str(error))
                except Exception:
                    entry.is_dirty = True  # else the restarted task would have nothing to save
                    raise


async def _save(entry: _Entry) -> None:
    """Raises OSError."""
    if entry.pieces is not None:
        text = bytearray()
        for piece in entry.pieces():
            text += piece
            await asyncio.sleep(0)
        await asyncio.to_thread(entry.file.save_text, bytes(text))
    elif entry.snapshot is not None:
        await asyncio.to_thread(entry.file.save, entry.snapshot())
