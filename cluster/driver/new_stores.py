"""Stores of the replicas of a new Raft group: they must exist, with their ids, before the first one starts.

The functions run on the node of each store, as a Ray task if that is another node; arguments and results are
pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.raft.term_file import TERM_FILE
from store.commitlog.log_paths import LogPaths
from store.commitlog.mapped_file import file_name
from store.ownership.identity import StoreIdentity, StoreName, read_name, resolve_name, write_name
from store.store_errors import StoreError
from store.store_settings import StoreSettings


@dataclass(frozen=True)
class StoreFound:
    """What is at the place of a store.

    Attributes:
        store_id: Id of the store; empty without a store.
        is_member: The store is a member of a Raft group, or was one.
        has_records: The log is not empty.
        problem: Why the store cannot be read; empty if it can.
    """

    store_id: str = ""
    is_member: bool = False
    has_records: bool = False
    problem: str = ""


def find_stores(roots: Sequence[str]) -> list[StoreFound]:
    """Return what is at each of these places."""
    return [_find(Path(root)) for root in roots]


def _find(root: Path) -> StoreFound:
    try:
        name = read_name(root)
        if name is None:
            return StoreFound()
        return StoreFound(name.store_id, (root / TERM_FILE).exists(), _has_records(root, name))
    except (StoreError, OSError) as error:
        return StoreFound(problem=str(error))


def _has_records(root: Path, name: StoreName) -> bool:
    """Return True if the log has a record: the first one begins with its size, which is not 0."""
    files = LogPaths(root, tuple(map(Path, name.commit_log_paths))).scan(name.commit_log_file_bytes)
    if not files:
        return False
    base = min(files)
    if base:
        return True
    with (files[base] / file_name(base)).open("rb") as file:
        return any(file.read(4))


@dataclass(frozen=True)
class NewStore:
    """A store to be created.

    Attributes:
        root: Its directory.
        identity: The replica to which it will belong.
        settings: Its settings (StoreSettings), as JSON values.
        store_id: Its id.
    """

    root: str
    identity: StoreIdentity
    settings: Mapping[str, Any]
    store_id: str


def create_stores(stores: Sequence[NewStore]) -> list[str]:
    """Create the stores that do not exist yet; return a line for each that cannot be created."""
    found = []
    for store in stores:
        try:
            _create(store)
        except (StoreError, OSError) as error:
            found.append(f"the store {store.root} cannot be created: {error}")
    return found


def _create(store: NewStore) -> None:
    root, settings = Path(store.root), StoreSettings.model_validate(store.settings)
    present = read_name(root)
    if present is None:
        name = resolve_name(root, store.identity, settings, adopt=False)
        root.mkdir(parents=True, exist_ok=True)
        LogPaths(root, settings.commit_log_paths, settings.read_only_commit_log_paths).prepare()
        write_name(root, replace(name, store_id=store.store_id))
    elif present.store_id != store.store_id:
        raise StoreError(f"there is a store {present.store_id} instead of {store.store_id}", root)
