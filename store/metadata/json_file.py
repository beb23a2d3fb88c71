"""One of RocketMQ's `config/*.json` files, with its `.bak` beside it (store format, section 5.4).

A save puts the new content in a temporary file in the store's root, renames the present file to `.bak`, and
the temporary one to the file's name. A crash at any point leaves the old content, the new, or the old as
`.bak` only, which a load then takes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson

from store.disk.files import sync_directory
from store.logs import get_logger
from store.message.json_text import parse_rocketmq_json
from store.store_errors import StoreError

logger = get_logger(__name__)

Parsed = TypeVar("Parsed")


class JsonConfigFile:
    """A file of a store's `config` directory; `save` may run in another thread, but only one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(f"{path.name}.bak")
        self._temporary = path.parent.parent / f"{path.name}.new"
        self._is_damaged = False

    def load(self) -> dict[str, Any] | None:
        """The content as it is: see `read`."""
        return self.read(dict)

    def read(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed | None:
        """What `parse` makes of the content, or of the backup's where the file is missing or damaged; None
        when neither exists.

        Damaged is what is no JSON object, and what `parse` raises StoreError or ValueError for. Raises
        StoreError when all that exists is damaged.
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
                logger.warning("config_file_damaged", path=str(self.path), fault=faults[0], used=path.name)
            return parsed
        if faults:
            raise StoreError(
                f"damaged, and no sound copy beside it ({'; '.join(faults)}): "
                "put one back, or remove the file and its .bak to start without it",
                self.path,
            )
        return None

    def save(self, content: dict[str, Any]) -> None:
        """Put `content` in the file's place, durably. Raises OSError."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
        self.save_text(orjson.dumps(content, option=options))

    def save_text(self, text: bytes) -> None:
        """Put `text`, which is the JSON of an object, in the file's place, durably. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._temporary.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            # A damaged file must not take the place of the sound backup that it was loaded from.
            self.path.replace(
                self.path.with_name(f"{self.path.name}.damaged") if self._is_damaged else self.backup
            )
            sync_directory(self.path.parent)
        self._temporary.replace(self.path)
        sync_directory(self.path.parent)
        self._is_damaged = False
