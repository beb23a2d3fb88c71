"""Stores of the replicas of a new Raft group: they must exist, with their ids, before the first one starts.

A group that a running broker becomes has that broker's store as its first one (`actors.raft.conversion`).

The functions run on the node of each store, as a Ray task if that is another node; arguments and results are
pickled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from actors.access.access_file import FILE_NAME
from actors.raft.conversion import bootstrap_group, check_first, leave_group, prepare_to_join
from actors.raft.term_file import TERM_FILE
from actors.wire.signing import PRIVATE_MODE
from store.commitlog.log_paths import COMMIT_LOG, LogPaths
from store.commitlog.mapped_file import file_name
from store.disk.files import sync_directory
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
        users: The content of its file of users and policies, which the log does not have; empty without one.
    """

    root: str
    identity: StoreIdentity
    settings: Mapping[str, Any]
    store_id: str
    users: bytes = field(default=b"", repr=False)


def create_stores(stores: Sequence[NewStore]) -> list[str]:
    """Create the stores that do not exist yet; return a line for each that cannot be created."""
    return _problems(_create, "created", stores)


def check_first_members(stores: Sequence[NewStore]) -> list[str]:
    """Return a line for each store of a broker that cannot become the first member of a Raft group."""
    return _problems(_check_first, "the first of a Raft group", stores)


def bootstrap_groups(stores: Sequence[NewStore]) -> list[str]:
    """Make stores of single brokers the first members of Raft groups; return a line for each failure."""
    return _problems(lambda each: bootstrap_group(Path(each.root), each.identity), "converted", stores)


def leave_groups(stores: Sequence[NewStore]) -> list[str]:
    """Make stores of the only members of groups those of single brokers; return a line for each failure."""
    return _problems(lambda each: leave_group(Path(each.root), each.identity), "converted", stores)


def create_joining_stores(stores: Sequence[NewStore]) -> list[str]:
    """Create the stores of replicas that join a group; return a line for each that cannot be created.

    What is at the place of such a store is renamed to `<store>.before-group-N`, and not deleted.
    """
    return _problems(_create_joining, "created", stores)


def read_users(root: str) -> bytes:
    """Return the content of the file of users and policies of a store; empty without one. Raises OSError."""
    path = Path(root) / "config" / FILE_NAME
    return path.read_bytes() if path.exists() else b""


def _problems(do: Callable[[NewStore], object], what: str, stores: Sequence[NewStore]) -> list[str]:
    found = []
    for store in stores:
        try:
            do(store)
        except (StoreError, OSError) as error:
            found.append(f"the store {store.root} cannot be {what}: {error}")
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


def _check_first(store: NewStore) -> None:
    root = Path(store.root)
    check_first(root, store.identity)
    resolve_name(root, store.identity, StoreSettings.model_validate(store.settings), adopt=False)


def _create_joining(store: NewStore) -> None:
    root = Path(store.root)
    present = read_name(root)
    if present is None or present.store_id != store.store_id:
        _set_aside(root, present)
        _create(store)
    if store.users:
        path = root / "config" / FILE_NAME
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(PRIVATE_MODE)
        path.write_bytes(store.users)
    prepare_to_join(root, store.identity, store.store_id)


def _set_aside(root: Path, name: StoreName | None) -> None:
    """Rename a store that is not that of this member. Raises StoreError, OSError."""
    if not root.is_dir() or not any(root.iterdir()):
        return
    if name is not None and name.commit_log_paths != (COMMIT_LOG,):
        paths = ", ".join(name.commit_log_paths)
        raise StoreError(f"has log files elsewhere ({paths}): move the store and these files away", root)
    for number in itertools.count(1):
        target = root.with_name(f"{root.name}.before-group-{number}")
        if not target.exists():
            break
    try:
        root.rename(target)
    except OSError as error:
        raise StoreError(
            f"cannot be renamed ({error}): move its files elsewhere, and repeat", root
        ) from error
    sync_directory(root.parent)
