"""Opens the store of a replica of a Raft group, and restores its RaftNode.

    raymq.json         must have the store id that `raft_members` names: a lost disk makes a new member
    raymq.raft         term, vote and members (TermFile)
    raymq.raft.bound   how far the log was confirmed before it was opened (bound_file.py)
    raymq.raft.rebuild consume queues and index must be derived again (renewal.py)

Opening a store writes a checkpoint of what is left of its log. So the bound of the checkpoint before is saved
first: a replica that has lost confirmed records must know it, also if it stops while it opens its store.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from actors.broker.broker_settings import BrokerSettings, raft_member
from actors.broker.replication.raft.renewal import renew_store, require_rebuild
from actors.broker.replication.raft_log import RaftConfirm, RaftLog
from actors.raft.bound_file import raise_bound
from actors.raft.effects import SavedTerm
from actors.raft.members import Member, Members
from actors.raft.node import RaftNode
from actors.raft.state import Timing
from actors.raft.term_file import TERM_FILE, TermFile
from store.commitlog.positions import ConfirmPolicy
from store.common.clock import NS_PER_MS, Clock
from store.message_store import MessageStore
from store.ownership.identity import read_name
from store.recovery.summary import read_summary
from store.store_errors import StoreError

OpenStore = Callable[[ConfirmPolicy], MessageStore]
DEFAULT_NODE: Final = partial(RaftNode, timing=Timing())


@dataclass(frozen=True, slots=True)
class RaftReplica:
    """A replica whose store is open."""

    group: str
    node: RaftNode
    log: RaftLog
    store: MessageStore
    term_file: TermFile
    addresses: Mapping[Member, str]
    """The addresses in the setting `raft_members`; other members are reached as their group says."""


def open_replica(
    settings: BrokerSettings,
    clock: Clock,
    rng: random.Random,
    open_store: OpenStore,
    make_node: Callable[..., RaftNode] = DEFAULT_NODE,
) -> RaftReplica:
    """Open the store of the replica that the settings describe.

    The store ids in `raft_members` are those of the first members. A replica that has a term file knows its
    group from there and from the log; only its own entry must still be right. Without `raft_members` it
    begins with an empty store and waits until the leader of a running group adds it.

    Raises:
        StoreError: the store is missing, was just created and is not in `raft_members` yet, has another id,
            was written outside of the group, or cannot be opened; the file of term or bound is damaged.
        OSError: a file cannot be written.
    """
    root, group = settings.store_root, f"{settings.cluster_name}/{settings.broker_name}"
    listed = [raft_member(each) for each in settings.raft_members]
    ids = [store_id for store_id, _ in listed]
    me = Member(settings.replica, _own_store_id(settings, ids, open_store))
    term_file = TermFile(root, group, me)
    saved = term_file.read()
    _check_own_id(settings, ids, me, saved)
    members = Members() if saved is not None else _members(ids)
    bound = _save_bound(root, me.store_id)
    renew_store(root, 0 if saved is None else saved.join_offset, settings.store.lock_timeout_ms)
    confirm = RaftConfirm()
    store = open_store(confirm)
    try:
        if saved is None:
            saved = _first_term(store, term_file, members)
        saved = with_group_id(saved, group)
        log = RaftLog(store, confirm, group, me)
        log.remove_unfinished_tail()
        if log.damage is not None:
            require_rebuild(root)  # recovery may have derived another topic, also if the record is deleted
        now = clock.monotonic_ns() // NS_PER_MS
        node = make_node(me, saved, log.state(bound), now_ms=now, rng=rng)
    except BaseException:
        store.close()
        raise
    addresses = {Member(number, each[0]): each[1] for number, each in enumerate(listed)}
    return RaftReplica(group, node, log, store, term_file, addresses)


def _own_store_id(settings: BrokerSettings, ids: Sequence[str], open_store: OpenStore) -> str:
    """Return the id of this replica's store, which is created if it is to be, or to join a running group.

    Raises StoreError if it is missing, and if it was created but is to be put into `raft_members`.
    """
    root, replica = settings.store_root, settings.replica
    wanted, name = ids[replica] if ids else "", read_name(root)
    if name is not None:
        return name.store_id
    if wanted:
        raise StoreError(
            f"has no store, but raft_members names store {wanted} for replica {replica}: restore it, or "
            "start it with an empty store and without raft_members (`raymq up --join`), and replace it "
            "(`raymq replica replace`); one that has lost its store must not continue under the old id, "
            "because it has lost what it acknowledged",
            root,
        )
    store = open_store(RaftConfirm())
    store_id = store.identity.store_id
    store.close()
    if ids:
        raise StoreError(
            f"the store of replica {replica} was created: put its id {store_id} into raft_members of all "
            f"replicas, as {store_id}@HOST:PORT, and start again",
            root,
        )
    return store_id


def _check_own_id(settings: BrokerSettings, ids: Sequence[str], me: Member, saved: SavedTerm | None) -> None:
    """Raise StoreError if `raft_members` has another store for this replica, and its log does not explain it.

    The setting may be older than a change of the members.
    """
    wanted = ids[me.replica] if ids else me.store_id
    if wanted == me.store_id:
        return
    if saved is not None and saved.history and me in saved.history[-1].members.everyone:
        return
    raise StoreError(
        f"this is store {me.store_id}, but raft_members has {wanted or 'no store id'} for replica "
        f"{me.replica}: set the right store root, or correct raft_members on all replicas",
        settings.store_root,
    )


def with_group_id(saved: SavedTerm, group: str) -> SavedTerm:
    """Return what is saved with the id of the group; each of its first members finds the same."""
    if saved.group_id or not saved.first_members.voters:
        return saved
    stores = " ".join(each.store_id for each in saved.first_members.voters)
    return saved._replace(group_id=hashlib.sha256(f"{group} {stores}".encode()).hexdigest()[:32])


def _members(ids: Sequence[str]) -> Members:
    missing = [str(replica) for replica, store_id in enumerate(ids) if not store_id]
    if missing:
        raise StoreError(
            f"raft_members has no store id of replica {', '.join(missing)}: start each of them once; its "
            "error message has the id of the store that it has created"
        )
    return Members(tuple(Member(replica, store_id) for replica, store_id in enumerate(ids)))


def _save_bound(root: Path, store_id: str) -> int:
    """Return how far the log was confirmed when it was open, after saving it."""
    summary = read_summary(root, store_id)
    return raise_bound(root, 0 if summary is None else summary.position)


def _first_term(store: MessageStore, term_file: TermFile, members: Members) -> SavedTerm:
    """Write the first term file of a replica. Raises StoreError if its log is not empty."""
    if store.positions.written:
        raise StoreError(
            f"has a log but no {TERM_FILE}: a store that was written outside of the group cannot be its "
            "member yet, and one that has lost the file could vote twice; use an empty store",
            term_file.path.parent,
        )
    saved = SavedTerm(first_members=members)
    term_file.write(saved)
    return saved
