"""KeptRecords: the driver's records by name, in Ray's key-value store and in files of the home directory.

A new Ray knows no records, and a home directory that was restored from a backup may have old ones. If both
places have a record, that in Ray is valid, unless the caller can tell which of the two is newer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from actors.host import ray_port
from cluster.control.launch_errors import refusing_damage
from store.disk.files import replace_file

_REMEDY_IN_RAY = "stop the cluster with `raymq down`; a new Ray gets the record from the home directory"


class Record(Protocol):
    """A record of a broker or a group of brokers."""

    def encode(self) -> bytes:
        """Return the record as JSON."""


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class KeptRecords(Generic[R]):
    """Records of one kind.

    Attributes:
        prefix: Begin of their keys in Ray; the name follows.
        folder: Folder of the home directory with a file `NAME.json` for each.
        decode: Returns an encoded record. Raises ValueError or TypeError for damaged data.
        remedy: What to do with a damaged file.
        is_newer: Returns True if its first argument, from the home directory, replaces the second, from Ray.
    """

    prefix: str
    folder: str
    decode: Callable[[bytes], R]
    remedy: str
    is_newer: Callable[[R, R], bool] = lambda _copy, _current: False

    def exchange(self, home: Path, namespace: str) -> dict[str, R]:
        """Return all records by name, and complete both places. Raises LaunchRefused for a damaged one."""
        found: dict[str, R] = {}
        for key in ray_port.recalled_keys(namespace, self.prefix):
            if (data := ray_port.recall(namespace, key)) is not None:
                with refusing_damage(f"the key {key} of namespace {namespace} in Ray", _REMEDY_IN_RAY):
                    found[key.removeprefix(self.prefix)] = self.decode(data)
        for path in (home / self.folder).glob("*.json"):
            with refusing_damage(path, self.remedy):
                copy = self.decode(path.read_bytes())
            if path.stem not in found or self.is_newer(copy, found[path.stem]):
                found[path.stem] = copy
                ray_port.remember(namespace, self.prefix + path.stem, copy.encode())
        for name, record in found.items():
            self._write(home, name, record)
        return found

    def save(self, home: Path, namespace: str, name: str, record: R) -> None:
        """Save a record in both places."""
        self._write(home, name, record)
        ray_port.remember(namespace, self.prefix + name, record.encode())

    def forget(self, home: Path, namespace: str, name: str) -> None:
        """Remove a record from both places."""
        (home / self.folder / f"{name}.json").unlink(missing_ok=True)
        ray_port.forget(namespace, self.prefix + name)

    def _write(self, home: Path, name: str, record: R) -> None:
        (home / self.folder).mkdir(parents=True, exist_ok=True)
        replace_file(home / self.folder / f"{name}.json", record.encode())
