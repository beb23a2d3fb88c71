"""Recovery of a Raft group that has lost a majority for good: one store becomes the only member of its group.

    1. raise the term by TERM_STEP, and vote for this replica in it      raymq.raft
       forget what this replica has lost                                 raymq.raft.bound
    2. append a group record with this replica as the only voter         CommitLog
    3. this replica may lead, whatever it lacks                          raymq.raft

After an interruption the command can be run again. The higher term makes nameservers prefer this replica to
the others, if they are started again: they do not know that they are no members any more.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from actors.broker.broker_settings import RAFT, BrokerSettings
from actors.broker.replication.raft.opening import RaftReplica, open_replica
from actors.broker.replication.raft.renewal import must_begin_again
from actors.raft.bound_file import read_bound, write_bound
from actors.raft.group_record import GROUP_TOPIC
from actors.raft.members import Member, Members
from actors.raft.term_file import TERM_FILE, TermFile
from store.commitlog.positions import ConfirmPolicy
from store.common.clock import Clock
from store.message.record import decode_record
from store.message_store import MessageStore
from store.ownership.identity import StoreName, read_name
from store.recovery.opening import INDEX
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.layout import require_directory

TERM_STEP: Final = 1_000


@dataclass(frozen=True)
class LastReplica:
    """What one store has of its group.

    Attributes:
        store: Its directory.
        group: The name of the group, `cluster/broker`.
        replica: The number of this replica.
        members: The members of the group, as this log knows them.
        last_term: The term of the last record.
        log_end: The CommitLog offset after the last record.
        confirmed: The offset up to which a majority is known to have had the log.
        missing_bytes: Confirmed bytes that this replica once had, and has lost.
        unconfirmed: Messages after `confirmed`: they become final, whether they were acknowledged or not.
        last_stored_ms: When the last message was stored, in ms; 0 if it is not known.
    """

    store: Path
    group: str
    replica: int
    members: Members
    last_term: int
    log_end: int
    confirmed: int
    missing_bytes: int
    unconfirmed: int
    last_stored_ms: int

    def as_json(self) -> dict[str, Any]:
        """Return the facts of a recovery."""
        return {
            "store": str(self.store),
            "group": self.group,
            "replica": self.replica,
            "voters": [each.replica for each in self.members.voters],
            "lastTerm": self.last_term,
            "logEnd": self.log_end,
            "confirmed": self.confirmed,
            "missingBytes": self.missing_bytes,
            "unconfirmedMessages": self.unconfirmed,
            "lastStoredMs": self.last_stored_ms,
        }


class GroupRecovery:
    """The recovery of a group from one open store; `recovering_group` creates it."""

    def __init__(self, replica: RaftReplica) -> None:
        self._replica = replica

    def plan(self) -> LastReplica:
        """Return what the store has of its group."""
        replica = self._replica
        node, store = replica.node, replica.store
        epochs = node.epochs
        unconfirmed = sum(
            part.record is not None and decode_record(part.record).topic != GROUP_TOPIC
            for part in replica.log.parts(node.confirmed, replica.log.end)
        )
        return LastReplica(
            store.root,
            replica.group,
            node.me.replica,
            node.members,
            epochs[-1][0] if epochs else 0,
            replica.log.end,
            node.confirmed,
            max(read_bound(store.root) - replica.log.end, 0),
            unconfirmed,
            store.recovered.tail.last_timestamp,
        )

    def run(self) -> None:
        """Make this replica the only member of its group. Raises StoreError, OSError."""
        replica, node = self._replica, self._replica.node
        saved = replica.term_file.read()
        assert saved is not None
        term = max(saved.term, node.term) + TERM_STEP
        saved = saved._replace(term=term, voted_for=node.me, is_electable=node.is_electable)
        # The others do not know that they are no members any more: they are strangers from now on.
        saved = saved._replace(group_id=f"{node.me.store_id}.{term}")
        replica.term_file.write(saved)
        # Other records follow now than those that this replica may have lost.
        write_bound(replica.store.root, node.confirmed)
        members = Members((node.me,)).with_addresses({node.me: node.members.address_of(node.me)})
        replica.log.append_group_record(term, members)
        replica.store.flush_now()
        replica.term_file.write(saved._replace(is_electable=True))


@contextmanager
def recovering_group(root: Path, clock: Clock) -> Iterator[GroupRecovery]:
    """Open the store of a stopped replica, as its next start would, and yield the recovery of its group.

    Raises:
        StoreError: there is no replica of a Raft group, a process has it open, its log is being replaced by
            its leader's or is damaged, or it cannot be opened.
        OSError: a file cannot be read or written.
    """
    require_directory(root)
    name = read_name(root)
    if name is None or not (root / TERM_FILE).exists():
        raise StoreError(f"not the store of a replica of a Raft group: it has no {TERM_FILE}", root)
    settings = _settings(root.resolve(), name)
    me = Member(name.identity.replica, name.store_id)
    saved = TermFile(root, f"{settings.cluster_name}/{settings.broker_name}", me).read()
    if saved is not None and must_begin_again(root, saved.join_offset):
        raise StoreError("its log is being replaced by that of its leader: recover another replica", root)

    def open_store(confirm: ConfirmPolicy) -> MessageStore:
        return MessageStore.open(settings.store_root, settings.store, name.identity, clock, confirm=confirm)

    replica = open_replica(settings, clock, random.Random(), open_store)
    try:
        if replica.log.damage is not None:
            begin, end = replica.log.damage
            raise StoreError(
                f"its log is damaged from {begin:,} to {end:,}, so it cannot lead: recover another replica",
                root,
            )
        yield GroupRecovery(replica)
    finally:
        replica.store.close()


def _settings(root: Path, name: StoreName) -> BrokerSettings:
    """Return settings with which the store can be opened as it is."""
    store = StoreSettings(
        commit_log_file_bytes=name.commit_log_file_bytes,
        consume_queue_file_bytes=name.consume_queue_file_bytes,
        index_slots=name.index_slots,
        index_entries=name.index_entries,
        index=(root / INDEX).exists(),
        commit_log_paths=name.commit_log_paths,
        flush="sync",
        lock_timeout_ms=0,
    )
    return BrokerSettings(
        cluster_name=name.identity.cluster,
        broker_name=name.identity.broker,
        replica=name.identity.replica,
        replication=RAFT,
        store_root=root,
        store=store,
    )
