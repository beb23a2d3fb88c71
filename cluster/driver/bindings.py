"""Copies of the store bindings in the cluster's home directory, so that they outlive Ray.

Ray's key-value store has the current bindings, and `<home>/elastic/<actor>.json` a copy of each.
"""

from __future__ import annotations

from pathlib import Path

from actors.host import store_binding
from actors.host.store_binding import StoreBinding
from cluster.driver.launch_errors import refusing_damage
from store.disk.files import replace_file

FOLDER = "elastic"
_REMEDY = (
    "restore it from a backup, or delete it: without it and without the record in Ray, the broker may start "
    "with an empty store on another node than the one that holds its messages"
)


def exchange(home: Path, namespace: str) -> None:
    """Restore bindings that this Ray does not have from the home directory, and copy the others to it."""
    current = store_binding.find_all(namespace)
    for actor, binding in read_all(home).items():
        if actor not in current:
            store_binding.save(namespace, actor, binding)
    for actor, binding in current.items():
        write(home, actor, binding)


def in_use(namespace: str) -> list[str]:
    """Return the elastic brokers that were not removed. They do not run if the head was lost."""
    return [actor for actor, binding in store_binding.find_all(namespace).items() if binding.is_in_use]


def read_all(home: Path) -> dict[str, StoreBinding]:
    """Return the bindings in the home directory, by actor name. Raises LaunchRefused for a damaged file."""
    found = {}
    for path in (home / FOLDER).glob("*.json"):
        with refusing_damage(path, _REMEDY):
            found[path.stem] = StoreBinding.decode(path.read_bytes())
    return found


def write(home: Path, actor: str, binding: StoreBinding) -> None:
    """Write the copy of one binding."""
    (home / FOLDER).mkdir(parents=True, exist_ok=True)
    replace_file(home / FOLDER / f"{actor}.json", binding.encode())
