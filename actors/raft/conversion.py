"""Conversion of the store of a single broker to the first member of a Raft group, and back.

    raymq.raft        makes a store that of a member (TermFile)
    raymq.raft.left   the same file while the store is that of a single broker again

The CommitLog is not changed. A group begins with one member, which elects itself and appends the first group
record; the others join with empty logs. A group that is left has one member, whose log a single broker
continues as the leader of the last term would. So if it becomes a group again, its history is the old one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from actors.raft.effects import SavedTerm
from actors.raft.epoch_file import EPOCH_FILE_CHECKPOINT, FENCED_FILE, read_epochs
from actors.raft.group_record import GROUP_TOPIC
from actors.raft.members import Member, Members
from actors.raft.term_file import TERM_FILE, TermFile
from store.common.json_file import JsonConfigFile
from store.disk.files import sync_directory
from store.ownership.divergence import DIVERGED_FILE
from store.ownership.first_copy import COPYING_FILE
from store.ownership.identity import StoreIdentity, StoreLock, StoreName, read_name
from store.store_errors import StoreError

LEFT_FILE: Final = "raymq.raft.left"
GROUP_TABLES_FILE: Final = "raymqGroupTables.json"
UNKNOWN: Final = -1
"""In GROUP_TABLES_FILE: the tables are those of the broker, and the log is to get all of them."""
LOCK_WAIT_MS: Final = 5_000


def check_first(root: Path, identity: StoreIdentity) -> None:
    """Check that the store of a single broker, which may be open, can be the only member of a Raft group.

    Raises:
        StoreError: there is no store, it belongs to another broker, is not that of a master, or is a replica
            of a group with other members.
        OSError: a file cannot be read.
    """
    _read_left(root, identity, _name_of(root, identity))


def bootstrap_group(root: Path, identity: StoreIdentity) -> None:
    """Make the store of a single broker the only member of a Raft group; it must not be open.

    Does nothing if it is that already. The last step makes it a member, so it can be repeated.

    Raises:
        StoreError: see `check_first`; or the store is open.
        OSError: a file cannot be read or written.
    """
    with _locked(root, identity) as name:
        left = _read_left(root, identity, name)
        if (root / TERM_FILE).exists():
            return
        _forget_tables(root)
        if left is not None:
            (root / LEFT_FILE).rename(root / TERM_FILE)
            sync_directory(root)
            return
        epochs = read_epochs(root / EPOCH_FILE_CHECKPOINT)  # nameservers prefer a greater term
        me = Member(identity.replica, name.store_id)
        saved = SavedTerm(term=epochs[-1][0] if epochs else 0, first_members=Members((me,)))
        TermFile(root, _group(identity), me).write(saved)


def _read_left(root: Path, identity: StoreIdentity, name: StoreName) -> SavedTerm | None:
    """Return what the store has of the group that it was in, or None. Raises as `check_first`."""
    group, me = _group(identity), Member(identity.replica, name.store_id)
    present = TermFile(root, group, me).read()
    if present is not None:
        _check_alone(root, present, me)
        return present
    for file in (FENCED_FILE, DIVERGED_FILE, COPYING_FILE):
        if (root / file).exists():
            raise StoreError(
                f"has {file}: it is not the store of the master; promote this replica first", root
            )
    left = TermFile(root, group, me, LEFT_FILE).read()
    if left is None and (root / "consumequeue" / GROUP_TOPIC).exists():
        raise StoreError(
            f"has records of a Raft group, but no {LEFT_FILE}: restore the file, or give the group another "
            "name and an empty store",
            root,
        )
    return left


def leave_group(root: Path, identity: StoreIdentity) -> None:
    """Make the store of the only member of a Raft group that of a single broker; it must not be open.

    Does nothing if it is that already.

    Raises:
        StoreError: there is no store of a member, it belongs to another broker, its group has other members,
            or it is open.
        OSError: a file cannot be read or written.
    """
    with _locked(root, identity) as name:
        me = Member(identity.replica, name.store_id)
        saved = TermFile(root, _group(identity), me).read()
        if saved is not None:
            _check_alone(root, saved, me)
            (root / TERM_FILE).rename(root / LEFT_FILE)
            sync_directory(root)
        elif not (root / LEFT_FILE).exists():
            raise StoreError("is not the store of a replica of a Raft group", root)


def prepare_to_join(root: Path, identity: StoreIdentity, store_id: str) -> None:
    """Make a new store that of a replica which waits until the leader of its group adds it. Raises OSError.

    It may be listed in `raft_members` with the others: it is no voter before the log says so.
    """
    TermFile(root, _group(identity), Member(identity.replica, store_id)).write(SavedTerm())


def refuse_member(root: Path) -> None:
    """Raise StoreError if the store at `root` is that of a replica of a Raft group.

    A broker that writes outside of the group would make the log another one.
    """
    if (root / TERM_FILE).exists():
        raise StoreError(
            f"belongs to a replica of a Raft group ({TERM_FILE}): set replication: raft, or leave the group "
            "with `raymq migrate`",
            root,
        )


def _name_of(root: Path, identity: StoreIdentity) -> StoreName:
    """Return the name of the store of `identity`. Raises StoreError."""
    name = read_name(root)
    if name is None:
        raise StoreError("there is no store: a new group needs none, `raymq up` starts it", root)
    if name.identity != identity:
        raise StoreError(f"is the store of {name.identity}, not of {identity}: correct the names", root)
    return name


@contextmanager
def _locked(root: Path, identity: StoreIdentity) -> Iterator[StoreName]:
    """Yield the name of a store that no process has open. Raises StoreError."""
    name = _name_of(root, identity)
    lock = StoreLock(root)
    lock.acquire(LOCK_WAIT_MS)
    try:
        yield name
    finally:
        lock.release()


def _check_alone(root: Path, saved: SavedTerm, me: Member) -> None:
    members = saved.history[-1].members if saved.history else saved.first_members
    others = ", ".join(str(each.replica) for each in members.everyone if each != me)
    if others or me not in members.voters:
        raise StoreError(
            f"is a replica of a Raft group that has other members ({others or 'unknown'}): remove them first "
            "with `raymq replica remove`, while the group runs",
            root,
        )


def _forget_tables(root: Path) -> None:
    """Replace the confirmed entries of an earlier group: the tables of the broker are newer."""
    file = JsonConfigFile(root / "config" / GROUP_TABLES_FILE)
    for path in (file.path, file.backup):
        path.unlink(missing_ok=True)
    file.save({"entries": [], "nextOffset": UNKNOWN, "fullSetFrom": UNKNOWN})


def _group(identity: StoreIdentity) -> str:
    return f"{identity.cluster}/{identity.broker}"
