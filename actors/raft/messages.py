"""What replicas of a group send each other.

    follower                               leader
    FetchRequest (end, term before it) ──→
           ←── Records | Mismatch | JoinFrom | NotServed
    (flush) Ack ─────────────────────────→          also a heartbeat, as a fetch is
           ←───────────────────── LeaderNotice      to members that are silent

`sender` is filled in by the sender, and checked by the transport. Offsets are CommitLog offsets.
"""

from collections.abc import Sized
from typing import NamedTuple, TypeAlias

from actors.raft.history import GroupRecord
from actors.raft.members import Member


class VoteRequest(NamedTuple):
    """Request a vote for `term`; with `is_pre`, ask only if the receiver would grant it."""

    sender: Member
    term: int
    is_pre: bool
    last_term: int
    end: int


class VoteResponse(NamedTuple):
    """The response to the VoteRequest for `asked_term`."""

    sender: Member
    term: int
    asked_term: int
    is_pre: bool
    is_granted: bool


class FetchRequest(NamedTuple):
    """Request the log from `offset` on. The leader holds it while it has nothing new."""

    sender: Member
    term: int
    request_id: int
    offset: int
    term_before: int
    flushed: int
    is_electable: bool


class Records(NamedTuple):
    """The log from `offset` on, in whole records, as the logs of both match up to there."""

    sender: Member
    term: int
    request_id: int
    offset: int
    confirmed: int
    end: int
    """Where the leader's log ends, with what does not fit into `records`."""
    history: tuple[GroupRecord, ...]
    """The group records from `offset` on; those after the end of `records` are to be ignored."""
    records: Sized


class Mismatch(NamedTuple):
    """The logs differ before the offset of the fetch: `last_term`, the closest term here, ends at `end`."""

    sender: Member
    term: int
    request_id: int
    last_term: int
    end: int


class JoinFrom(NamedTuple):
    """The log of the follower ends, or diverged, before the oldest byte of the leader: begin at `offset`."""

    sender: Member
    term: int
    request_id: int
    offset: int
    history: tuple[GroupRecord, ...]


class NotServed(NamedTuple):
    """The receiver of a message is not the leader of its term, or the sender is not a member.

    `leader` is the leader that the sender of this response knows in `term`.
    """

    sender: Member
    term: int
    request_id: int
    leader: Member | None
    reason: str


class Ack(NamedTuple):
    """The follower has flushed the log up to `flushed`, which the leader of `term` has sent or compared."""

    sender: Member
    term: int
    flushed: int


class LeaderNotice(NamedTuple):
    """The sender leads `term`."""

    sender: Member
    term: int


class CampaignNow(NamedTuple):
    """The leader of `term` transfers its leadership: the receiver becomes a candidate without a pre-vote."""

    sender: Member
    term: int


class RepairRequest(NamedTuple):
    """Request the confirmed bytes from `offset` to `end`, which are damaged in the sender's log."""

    sender: Member
    term: int
    offset: int
    end: int


class RepairBytes(NamedTuple):
    """The bytes for a RepairRequest, from `offset` on; none if the log of the leader begins only there."""

    sender: Member
    term: int
    offset: int
    records: Sized


Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | FetchRequest
    | Records
    | Mismatch
    | JoinFrom
    | NotServed
    | Ack
    | LeaderNotice
    | CampaignNow
    | RepairRequest
    | RepairBytes
)
