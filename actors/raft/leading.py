"""Leading: the leader serves its log to the other members, and confirms what a majority has flushed.

elected ──its first group record confirmed──→ open for sends ──transfer──→ handing over ──→ follower
                                                     ↑──────────time-out──────────┘
"""

from dataclasses import dataclass

from actors.raft.effects import AppendGroupRecord, BecomeLeader, OpenForSends, SendRecords, SendRepair
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members, NotAllowed, check_change
from actors.raft.messages import (
    Ack,
    CampaignNow,
    FetchRequest,
    JoinFrom,
    LeaderNotice,
    Mismatch,
    NotServed,
    Records,
    RepairBytes,
    RepairRequest,
)
from actors.raft.state import ReplicaState, Role

CONFIRM_MS = 5
"""A follower learns so much later what is confirmed if nothing is appended; its reads end there."""

LINGER_MS = 2
"""After a confirmation, followers wait so long for as much as half of what it covered.

The senders that it acknowledged send again: without the wait, rounds of one message and of all the others
would alternate.
"""


@dataclass(slots=True)
class Progress:
    """What the leader knows of one other member."""

    heard_ms: int
    """Time of its last message in this term."""
    verified: int = 0
    """End of the part of its log that was compared with the leader's in this term."""
    match: int = 0
    """End of the part that it has flushed as well."""
    is_electable: bool = True
    confirmed: int = 0
    """The confirmed position in the last response to it."""
    held: FetchRequest | None = None
    held_since_ms: int = 0


