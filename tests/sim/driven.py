"""What a RaftDriver needs of a broker, of a simulated replica: node, log, store, files and timers.

              ┌ SteppedNode   RaftNode, whose effects the simulation sees one by one
RaftDriver  → ┼ DrivenLog     the log, with the checks of each step
              ├ DrivenStore   the store
              └ SimReplica    network, timers, clock, role
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from actors.raft.effects import Effect
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.node import RaftNode
from actors.raft.term_file import TermFile
from store.writing.send_gate import SendGate

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica

GROUP = "DefaultCluster/broker-a"


class Opened(NamedTuple):
    """A replica whose log is open."""

    node: RaftNode
    term_file: TermFile
    addresses: Mapping[Member, str]


class SteppedNode(RaftNode):
    """A node that reports each effect before its owner executes it; the process may end there."""

    def __init__(self, *arguments: Any, on_effect: Callable[[Effect], None], **named: Any) -> None:
        self._on_effect = on_effect
        super().__init__(*arguments, **named)

    def _take_effects(self) -> Any:
        return self._reported(super()._take_effects())

    def _reported(self, effects: list[Effect]) -> Iterator[Effect]:
        for effect in effects:
            self._on_effect(effect)
            yield effect


class SimFiles:
    """The small files of a model replica: a replacement is durable when it returns, and never torn."""

    def __init__(self) -> None:
        self._contents: dict[Path, bytes] = {}
        self.fails_next = False
        self.has_failed = False

    def read(self, path: Path) -> bytes:
        """Return the content. Raises FileNotFoundError."""
        if path not in self._contents:
            raise FileNotFoundError(path)
        return self._contents[path]

    def replace(self, path: Path, content: bytes) -> None:
        """Replace the content. Raises OSError if a failure was ordered."""
        if self.fails_next:
            self.fails_next, self.has_failed = False, True
            raise OSError(errno.ENOSPC, "the disk is full")
        self._contents[path] = content


class ModelStore:
    """What a RaftDriver uses of the store of a ModelLog."""

    write_refusal = None

    def __init__(self) -> None:
        self.gate = SendGate(Path())

    @property
    def positions(self) -> ModelStore:
        return self

    def forget_end(self) -> None:
        """A model log has no readers."""

    def confirm(self) -> None:
        """A model log has no callbacks."""

    def abandon_unconfirmed(self, error: Exception) -> None:
        """See `confirm`."""


class DrivenStore:
    """The store of a simulated replica."""

    def __init__(self, replica: SimReplica, store: Any) -> None:
        self._replica = replica
        self._store = store
        self.retention = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def delete_before(self, offset: int) -> None:
        self._replica.log.trim(offset)

    def abandon_unconfirmed(self, error: Exception) -> None:
        self._replica.waiting.clear()
        self._store.abandon_unconfirmed(error)


class DrivenLog:
    """The log of a simulated replica; what it lacks is that of ModelLog or StoreLog."""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica
        self._log = replica.log
        self._checks = replica.sim.checks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, offset: int, max_bytes: int) -> Any:
        return self._log.read(offset)  # shorter, so that more messages are needed

    def append_group_record(self, term: int, members: Members) -> GroupRecord:
        replica = self._replica
        record, end = self._log.append_group_record(term, members)
        if len(replica.node.epochs) and replica.node.epochs[-1][0] == term:
            self._checks.on_change(replica)
        replica.last_group_record_end = end
        made: GroupRecord = record
        return made

    def truncate(self, offset: int) -> None:
        self._checks.on_truncate(self._replica, offset)
        self._log.truncate(offset)

    def confirm(self, offset: int) -> None:
        replica = self._replica
        self._checks.on_confirm(replica, self._log.confirmed, offset)
        self._log.confirm(offset)
        if replica.sim.rng.random() < 0.2:
            self._log.checkpoint()
        while replica.waiting and replica.waiting[0][0] <= offset:
            self._checks.on_ack(replica, *replica.waiting.pop(0))


def address_of(number: int) -> str:
    """Return the address of a replica, whose port is its number and 1."""
    return f"127.0.0.1:{number + 1}"


def number_of(address: str) -> int:
    """Return the replica at an address."""
    return int(address.rpartition(":")[2]) - 1


def addresses_of(members: Members) -> Mapping[Member, str]:
    """Return the addresses in `raft_members`."""
    return {each: address_of(each.replica) for each in members.voters}
