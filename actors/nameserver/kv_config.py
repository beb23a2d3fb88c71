"""KVConfig: small settings that clients and brokers share, by namespace and key; kept in
`config/kvConfig.json`.
"""

from pathlib import Path
from typing import Any, Final

from store.metadata import JsonConfigFile
from store.metadata.fields import table_entries

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"


class KVConfig:
    """RocketMQ's KVConfigManager. Every change is on disk before it is answered; raises OSError where it
    cannot be.
    """

    def __init__(self, data_dir: Path | None) -> None:
        self._file = None if data_dir is None else JsonConfigFile(data_dir / "config" / "kvConfig.json")
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read what was kept; raises StoreError where that is damaged."""
        found = None if self._file is None else self._file.read(_table)
        self._table = found or {}

    def get(self, namespace: str, key: str) -> str | None:
        """One value."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """All values of a namespace."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        self._table.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value; one that is not there is removed already. Its namespace stays, as in RocketMQ."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def _save(self) -> None:
        if self._file is not None:
            self._file.save({"configTable": self._table})


def _table(content: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {
        namespace: {key: str(value) for key, value in values.items()}
        for namespace, values in table_entries(content, "configTable").items()
    }
