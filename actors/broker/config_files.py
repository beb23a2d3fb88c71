"""The broker's tables on disk: RocketMQ's `config/*.json`, saved off the loop when something has changed.

A table is turned into plain data on the loop, in one go, and encoded, written and synced in a thread, one
file at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.logs import get_logger
from store.metadata import JsonConfigFile

_log = get_logger(__name__)

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
FILTERS = "consumerFilter.json"
GENERATIONS = "raymqGenerations.json"


@dataclass(slots=True)
class _Entry:
    file: JsonConfigFile
    snapshot: Callable[[], dict[str, Any]]
    is_dirty: bool = False


class ConfigFiles:
    """The files of one broker, each with the function that gives its present content."""

    def __init__(self, store_root: Path) -> None:
        self._directory = store_root / "config"
        self._entries: dict[str, _Entry] = {}
        self._saving = asyncio.Lock()

    def load(self, name: str) -> dict[str, Any] | None:
        """What the file (or its backup) holds, None where there is none. Raises StoreError when both are
        damaged.
        """
        return JsonConfigFile(self._directory / name).load()

    def keep(self, name: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        """From now on save what `snapshot` gives whenever the file is marked as changed."""
        self._entries[name] = _Entry(JsonConfigFile(self._directory / name), snapshot)

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
                content = entry.snapshot()
                try:
                    await asyncio.to_thread(entry.file.save, content)
                except OSError as error:
                    entry.is_dirty = True
                    _log.error("config_file_not_saved", file=name, error=str(error))
