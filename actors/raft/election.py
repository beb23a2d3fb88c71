"""Election: pre-vote, vote and candidacy of one replica.

follower ──no leader for 1–2 election times──→ pre-vote ──majority──→ candidate ──majority──→ leader
                                                  └──a leader answers──→ follower

A pre-vote changes no term. A replica that was cut off cannot win one while the others have a leader, so it
does not disturb them when it returns.
"""

from collections.abc import Callable

from actors.raft.members import Member
from actors.raft.messages import CampaignNow, VoteRequest, VoteResponse
from actors.raft.state import ReplicaState, Role

NEVER = -(1 << 62)


class Election:
    """The elections that one replica holds and takes part in."""

    def __init__(self, state: ReplicaState, is_damaged: Callable[[], bool], now_ms: int) -> None:
        """Create the elections of a replica; `is_damaged` returns True while its log has a damaged range."""
        self._state = state
        self._is_damaged = is_damaged
        self._votes: dict[Member, bool] = {}
        self._pre_vote_term = -1  # the term of the pre-vote under way
        self._heard_ms = NEVER
        self.deadline_ms = 0
        """Time at which this replica calls an election, unless it leads."""
        self.arm(now_ms)
        if state.members.voters == (state.me,):
            self.deadline_ms = now_ms  # there is no leader to wait for

    def arm(self, now_ms: int) -> None:
        """Wait for a random time before the next election."""
        election_ms = self._state.timing.election_ms
        self.deadline_ms = now_ms + election_ms + self._state.rng.randrange(election_ms)

    def heard_leader(self, now_ms: int) -> None:
        """Record a sign of life of the leader of this term."""
        self._heard_ms = now_ms
        self._pre_vote_term = -1
        self.arm(now_ms)

    @property
    def can_stand(self) -> bool:
        """True if this replica may lead: a voter that lacks nothing that was confirmed.

        A damaged range does not keep it from voting, as it still knows where its log ends.
        """
        return self._state.is_voter and self._state.is_electable and not self._is_damaged()

    # ---- candidate -----------------------------------------------------------------------------------------

    def call(self, now_ms: int) -> bool:
        """Begin a pre-vote. Returns True if this replica has won the whole election, as the only voter."""
        state = self._state
        self.arm(now_ms)
        state.leader = None
        state.role = Role.FOLLOWER
        if not self.can_stand:
            return False
        self._pre_vote_term = state.term + 1
        self._votes = {state.me: True}
        if self._has_majority():
            return self._stand(now_ms)
        self._request_votes(self._pre_vote_term, is_pre=True)
        return False

    def on_campaign_now(self, message: CampaignNow, now_ms: int) -> bool:
        """Stand at once, as the leader transfers to this replica. Returns True if elected."""
        is_from_leader = message.term == self._state.term and self._state.role is not Role.LEADER
        return is_from_leader and self.can_stand and self._stand(now_ms)

    def _stand(self, now_ms: int) -> bool:
        state = self._state
        self._pre_vote_term = -1
        state.raise_term(state.term + 1)
        state.role = Role.CANDIDATE
        state.vote_for(state.me)
        self._votes = {state.me: True}
        self.arm(now_ms)
        self._request_votes(state.term, is_pre=False)
        return self._has_majority()

    def _request_votes(self, term: int, *, is_pre: bool) -> None:
        state = self._state
        request = VoteRequest(state.me, term, is_pre, state.history.last_term, state.end)
        for each in state.members.voters:
            if each != state.me:
                state.send(each, request)

    def _has_majority(self) -> bool:
        members = self._state.members
        return sum(each in members.voters for each in self._votes) >= members.majority

    def on_vote_response(self, response: VoteResponse, now_ms: int) -> bool:
        """Count a vote. Returns True if this replica is elected.

        Damage may have been found, or the log truncated, since the votes were requested.
        """
        state = self._state
        if response.term > state.term:
            state.raise_term(response.term)
        elif not self.can_stand:
            return False
        elif response.is_granted and response.is_pre and response.asked_term == self._pre_vote_term:
            self._votes[response.sender] = True
            return self._has_majority() and self._stand(now_ms)
        elif response.is_granted and not response.is_pre and state.role is Role.CANDIDATE:
            if response.asked_term == state.term:
                self._votes[response.sender] = True
            return self._has_majority()
        return False

    # ---- voter ---------------------------------------------------------------------------------------------

    def on_vote_request(self, request: VoteRequest, now_ms: int) -> None:
        """Grant or refuse a vote or pre-vote."""
        state = self._state
        if request.is_pre:
            is_granted = request.term > state.term and not self.has_leader(now_ms)
        else:
            if request.term > state.term:
                state.raise_term(request.term)
            # A request that arrives after the leader's first message must not end its lease.
            is_open = request.term == state.term and state.leader is None
            is_granted = is_open and state.voted_for in (None, request.sender)
        is_granted = is_granted and state.is_electable and self.is_complete(request)
        if is_granted and not request.is_pre:
            state.vote_for(request.sender)
            self.arm(now_ms)  # the candidate gets the time to win before this replica stands itself
        response = VoteResponse(state.me, state.term, request.term, request.is_pre, is_granted)
        state.send(request.sender, response)

    def is_complete(self, request: VoteRequest) -> bool:
        """Return True if the candidate's log has everything that this log has, flushed or not."""
        state = self._state
        return (request.last_term, request.end) >= (state.history.last_term, state.end)

    def has_leader(self, now_ms: int) -> bool:
        """Return True if this replica leads, or has heard its leader within an election time."""
        state = self._state
        if state.role is Role.LEADER:
            return True
        return state.leader is not None and now_ms - self._heard_ms < state.timing.election_ms
