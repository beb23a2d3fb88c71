"""The masters of broker groups: which replica was promoted last, and the epoch of the group since then.

Ray's key-value store and `<home>/groups/<broker>.json` have the record of each group whose first replica is
not its master, or was not once. If they differ, the greater epoch is valid: a new Ray knows no records, and a
home directory that was restored from a backup has old ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from actors.host import ray_port
from cluster.driver.launch_errors import refusing_damage
from store.disk.files import replace_file

PREFIX = "group:"
FOLDER = "groups"
_REMEDY = (
    'restore it from a backup, or write {"epoch": E, "replica": N}: N is the number of the replica that was '
    "promoted last, and E the last epoch in epochFileCheckpoint of its store; delete it if no replica of the "
    "group was ever promoted"
)
_REMEDY_IN_RAY = "stop the cluster with `raymq down`; a new Ray gets the record from the home directory"


@dataclass(frozen=True)
class GroupMaster:
    """The master of a group: `epoch` counts its promotions, `replica` is the number of the promoted one."""

    epoch: int = 0
    replica: int = 0

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return orjson.dumps(asdict(self))

    @classmethod
    def decode(cls, data: bytes) -> GroupMaster:
        """Return the record that `encode` encoded. Raises ValueError or TypeError for damaged data."""
        found = cls(**orjson.loads(data))
        if not all(type(number) is int and number >= 0 for number in (found.epoch, found.replica)):
            raise ValueError("epoch and replica must be numbers of 0 or more")
        return found


def exchange(home: Path, namespace: str) -> dict[str, GroupMaster]:
    """Return the records of all groups by broker name, after copying the newer of both to the other place.

    Raises LaunchRefused for a damaged record.
    """
    found: dict[str, GroupMaster] = {}
    for key in ray_port.recalled_keys(namespace, PREFIX):
        if (data := ray_port.recall(namespace, key)) is not None:
            with refusing_damage(f"the key {key} of namespace {namespace} in Ray", _REMEDY_IN_RAY):
                found[key.removeprefix(PREFIX)] = GroupMaster.decode(data)
    for path in (home / FOLDER).glob("*.json"):
        with refusing_damage(path, _REMEDY):
            copy = GroupMaster.decode(path.read_bytes())
        if copy.epoch > found.get(path.stem, GroupMaster()).epoch:
            found[path.stem] = copy
    for broker, master in found.items():
        save(home, namespace, broker, master)
    return found


def save(home: Path, namespace: str, broker: str, master: GroupMaster) -> None:
    """Save the record of a group in both places."""
    (home / FOLDER).mkdir(parents=True, exist_ok=True)
    replace_file(home / FOLDER / f"{broker}.json", master.encode())
    ray_port.remember(namespace, PREFIX + broker, master.encode())
