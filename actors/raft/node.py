"""RaftNode: one replica of a group, without I/O and without a clock of its own.

    messages of other replicas ┐                      ┌ SaveTerm, Send, Append, Truncate, Confirm, …
    time, flushes, appends     ┴→ on(input, now_ms) ─→  ┴ effects, which the owner executes in order

`now_ms` is a monotonic time. The owner calls `on(Tick(), now_ms)` at `deadline_ms`, reports appends and
flushes of its log, and passes each message of another replica of the same group. It must not do so while it
executes the effects of another input, except as an effect requests.

The rules that keep confirmed records are written at the places that follow them: `Election.is_complete`,
`Following.is_expected`, `Leading.count`, `Leading.is_of_this_term`, `check_change`.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from actors.raft.effects import Effect, SavedTerm
from actors.raft.election import Election
from actors.raft.following import Following
from actors.raft.history import GroupRecord
from actors.raft.leading import Leading
from actors.raft.members import Member, Members
from actors.raft.messages import (
    Ack,
    CampaignNow,
    FetchRequest,
    JoinFrom,
    LeaderNotice,
    Message,
    Mismatch,
    NotServed,
    Records,
    RepairBytes,
    RepairRequest,
    VoteRequest,
    VoteResponse,
)
from actors.raft.state import LogState, ReplicaState, Role, Timing


class Tick(NamedTuple):
    """Time has passed."""


class Appended(NamedTuple):
    """The leader's owner has appended records; the log ends at `end`."""

    end: int


class GroupRecordAppended(NamedTuple):
    """The effect AppendGroupRecord was executed: `record` is in the log, which ends at `end`."""

    record: GroupRecord
    end: int


class Flushed(NamedTuple):
    """The bytes that the log has now up to `offset` are durable."""

    offset: int


class Damaged(NamedTuple):
    """The bytes [begin, end) of the log were found damaged."""

    begin: int
    end: int


class RangeRepaired(NamedTuple):
    """The damaged range was overwritten with valid records, durably."""


class GroupNamed(NamedTuple):
    """The leader that this replica follows has named the id of the group."""

    group_id: str


class Trimmed(NamedTuple):
    """The oldest files of the log were deleted; it begins at `offset`, which is confirmed.

    The owner compares the beginning of its log before each input: retention may delete files at any turn.
    """

    offset: int


Input: TypeAlias = (
    Message | Tick | Appended | GroupRecordAppended | Flushed | Damaged | RangeRepaired | GroupNamed | Trimmed
)


