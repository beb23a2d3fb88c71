"""KVConfig: values by namespace and key that brokers and tools share, saved in `config/kvConfig.json`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from actors.bounds import AtLimit, Bound, Use
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.json_file import JsonConfigFile
from store.message.json_fields import table_entries

CHARS_MAX: Final = 4 << 20
"""Largest size of the whole table: a namespace must fit into one response."""
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"

ENTRIES: Final = Bound("kv_entries", 10_000, AtLimit.REFUSE, "Entries of the kv config.")


class KVConfig:
    """The table of RocketMQ's KVConfigManager, saved after every change.

    Without a `data_dir` the table is only in memory. Methods that change it raise OSError if it cannot be
    saved.
    """

    def __init__(self, data_dir: Path | None, entries_max: int = ENTRIES.limit) -> None:
        self._entries_max = entries_max
        self._file = None if data_dir is None else JsonConfigFile(data_dir / "config" / "kvConfig.json")
        self._table: dict[str, dict[str, str]] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (ENTRIES.use(lambda: sum(map(len, self._table.values())), lambda: self._entries_max),)

    def load(self) -> None:
        """Load the saved table. Raises StoreError if the file and its backup are damaged."""
        found = None if self._file is None else self._file.read(_table)
        self._table = found or {}

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None if it does not exist."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace, or None for an unknown namespace."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, and save the table. Raises Refused if the table is full."""
        self._check_room(namespace, key, value)
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key if it exists, and save the table. The namespace stays, as in RocketMQ."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def _check_room(self, namespace: str, key: str, value: str) -> None:
        before = self.get(namespace, key)
        entries = sum(map(len, self._table.values()))
        if before is None and entries >= self._entries_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"cannot put key {key[:100]!r}: the kv config has max_kv_entries = {self._entries_max:,} "
                "entries; delete some, or raise the setting",
            )
        chars = sum(len(name) + len(each) for keys in self._table.values() for name, each in keys.items())
        if chars + len(key) + len(value) > CHARS_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"cannot put key {key[:100]!r}: the kv config has {chars:,} characters, and the limit is "
                f"{CHARS_MAX:,}: delete some entries",
            )

    def _save(self) -> None:
        if self._file is not None:
            self._file.save({"configTable": self._table})


def _table(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        namespace: {key: str(value) for key, value in values.items()}
        for namespace, values in table_entries(content, "configTable").items()
    }
