"""One of RocketMQ's `config/*.json` files and its `.bak` backup (docs/store-format.md#json-tables).

A save writes the new content to a temporary file in the store's root, renames the present file to `.bak`, and
renames the temporary file to the file's name. After a crash at any point either the file is complete (with
the old or the new content), or the old content exists as `.bak`, from which the next load reads it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from store.common.clock import NS_PER_MS
from store.common.logs import get_logger
from store.disk.files import sync_directory
from store.message.json_text import parse_rocketmq_json
from store.store_errors import StoreError

_log = get_logger(__name__)

Parsed = TypeVar("Parsed")


class JsonConfigFile:
    """A JSON file in a store's `config` directory, and its backup.

    `save` may be called in another thread, but only one save may run at a time.
    """

    def __init__(self, path: Path, temporary: Path | None = None) -> None:
        """Create the file's handler. `temporary` is the file that `save` writes first."""
        self.path = path
        self.backup = path.with_name(f"{path.name}.bak")
        self._temporary = temporary or path.parent.parent / f"{path.name}.new"
        self._is_damaged = False

    @property
    def saved_ms(self) -> int:
        """Time of the last save in ms since the epoch; 0 if neither the file nor its backup exists."""
        found = [path for path in (self.path, self.backup) if path.exists()]
        return max((path.stat().st_mtime_ns // NS_PER_MS for path in found), default=0)

    def load(self) -> dict[str, Any] | None:
        """Return the JSON object in the file or its backup, or None if neither file exists; see `read`."""
        return self.read(dict)

    def read(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed | None:
        """Return `parse` of the JSON object in the file, or in the backup if the file is missing or damaged.

        A file is damaged if it does not contain a JSON object or if `parse` raises StoreError or ValueError.
        Returns None if neither file exists. Raises StoreError if all files that exist are damaged.
        """
        faults: list[str] = []
        for path in (self.path, self.backup):
            try:
                parsed = parse(parse_rocketmq_json(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (ValueError, StoreError) as error:
                faults.append(f"{path.name}: {error}")
                self._is_damaged |= path == self.path
                continue
            if faults:
                _log.warning("config_file_damaged", path=str(self.path), error=faults[0], loaded=path.name)
            return parsed
        if faults:
            raise StoreError(
                f"the file is damaged and there is no valid backup ({'; '.join(faults)}): "
                "restore one of them, or remove the file and its .bak to start without this table",
                self.path,
            )
        return None

    def save(self, content: dict[str, Any]) -> None:
        """Replace the file's content with the JSON object `content`, durably. Raises OSError."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
        self.save_text(orjson.dumps(content, option=options))

    def save_text(self, text: bytes) -> None:
        """Replace the file's content with `text`, which is a JSON object, durably. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._temporary.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            # Keep the valid backup that the table was loaded from: a damaged file must not overwrite it.
            self.path.replace(
                self.path.with_name(f"{self.path.name}.damaged") if self._is_damaged else self.backup
            )
            sync_directory(self.path.parent)
        self._temporary.replace(self.path)
        sync_directory(self.path.parent)
        self._is_damaged = False
