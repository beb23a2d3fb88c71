"""Checks: what must hold at every step and at the end of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from actors.raft.members import Member
from actors.raft.messages import (
    CampaignNow,
    FetchRequest,
    JoinFrom,
    LeaderNotice,
    Mismatch,
    NotServed,
    Records,
    VoteRequest,
    VoteResponse,
)

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica


RESPONSES = (Records, Mismatch, JoinFrom, NotServed)


class Violation(Exception):
    """A promise was broken."""


class Lease:
    """When one process heard the leader of its term last, by its own clock."""

    def __init__(self) -> None:
        self.term = -1
        self._heard = -(1 << 60)
        self._fetch = (-1, -1)  # term and id of the last request whose response has not arrived

    def on_sent(self, message: Any) -> None:
        if type(message) is FetchRequest:
            self._fetch = (message.term, message.request_id)
        elif type(message) is VoteRequest:
            self.term, self._fetch = -1, (-1, -1)  # it calls an election itself

    def takes(self, message: Any) -> bool:
        """Return True for the response to the last request; late copies say nothing."""
        is_response = type(message) in RESPONSES and (message.term, message.request_id) == self._fetch
        if is_response:
            self._fetch = (-1, -1)
        return is_response

    def on_received(self, message: Any, now: int) -> None:
        """Note a response or a notice that the process has accepted."""
        if type(message) is NotServed:
            self.term = -1
        else:
            self.term, self._heard = message.term, now

    def holds(self, replica: SimReplica) -> bool:
        """Return True if the leader of the present term was heard within an election time."""
        election_ms = replica.sim.timing.election_ms
        return self.term == replica.node.term and replica.now - self._heard < election_ms


class Arrival(NamedTuple):
    """What a message is to its receiver."""

    is_response: bool
    is_stranger: bool
    term: int
    """The term of the receiver."""
    protected_term: int
    """The term of the receiver if it leads or hears the leader; else -1."""


class Checks:
    """Knows what every replica confirmed, and what every client was answered."""

    def __init__(self) -> None:
        self.chosen: dict[int, Any] = {}  # confirmed entries by the offset of their end
        self.chosen_end = 0
        self.acked: dict[int, Any] = {}  # end offset by acknowledged value
        self._leaders: dict[int, Member] = {}
        self._votes: dict[tuple[int, Member], set[Member]] = {}  # who voted in a term for a candidate
        self._stores: dict[Member, Any] = {}

    @property
    def terms(self) -> int:
        return len(self._leaders)

    def on_start(self, replica: SimReplica) -> None:
        """Check a replica after its start: what it takes for confirmed is confirmed."""
        self._stores[replica.member] = replica.log
        self._compare(replica, replica.log.min, replica.node.confirmed)

    def on_complete(self, replica: SimReplica) -> None:
        """Check a replica that had lost bytes and votes again: it has those of them that were confirmed."""
        self._require_complete(replica)
        replica.log.lost.clear()

    def _require_complete(self, replica: SimReplica) -> None:
        log = replica.log
        records = (each for each in log.lost if each.entry[1] is not None)  # not the blank end of a file
        confirmed = (each.end for each in records if self.chosen.get(each.end) == each)
        if log.durable < max(confirmed, default=0):
            raise Violation(f"{replica} votes before it has what it had acknowledged")

    def on_leader(self, replica: SimReplica, term: int) -> None:
        if self._leaders.setdefault(term, replica.member) != replica.member:
            raise Violation(f"two leaders in term {term}: {self._leaders[term]}, {replica.member}")
        voters = replica.node.members.voters
        if replica.member not in voters:
            raise Violation(f"{replica} leads term {term}, but is no voter")
        votes = self._votes.get((term, replica.member), set()) | {replica.member}
        if sum(each in votes for each in voters) < len(voters) // 2 + 1:
            raise Violation(f"{replica} leads term {term} with the votes of {votes}")

    def on_arrival(self, replica: SimReplica, message: Any) -> Arrival:
        """Return what a message is to a replica that has not seen it yet."""
        sender, node = message.sender, replica.node
        everyone = node.members.everyone
        is_stranger = replica.member in everyone and sender not in everyone and sender != node.leader
        return Arrival(
            replica.lease.takes(message),
            is_stranger,
            node.term,
            node.term if self._has_leader(replica) else -1,
        )

    def on_accepted(self, replica: SimReplica, message: Any, arrival: Arrival, group_id: str) -> None:
        """Check a message that was processed: no stranger ends a leadership that is alive."""
        node = replica.node
        is_of_leader = (
            arrival.is_response or type(message) is LeaderNotice
        ) and node.leader == message.sender
        if is_of_leader or (arrival.is_response and type(message) is NotServed):
            replica.lease.on_received(message, replica.now)
        if type(message) is CampaignNow and message.term != arrival.term != node.term:
            raise Violation(f"{replica} stands in term {node.term} because of {message}")
        if not arrival.is_stranger:
            return
        if type(message) not in (VoteRequest, LeaderNotice) or group_id != node.group_id:
            raise Violation(f"{replica} takes {message} of a stranger")
        if arrival.protected_term not in (-1, node.term):
            raise Violation(f"{replica} leaves term {arrival.protected_term} and its leader for {message}")

    def _has_leader(self, replica: SimReplica) -> bool:
        """Return True for a leader that hears a majority, and a replica that hears its leader."""
        node = replica.node
        if replica.is_leader:
            is_alive: bool = node.active_voters(replica.now) >= node.members.majority
            return is_alive
        return replica.lease.holds(replica)

    def on_send(self, replica: SimReplica, to: Member, message: Any) -> None:
        """Check that the term and the vote in a message are on disk, and that a leader is not disturbed."""
        saved = replica.saved
        replica.lease.on_sent(message)
        is_pre_vote = type(message) is VoteResponse and message.is_granted and message.is_pre
        if is_pre_vote and self._has_leader(replica):
            raise Violation(f"{replica} grants a pre-vote to {to}, but hears the leader of its term")
        if type(message) is VoteRequest:
            if not message.is_pre and (saved.term, saved.voted_for) != (message.term, replica.member):
                raise Violation(f"{replica} requests votes for term {message.term} before it is saved")
            self._require_complete(replica)
        elif message.term > saved.term:
            raise Violation(f"{replica} uses term {message.term} before it is saved")
        elif type(message) is VoteResponse and message.is_granted and not message.is_pre:
            saved_vote = (saved.term, saved.voted_for)
            if saved_vote != (message.term, to):
                raise Violation(f"{replica} votes for {to} in term {message.term}, but saved {saved_vote}")
            self._votes.setdefault((message.term, to), set()).add(replica.member)
            self._require_complete(replica)

    def on_step(self, replica: SimReplica) -> None:
        """Check the positions of a replica after each input."""
        log, node = replica.log, replica.node
        if not node.confirmed <= log.end:
            raise Violation(f"{replica}: confirmed {node.confirmed} is beyond the end {log.end}")
        if log.flushed > log.durable:
            raise Violation(f"{replica}: flushed {log.flushed}, but the disk has only {log.durable}")
        if node.leader is not None and self._leaders.get(node.term, node.leader) != node.leader:
            raise Violation(f"{replica} follows {node.leader}, but {self._leaders[node.term]} leads")
        if log.damage is None and not node.is_electable and replica.saved.is_electable:
            raise Violation(f"{replica} would forget at a restart that it must not vote")
        if node.confirmed != log.confirmed:
            raise Violation(f"{replica}: confirmed {log.confirmed} became {node.confirmed} without notice")

    def on_open(self, replica: SimReplica) -> None:
        """Check a leader that opens for sends: its own disk has the first record of its term."""
        if replica.log.flushed <= replica.node.epochs[-1][1]:
            raise Violation(f"{replica} opens for sends, but has flushed only {replica.log.flushed}")

    def on_append(self, replica: SimReplica) -> None:
        """Check a leader that accepts a send: it has confirmed what earlier leaders had, and is connected."""
        timing = replica.sim.timing
        since = replica.sim.now - timing.election_ms - timing.hold_ms - 1
        voters = replica.node.members.voters
        heard = sum(replica.heard.get(each.replica, 0) > since for each in voters if each != replica.member)
        if replica.led_since <= since and heard + (replica.member in voters) < len(voters) // 2 + 1:
            raise Violation(f"{replica} accepts sends, but hears only {heard} of {len(voters)} voters")
        if replica.opened_term != replica.node.term:
            raise Violation(f"{replica} accepts sends before it has opened")
        if replica.node.confirmed <= replica.node.epochs[-1][1]:
            raise Violation(f"{replica} accepts sends before the first record of its term is confirmed")

    def on_change(self, replica: SimReplica) -> None:
        """Check a leader that changes the members: the previous members are confirmed."""
        if not replica.log.confirmed >= replica.last_group_record_end:
            raise Violation(f"{replica} changes the members while the previous change is not confirmed")

    def on_truncate(self, replica: SimReplica, offset: int) -> None:
        if offset < replica.log.confirmed:
            raise Violation(f"{replica} truncates to {offset}, below confirmed {replica.log.confirmed}")

    def on_restart_log(self, replica: SimReplica, offset: int) -> None:
        if offset < replica.log.confirmed or replica.saved.join_offset != offset:
            raise Violation(f"{replica} drops its log, final up to {replica.log.confirmed}, for {offset}")

    def on_confirm(self, replica: SimReplica, begin: int, end: int) -> None:
        """Compare newly confirmed entries with those that were confirmed first."""
        if end <= begin:
            raise Violation(f"{replica}: confirmed falls from {begin} to {end}")
        self._compare(replica, begin, end)

    def _compare(self, replica: SimReplica, begin: int, end: int) -> None:
        tokens = replica.log.tokens(begin, end)
        covered = sum(each.end - each.offset for each in tokens)
        if covered != end - max(begin, replica.log.min) and replica.log.damage is None:
            raise Violation(f"{replica} cannot read all of {begin} to {end}")
        for token in tokens:
            first = self.chosen.setdefault(token.end, token)
            if first != token:
                raise Violation(f"{replica} confirms {token}, but {first} was confirmed before")
        if end > self.chosen_end:
            if replica.node.role.value != "leader":
                raise Violation(f"{replica} confirms {end} before any leader: {self.chosen_end}")
            self._require_majority(replica, end)
            self.chosen_end = end

    def _require_majority(self, leader: SimReplica, end: int) -> None:
        """Check that a majority of the voters keeps the newly confirmed entries over any crash.

        A disk that has lost records counts with what it had, until the replica is complete again.
        """
        chosen = [self.chosen[each.end] for each in leader.log.tokens(self.chosen_end, end)]
        voters = leader.node.members.voters
        keeping = 0
        for each in voters:
            log = self._stores[each]
            kept = log.tokens(self.chosen_end, min(log.durable, end)) + log.lost
            keeping += all(each in kept for each in chosen)
        if keeping < len(voters) // 2 + 1:
            raise Violation(f"{leader} confirms {end}, but only {keeping} of {len(voters)} disks have it")

    def on_ack(self, replica: SimReplica, end: int, value: int) -> None:
        """Check an acknowledgement: what is confirmed at this offset is the client's value."""
        token = self.chosen.get(end)
        if token is None or token.entry[1] != value:
            raise Violation(f"{replica} acknowledges {value} at {end}, but {token} is there")
        self.acked[value] = end

    def at_end(self, replicas: list[SimReplica]) -> None:
        """Check that all members have the same log, with each acknowledged value once."""
        for replica in replicas:
            self._compare(replica, replica.log.min, replica.log.end)
            entries = [each.entry[1] for each in replica.log.tokens(replica.log.min, replica.log.end)]
            values = [each for each in entries if isinstance(each, int)]
            if len(set(values)) != len(values):
                raise Violation(f"{replica} has a value twice")
            kept = set(values)
            lost = [value for value, end in self.acked.items() if end > replica.log.min and value not in kept]
            if lost:
                raise Violation(f"{replica} has lost the acknowledged values {lost}")
            terms = [term for term, _ in replica.node.epochs]
            if sorted(set(terms)) != terms:
                raise Violation(f"the terms of {replica} do not ascend: {terms}")
