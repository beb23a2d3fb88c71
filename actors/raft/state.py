"""ReplicaState: what election, leader and follower share, and the settings of a group."""

import random
from enum import StrEnum
from typing import NamedTuple

from actors.raft.effects import (
    Confirm,
    Effect,
    Fail,
    LoseLeadership,
    Restart,
    SavedTerm,
    SaveTerm,
    SendToMember,
)
from actors.raft.history import GroupHistory, GroupRecord
from actors.raft.members import Member, Members
from actors.raft.messages import Message


class Role(StrEnum):
    """What a replica is at present. A follower may have no leader yet, and need not be a voter."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Timing(NamedTuple):
    """Times of a group."""

    election_ms: int = 1_000
    """A follower waits between this time and twice as long for its leader before it calls an election.

    A leader that has not heard from a majority for this time resigns.
    """
    hold_ms: int = 500
    """A leader holds a fetch for this time if it has nothing new."""

    @property
    def fetch_timeout_ms(self) -> int:
        """Time after which a follower repeats a fetch that had no response."""
        return self.hold_ms * 3 // 2


class LogState(NamedTuple):
    """The log of a replica at its start, flushed up to `end`."""

    min: int
    end: int
    confirmed: int
    """An offset up to which the log is known to be final: a lower bound from before the restart."""
    records: tuple[GroupRecord, ...] = ()
    """The group records in the log."""


class ReplicaState:
    """The volatile and saved state of one replica, and the effects that the current input has caused."""

    def __init__(
        self, me: Member, saved: SavedTerm, log: LogState, timing: Timing, rng: random.Random
    ) -> None:
        is_joining = log.min < saved.join_offset
        if is_joining:
            log = LogState(saved.join_offset, saved.join_offset, saved.join_offset)
        self.me = me
        self.timing = timing
        self.rng = rng
        self.term = saved.term
        self.voted_for = saved.voted_for
        self.min = max(log.min, min(saved.history_begin, log.end))
        # What was deleted was confirmed, even if the bound on disk is older.
        confirmed = max(log.confirmed, self.min)
        self.is_electable = saved.is_electable and log.end >= confirmed
        self.first_members = saved.first_members
        self.join_offset = saved.join_offset
        self.group_id = saved.group_id
        self.end = self.flushed = log.end
        self.confirmed = min(confirmed, log.end)
        self.history = GroupHistory(saved.first_members, _all_records(saved.history, log))
        self._saved_history, self._history_begin = saved.history, saved.history_begin
        self._final_records = self.history.count_before(self.confirmed)
        self.role = Role.FOLLOWER
        self.leader: Member | None = None
        self.effects: list[Effect] = [Restart(log.min)] if is_joining else []
        self._is_dirty = self.is_electable != saved.is_electable

    @property
    def members(self) -> Members:
        """The configuration in force."""
        return self.history.members

    @property
    def is_voter(self) -> bool:
        """True if this replica counts for majorities."""
        return self.me in self.history.members.voters

    # ---- term and vote -------------------------------------------------------------------------------------

    def raise_term(self, term: int) -> None:
        """Enter a greater term as a follower without a leader."""
        self.lose_leadership(f"term {term} has begun")
        self.role = Role.FOLLOWER
        self.leader = None
        self.term = term
        self.voted_for = None
        self._is_dirty = True

    def vote_for(self, candidate: Member) -> None:
        """Vote in this term; the vote is saved before the next message."""
        self.voted_for = candidate
        self._is_dirty = True

    def set_electable(self, is_electable: bool) -> None:
        """Record whether this replica may vote and stand, before the next effect."""
        if self.is_electable != is_electable:
            self.is_electable = is_electable
            self._is_dirty = True
            self.save_if_changed()

    def set_group_id(self, group_id: str) -> None:
        """Record the id of the group, before the next effect."""
        if self.group_id != group_id:
            self.group_id = group_id
            self._is_dirty = True
            self.save_if_changed()

    def save_history(self) -> None:
        """Save the group records that are confirmed, before the next effect."""
        self._final_records = self.history.count_before(self.confirmed)
        self._saved_history, self._history_begin = self.history.before(self.confirmed, self.min), self.min
        self._is_dirty = True
        self.save_if_changed()

    def save_if_changed(self) -> None:
        """Save term, vote and electability if they have changed."""
        if self._is_dirty:
            self._is_dirty = False
            saved = SavedTerm(
                self.term,
                self.voted_for,
                self.is_electable,
                self.first_members,
                self._saved_history,
                self.join_offset,
                self._history_begin,
                self.group_id,
            )
            self.effects.append(SaveTerm(saved))

    def send(self, to: Member, message: Message) -> None:
        """Send a message. What it says about term and vote is durable before it leaves."""
        self.save_if_changed()
        self.effects.append(SendToMember(to, message))

    # ---- role ----------------------------------------------------------------------------------------------

    def lose_leadership(self, reason: str) -> None:
        """Become a follower if this replica leads."""
        if self.role is Role.LEADER:
            self.role = Role.FOLLOWER
            self.leader = None
            self.effects.append(LoseLeadership(reason))

    def fail(self, reason: str) -> None:
        """Request that the owner stops this replica."""
        self.effects.append(Fail(reason))

    # ---- log -----------------------------------------------------------------------------------------------

    def restart_log(self, offset: int, history: tuple[GroupRecord, ...]) -> None:
        """Replace the log by an empty one that begins at `offset`, after the group records `history`.

        This replica votes afterwards as before. Nothing that the group has confirmed is lost with its log:
        what is below `offset` is confirmed, so a candidate must have it, and what this log has from there on
        differs from the leader's. `join_offset` is saved first; a replica that stops before the log is
        replaced does it when it starts, and never compares the history of one log with the bytes of the
        other.
        """
        self.history = GroupHistory(self.first_members, history)
        self.min = self.end = self.flushed = self.confirmed = self.join_offset = offset
        self.save_history()
        self.effects.append(Restart(offset))

    def confirm(self, offset: int) -> None:
        """Raise the confirmed position; a lower one is ignored."""
        if offset > self.confirmed:
            self.confirmed = offset
            self.effects.append(Confirm(offset))
            if self.history.count_before(offset) != self._final_records:
                self.save_history()


def _all_records(saved: tuple[GroupRecord, ...], log: LogState) -> list[GroupRecord]:
    """Return the saved group records that the log reaches, and those after them in the log."""
    known = [each for each in saved if each.start < log.end]
    if not known:
        return list(log.records)
    return known + [each for each in log.records if each.start > known[-1].start]