class Leading:
    """The state of a leader; unused while the replica does not lead."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self._progress: dict[Member, Progress] = {}
        self._opens_at: int | None = None  # end of the first group record of this term
        self._change_end = 0  # end of the last group record
        self._is_open = False
        self._next_tick_ms = 0
        self._checked_ms = 0
        self._transfer: tuple[Member, int] | None = None
        self._confirm_at_ms: int | None = None  # when followers without new records learn what is confirmed
        self._linger_until_ms = 0
        self._linger_bytes = 0

    # ---- role ----------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Lead this term: append its first record, and announce it."""
        state = self._state
        state.save_if_changed()  # a lone voter has sent no request, before which its term would be saved
        state.role = Role.LEADER
        state.leader = state.me
        self._progress = {each: Progress(now_ms) for each in state.members.everyone if each != state.me}
        self._opens_at, self._is_open, self._transfer = None, False, None
        self._confirm_at_ms = None
        self._checked_ms = now_ms
        state.effects.append(BecomeLeader(state.term))
        state.effects.append(AppendGroupRecord(state.term, state.members))
        for each in self._progress:
            state.send(each, LeaderNotice(state.me, state.term))
        self._next_tick_ms = now_ms + state.timing.hold_ms

    @property
    def is_open(self) -> bool:
        """True if sends may be appended: the first record of this term is confirmed, no transfer runs."""
        return self._state.role is Role.LEADER and self._is_open and self._transfer is None

    @property
    def progress(self) -> dict[Member, Progress]:
        """What the leader knows of the other members."""
        return self._progress

    def deadline_ms(self) -> int:
        """Time of the next `on_tick`."""
        return self._next_tick_ms

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if this process was stopped for so long that the others may have another leader."""
        return now_ms - self._checked_ms >= self._state.timing.election_ms

    def on_tick(self, now_ms: int) -> None:
        """Resign without a majority, notify silent members, and answer fetches that were held long enough."""
        state = self._state
        self._checked_ms = now_ms
        if not self.hears_majority(now_ms):
            state.lose_leadership(f"no majority within {state.timing.election_ms:,} ms")
            return
        if self._transfer is not None and now_ms >= self._transfer[1]:
            self._transfer = None
        if self._confirm_at_ms is not None and now_ms >= self._confirm_at_ms:
            self._confirm_at_ms = None
            for member, progress in self._progress.items():
                if progress.held is not None and progress.confirmed < state.confirmed:
                    self._respond(member, progress)
        next_tick_ms = now_ms + state.timing.hold_ms
        for member, progress in self._progress.items():
            if progress.held is None:
                if now_ms - progress.heard_ms >= state.timing.hold_ms:
                    state.send(member, LeaderNotice(state.me, state.term))
            elif now_ms - progress.held_since_ms >= state.timing.hold_ms or progress.held.offset < state.end:
                self._respond(member, progress)
            else:
                next_tick_ms = min(next_tick_ms, progress.held_since_ms + state.timing.hold_ms)
        self._next_tick_ms = (
            next_tick_ms if self._confirm_at_ms is None else min(next_tick_ms, self._confirm_at_ms)
        )

    def hears_majority(self, now_ms: int) -> bool:
        """Return True if a majority of the voters has sent something within an election time."""
        return self.active_voters(now_ms) >= self._state.members.majority

    def active_voters(self, now_ms: int) -> int:
        """Return how many voters have sent something within an election time, the leader included."""
        state = self._state
        since_ms = now_ms - state.timing.election_ms
        voters = state.members.voters
        return (state.me in voters) + sum(
            self._progress[each].heard_ms > since_ms for each in voters if each != state.me
        )

    # ---- log -----------------------------------------------------------------------------------------------

    def on_appended(self, end: int, now_ms: int) -> None:
        """Send what was appended to the members whose fetches are held, if it is worth a round."""
        self._state.end = end
        for member, progress in self._progress.items():
            if progress.held is not None:
                self._respond_or_linger(member, progress, now_ms)

    def on_group_record(self, record: GroupRecord, end: int, now_ms: int) -> None:
        """Record that a group record was appended: the members that it names hold from now on."""
        state = self._state
        state.history.add(record)
        if self._opens_at is None:
            self._opens_at = end
        self._change_end = end
        members = record.members.everyone
        self._progress = {
            each: self._progress.get(each) or Progress(now_ms) for each in members if each != state.me
        }
        self.on_appended(end, now_ms)

    def on_flushed(self, now_ms: int) -> None:
        """Count the leader's own flush."""
        self.advance(now_ms)

    def advance(self, now_ms: int) -> None:
        """Confirm what a majority of the voters has flushed, from the first record of this term on.

        The followers learn it with the next records, or CONFIRM_MS later at the latest.
        """
        state = self._state
        offset = self.majority_offset()
        if offset <= state.confirmed or not self.is_of_this_term(offset):
            return
        self._linger_until_ms, self._linger_bytes = now_ms + LINGER_MS, (offset - state.confirmed) // 2
        state.confirm(offset)
        if not self._is_open:
            self._is_open = True
            state.set_group_id(state.group_id or f"{state.me.store_id}.{state.term}")
            state.effects.append(OpenForSends(state.term))
        if self._transfer is not None:
            self._hand_over(self._transfer[0], self._progress[self._transfer[0]])
        if self._confirm_at_ms is None:
            self._confirm_at_ms = now_ms + CONFIRM_MS
            self._next_tick_ms = min(self._next_tick_ms, self._confirm_at_ms)

    def majority_offset(self) -> int:
        """Return the greatest offset up to which a majority of the voters has flushed the leader's log."""
        state = self._state
        members = state.members
        flushed = [
            state.flushed if each == state.me else self._progress[each].match for each in members.voters
        ]
        flushed.sort(reverse=True)
        return flushed[members.majority - 1]

    def is_of_this_term(self, offset: int) -> bool:
        """Return True if the first record of this term ends at or before `offset`.

        Records of earlier terms on a majority may still be replaced; those before a confirmed record of this
        term cannot.
        """
        return self._opens_at is not None and offset >= self._opens_at

    # ---- followers -----------------------------------------------------------------------------------------

    def on_fetch(self, request: FetchRequest, now_ms: int) -> None:
        """Compare the logs at the end of the follower's, and send or hold."""
        state = self._state
        progress = self._progress.get(request.sender)
        if progress is None:
            self._refuse(request)
            return
        progress.heard_ms = now_ms
        progress.is_electable = request.is_electable
        progress.held = None
        offset = request.offset
        if offset < state.min:
            self._send_join(request)
            return
        if not self.has_same_bytes(request):
            term, end = state.history.last_term_up_to(request.term_before, state.end)
            if end < state.min:
                self._send_join(request)
            else:
                state.send(
                    request.sender, Mismatch(state.me, state.term, request.request_id, term, min(end, offset))
                )
            return
        progress.verified = max(progress.verified, offset)
        progress.held, progress.held_since_ms = request, now_ms
        self.count(request.sender, progress, min(request.flushed, offset), now_ms)
        if offset < state.end:
            self._respond_or_linger(request.sender, progress, now_ms)
        else:
            self._next_tick_ms = min(self._next_tick_ms, now_ms + state.timing.hold_ms)

    def has_same_bytes(self, request: FetchRequest) -> bool:
        """Return True if both logs are equal before the offset of the request."""
        state = self._state
        return (
            request.offset <= state.end and state.history.term_before(request.offset) == request.term_before
        )

    def on_ack(self, ack: Ack, now_ms: int) -> None:
        """Count what a follower has flushed of the part that was compared."""
        progress = self._progress.get(ack.sender)
        if progress is not None:
            progress.heard_ms = now_ms
            self.count(ack.sender, progress, ack.flushed, now_ms)

    def count(self, sender: Member, progress: Progress, flushed: int, now_ms: int) -> None:
        """Raise the position of a follower, and confirm what has a majority now."""
        match = min(flushed, progress.verified)
        if match > progress.match:
            progress.match = match
            self.advance(now_ms)
        self._hand_over(sender, progress)

    def _respond_or_linger(self, member: Member, progress: Progress, now_ms: int) -> None:
        assert progress.held is not None
        if now_ms < self._linger_until_ms and self._state.end - progress.held.offset < self._linger_bytes:
            self._next_tick_ms = min(self._next_tick_ms, self._linger_until_ms)
        else:
            self._respond(member, progress)

    def _respond(self, member: Member, progress: Progress) -> None:
        state, request = self._state, progress.held
        assert request is not None
        progress.held, progress.confirmed = None, state.confirmed
        history = state.history.since(request.offset)
        response = Records(
            state.me, state.term, request.request_id, request.offset, state.confirmed, state.end, history, b""
        )
        if request.offset < state.end:
            state.save_if_changed()
            state.effects.append(SendRecords(member, response))
        else:
            state.send(member, response)

    def _send_join(self, request: FetchRequest) -> None:
        state = self._state
        history = state.history.before(state.min, state.min)
        state.send(request.sender, JoinFrom(state.me, state.term, request.request_id, state.min, history))

    def _refuse(self, request: FetchRequest) -> None:
        state = self._state
        reason = f"{request.sender} is not a member of the group: add it with `raymq replica add`"
        state.send(request.sender, NotServed(state.me, state.term, request.request_id, None, reason))

    def on_repair_request(self, request: RepairRequest) -> None:
        """Send the bytes of a damaged range of a follower's log, if they are confirmed here."""
        state = self._state
        if request.sender not in self._progress:
            return
        if request.offset < state.min:
            state.send(request.sender, RepairBytes(state.me, state.term, state.min, b""))
        elif request.offset < request.end <= state.confirmed:
            message = RepairBytes(state.me, state.term, request.offset, b"")
            state.save_if_changed()
            state.effects.append(SendRepair(request.sender, message, request.end))

    # ---- operator ------------------------------------------------------------------------------------------

    def change_members(self, members: Members, now_ms: int) -> None:
        """Append a group record with other members. Raises NotAllowed."""
        state = self._state
        self._require_open()
        check_change(state.members, members)
        if not self.is_settled():
            raise NotAllowed("the previous change of members is not confirmed yet: try again")
        if state.me not in members.voters:
            raise NotAllowed("the leader cannot be removed: transfer the leadership first")
        if members.voters != state.members.voters:
            healthy = [each for each in members.voters if each == state.me or self.is_healthy(each, now_ms)]
            if len(healthy) < members.majority:
                raise NotAllowed(
                    f"only {len(healthy)} of the {len(members.voters)} voters would be up and complete: "
                    "the group could confirm nothing; start the others first"
                )
        state.effects.append(AppendGroupRecord(state.term, members))

    def is_healthy(self, member: Member, now_ms: int) -> bool:
        """Return True if a member was heard within an election time, and could lead."""
        progress = self._progress[member]
        return progress.is_electable and progress.heard_ms > now_ms - self._state.timing.election_ms

    def is_settled(self) -> bool:
        """Return True if the last group record is confirmed."""
        return self._state.confirmed >= self._change_end

    def has_caught_up(self, member: Member) -> bool:
        """Return True if a learner has flushed all that is confirmed, so that it can become a voter."""
        if member == self._state.me:
            return True
        progress = self._progress.get(member)
        return progress is not None and progress.match >= self._state.confirmed

    def needed_offset(self, since_ms: int) -> int:
        """Return the offset from which on the members that were heard after `since_ms` still need the log."""
        matches = (each.match for each in self._progress.values() if each.heard_ms > since_ms)
        return min(matches, default=self._state.end)

    def transfer(self, to: Member, now_ms: int) -> None:
        """Stop appending, and let `to` stand as soon as its log is complete. Raises NotAllowed.

        All of the log is confirmed before: no send that waits for its acknowledgement fails.
        """
        state = self._state
        self._require_open()
        if to == state.me or to not in state.members.voters:
            raise NotAllowed(f"{to} is not another voter of the group")
        if not self.is_healthy(to, now_ms):
            raise NotAllowed(f"{to} does not respond, or lacks records that were confirmed")
        self._transfer = (to, now_ms + state.timing.election_ms)
        self._next_tick_ms = min(self._next_tick_ms, self._transfer[1])
        self._hand_over(to, self._progress[to])

    def _hand_over(self, sender: Member, progress: Progress) -> None:
        state = self._state
        if self._transfer is None or self._transfer[0] != sender:
            return
        if progress.match == state.end == state.confirmed:
            state.send(sender, CampaignNow(state.me, state.term))

    def _require_open(self) -> None:
        if self._state.role is not Role.LEADER:
            raise NotAllowed(f"this replica is not the leader; the leader is {self._state.leader}")
        if not self._is_open:
            raise NotAllowed("the leader has not confirmed the first record of its term yet: try again")
        if self._transfer is not None:
            raise NotAllowed(f"the leadership is being transferred to {self._transfer[0]}: try again")