class RaftNode:
    """One replica of a group."""

    def __init__(
        self,
        me: Member,
        saved: SavedTerm,
        log: LogState,
        *,
        now_ms: int,
        rng: random.Random,
        timing: Timing,
    ) -> None:
        """Create the node of a replica that has just started.

        Args:
            me: This replica and its store.
            saved: What was saved last; `first_members` is empty for a replica that joins a running group.
            log: The log as recovered.
            now_ms: The monotonic time.
            rng: Chooses election times and request ids.
            timing: The times of the group, equal in all replicas.

        Raises ValueError if fetches would be held for so long that followers call elections.
        """
        if timing.hold_ms * 2 > timing.election_ms:
            raise ValueError(
                f"hold_ms {timing.hold_ms:,} is more than half of election_ms {timing.election_ms:,}"
            )
        self._state = state = ReplicaState(me, saved, log, timing, rng)
        self._leading = Leading(state)
        self._following = Following(state)
        self._election = Election(state, lambda: self.is_damaged, now_ms)
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Tick: self._on_tick,
            Appended: lambda each, now_ms: self._leading.on_appended(each.end, now_ms),
            GroupRecordAppended: lambda each, now_ms: self._leading.on_group_record(
                each.record, each.end, now_ms
            ),
            Flushed: self._on_flushed,
            Damaged: self._on_damaged,
            RangeRepaired: lambda _, __: self._following.on_repaired(),
            GroupNamed: lambda each, _: state.set_group_id(each.group_id),
            Trimmed: self._on_trimmed,
            VoteRequest: self._election.on_vote_request,
            VoteResponse: self._on_vote_response,
            CampaignNow: self._on_campaign_now,
            FetchRequest: self._on_fetch,
            Ack: self._on_ack,
            LeaderNotice: self._on_notice,
            Records: self._on_response,
            Mismatch: self._on_response,
            JoinFrom: self._on_response,
            NotServed: self._on_response,
            RepairRequest: self._on_repair_request,
            RepairBytes: self._on_repair_bytes,
        }
        self._of_response: dict[type, Callable[[Any, int], None]] = {
            Records: self._following.on_records,
            Mismatch: self._following.on_mismatch,
            JoinFrom: self._following.on_join,
            NotServed: self._following.on_not_served,
        }

    # ---- state ---------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This replica and its store."""
        return self._state.me

    @property
    def role(self) -> Role:
        """What this replica is at present."""
        return self._state.role

    @property
    def term(self) -> int:
        """The greatest term that this replica knows."""
        return self._state.term

    @property
    def leader(self) -> Member | None:
        """The leader of this term, if known."""
        return self._state.leader

    @property
    def group_id(self) -> str:
        """The id of the group; empty if this replica does not know it yet."""
        return self._state.group_id

    @property
    def members(self) -> Members:
        """The members of the group as of the end of this log."""
        return self._state.members

    @property
    def confirmed(self) -> int:
        """The CommitLog offset up to which the log is final."""
        return self._state.confirmed

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """Each term in the log with the offset at which it begins."""
        return self._state.history.epochs

    @property
    def is_electable(self) -> bool:
        """False while this replica lacks confirmed bytes that it once had."""
        return self._state.is_electable and not self.is_damaged

    @property
    def is_damaged(self) -> bool:
        """True while a damaged range of the log is neither repaired nor deleted."""
        return self._following.damage is not None

    @property
    def accepts_sends(self) -> bool:
        """True if this replica leads, and its owner may append records."""
        return self._leading.is_open

    @property
    def match_offsets(self) -> dict[Member, int]:
        """The position up to which each other member has flushed the leader's log; empty on a follower."""
        if self._state.role is not Role.LEADER:
            return {}
        return {member: progress.match for member, progress in self._leading.progress.items()}

    def active_voters(self, now_ms: int) -> int:
        """Return how many voters sent something within an election time, the leader included; else 0."""
        return self._leading.active_voters(now_ms) if self._state.role is Role.LEADER else 0

    @property
    def deadline_ms(self) -> int:
        """Time in ms at which the node needs the next Tick."""
        if self._state.role is Role.LEADER:
            return self._leading.deadline_ms()
        repeat = self._following.deadline_ms()
        return self._election.deadline_ms if repeat is None else min(self._election.deadline_ms, repeat)

    # ---- input ---------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Return what the owner must do first.

        If the log ends before it was known to be confirmed, this replica saves that it is not electable. The
        owner must not forget that bound of the log before.
        """
        return self._take_effects()

    def is_of_group(self, message: Message, group_id: str) -> bool:
        """Return True if a message, whose sender names `group_id`, comes from a member of this group.

        The log of this replica may be older than a change of the members. So a candidate or leader that it
        does not know is a member if it names the same group (Raft thesis, section 4.1). A replica that is no
        member itself yet takes its group from the first message.
        """
        state, sender = self._state, message.sender
        everyone = state.members.everyone
        if sender in everyone:
            return True
        if state.group_id and group_id:
            is_leading = isinstance(message, VoteRequest | LeaderNotice) or sender == state.leader
            return state.group_id == group_id and is_leading
        return state.me not in everyone

    def on(self, message: Input, now_ms: int) -> list[Effect]:
        """Process one input at the time `now_ms`; return what the owner must do.

        Messages that are late, repeated, or of an unknown sender cause no harm.
        """
        was_leader = self._state.role is Role.LEADER
        if was_leader and self._leading.is_overdue(now_ms):
            self._leading.on_tick(now_ms)  # first: the message may have waited while this process was stopped
        if not self._is_disturbance(message, now_ms):
            self._handlers[type(message)](message, now_ms)
        if was_leader and self._state.role is not Role.LEADER:
            self._election.arm(now_ms)  # its deadline is from before this replica led
        return self._take_effects()

    def change_members(self, members: Members, now_ms: int) -> list[Effect]:
        """Change the members of the group by one step. Raises NotAllowed; see `check_change`."""
        self._leading.change_members(members, now_ms)
        return self._take_effects()

    @property
    def is_settled(self) -> bool:
        """True if this replica leads, and the members of the group are confirmed."""
        return self._state.role is Role.LEADER and self._leading.is_settled()

    def has_caught_up(self, member: Member) -> bool:
        """Return True if this replica leads and `member` has flushed all that is confirmed."""
        return self._state.role is Role.LEADER and self._leading.has_caught_up(member)

    def needed_offset(self, since_ms: int) -> int | None:
        """Return the CommitLog offset from which on other members still need this leader's log.

        Members that sent nothing after `since_ms` are not waited for. A new leader first has to
        compare the logs: until then it is 0. None if this replica does not lead.
        """
        return self._leading.needed_offset(since_ms) if self._state.role is Role.LEADER else None

    def transfer(self, to: Member, now_ms: int) -> list[Effect]:
        """Transfer the leadership to another voter. Raises NotAllowed.

        If `to` is not elected within an election time, this replica accepts sends again.
        """
        self._leading.transfer(to, now_ms)
        return self._take_effects()

    def resign(self, reason: str, now_ms: int) -> list[Effect]:
        """Stop leading, for example because the log cannot be written or is damaged."""
        self._state.lose_leadership(reason)
        self._election.arm(now_ms)
        return self._take_effects()

    def _take_effects(self) -> list[Effect]:
        state = self._state
        state.save_if_changed()
        effects, state.effects = state.effects, []
        return effects

    def _is_disturbance(self, message: Input, now_ms: int) -> bool:
        """Return True for a greater term of a replica that is no member, while there is a leader.

        It may have been removed. A new leader repeats its notice until the lease of the old one is over.
        """
        state = self._state
        if not isinstance(message, VoteRequest | LeaderNotice) or message.term <= state.term:
            return False
        everyone = state.members.everyone
        is_stranger = state.me in everyone and message.sender not in everyone
        return is_stranger and self._election.has_leader(now_ms)

    # ---- time and log --------------------------------------------------------------------------------------

    def _on_tick(self, _: Tick, now_ms: int) -> None:
        if self._state.role is Role.LEADER:
            self._leading.on_tick(now_ms)
        elif now_ms >= self._election.deadline_ms:
            if self._election.call(now_ms):
                self._leading.begin(now_ms)
        else:
            self._following.on_tick(now_ms)

    def _on_flushed(self, flushed: Flushed, now_ms: int) -> None:
        self._state.flushed = flushed.offset
        if self._state.role is Role.LEADER:
            self._leading.on_flushed(now_ms)
        else:
            self._following.on_flushed(now_ms)

    def _on_damaged(self, damaged: Damaged, now_ms: int) -> None:
        self._state.lose_leadership(f"the log is damaged at offset {damaged.begin:,}")
        self._following.on_damage(damaged.begin, damaged.end)

    def _on_trimmed(self, trimmed: Trimmed, now_ms: int) -> None:
        self._state.min = max(self._state.min, trimmed.offset)
        self._state.save_history()
        self._following.on_trimmed(trimmed.offset)

    # ---- election ------------------------------------------------------------------------------------------

    def _on_vote_response(self, response: VoteResponse, now_ms: int) -> None:
        if self._election.on_vote_response(response, now_ms):
            self._leading.begin(now_ms)

    def _on_campaign_now(self, message: CampaignNow, now_ms: int) -> None:
        if self._election.on_campaign_now(message, now_ms):
            self._leading.begin(now_ms)

    def _on_notice(self, notice: LeaderNotice, now_ms: int) -> None:
        state = self._state
        if notice.term < state.term:
            # The sender cannot lead this replica: it must learn the greater term.
            reason = f"term {notice.term} is over: the term is {state.term}"
            state.send(notice.sender, NotServed(state.me, state.term, -1, None, reason))
            return
        self._enter(notice.term)
        if state.role is not Role.LEADER:
            self._election.heard_leader(now_ms)
            self._following.on_notice(notice, now_ms)

    # ---- leader --------------------------------------------------------------------------------------------

    def _on_fetch(self, request: FetchRequest, now_ms: int) -> None:
        state = self._state
        self._enter(request.term)
        if request.term == state.term and state.role is Role.LEADER:
            self._leading.on_fetch(request, now_ms)
            return
        leader = state.leader if state.leader != request.sender else None
        reason = f"replica {state.me.replica} does not lead term {state.term}"
        state.send(request.sender, NotServed(state.me, state.term, request.request_id, leader, reason))

    def _on_ack(self, ack: Ack, now_ms: int) -> None:
        if ack.term == self._state.term and self._state.role is Role.LEADER:
            self._leading.on_ack(ack, now_ms)

    def _on_repair_request(self, request: RepairRequest, now_ms: int) -> None:
        if request.term == self._state.term and self._state.role is Role.LEADER:
            self._leading.on_repair_request(request)

    # ---- follower ------------------------------------------------------------------------------------------

    def _on_response(self, response: Records | Mismatch | JoinFrom | NotServed, now_ms: int) -> None:
        state = self._state
        if response.term > state.term:
            state.raise_term(response.term)
            if isinstance(response, NotServed):
                self._following.on_not_served(response, now_ms)
        elif response.term == state.term and self._following.is_expected(response):
            if not isinstance(response, NotServed):
                self._election.heard_leader(now_ms)
            self._of_response[type(response)](response, now_ms)

    def _on_repair_bytes(self, response: RepairBytes, now_ms: int) -> None:
        if response.term == self._state.term and response.sender == self._state.leader:
            self._following.on_repair_bytes(response)

    def _enter(self, term: int) -> None:
        if term > self._state.term:
            self._state.raise_term(term)
