"""The broker's tables on disk: RocketMQ's `config/*.json`, saved off the loop when something has changed.

A table is turned into plain data on the loop, in one go, and encoded, written and synced in a thread, one
file at a time. A table that may be large is encoded on the loop instead, a piece a turn: an encoder in a
thread would keep the GIL from the loop all the same, and for longer.
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
    """The files of one broker, each with the function that gives its present content."""

    def __init__(self, store_root: Path) -> None:
        self._directory = store_root / "config"
        # One object a file: it knows whether the file that it found was damaged.
        self._files: dict[str, JsonConfigFile] = {}
        self._entries: dict[str, _Entry] = {}
        self._saving = asyncio.Lock()

    def load(self, name: str, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """What `parse` makes of the file (or of its backup), or of nothing where there is none.

        Raises StoreError when both are damaged.
        """
        found = self._file(name).read(parse)
        return parse({}) if found is None else found

    def keep(self, name: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        """From now on save what `snapshot` gives whenever the file is marked as changed."""
        self._entries[name] = _Entry(self._file(name), snapshot)

    def _file(self, name: str) -> JsonConfigFile:
        return self._files.setdefault(name, JsonConfigFile(self._directory / name))

    def keep_large(self, name: str, pieces: Callable[[], Iterator[bytes]]) -> None:
        """As `keep`, for a table that `pieces` gives as JSON, little by little."""
        self._entries[name] = _Entry(self._file(name), pieces=pieces)

    def changed(self, name: str) -> None:
        """Have the file saved at the next turn."""
        self._entries[name].is_dirty = True

    async def save_changed(self) -> None:
        """Save what has changed, off the loop. A file that cannot be written stays marked."""
        async with self._saving:
            for name, entry in self._entries.items():
                if not entry.is_dirty:
                    continue
                entry.is_dirty = False
                try:
                    await _save(entry)
                except OSError as error:
                    entry.is_dirty = True
                    _log.error("config_file_not_saved", file=name, error=str(error))


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
