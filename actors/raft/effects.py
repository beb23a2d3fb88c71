"""What the owner of a RaftNode must do, in the given order, each completely before the next one.

A crash between two effects is harmless. After an effect that fails (a full disk, a failed sync) the owner
must not execute the next one: it calls `RaftNode.resign`, or stops the replica.
"""

from collections.abc import Sized
from typing import NamedTuple, TypeAlias

from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.messages import Message, Records, RepairBytes


class SavedTerm(NamedTuple):
    """What a replica must remember over a restart besides its log: the content of `raymq.raft`.

    Two offsets say what to do with the log that is on disk at the start, by the offset at which it begins:

        0                join_offset              history_begin
        | another log    | deleted files are back | the log as it was left …
        | remove it      | use it from            | use all of it
        |                | `history_begin` on     |

    Deletions move the beginning of the log past `history_begin`; a power loss may undo them. The bytes
    between the two offsets belong to this log, but the group records that say which terms wrote them may be
    gone.
    """

    term: int = 0
    voted_for: Member | None = None
    is_electable: bool = True
    """False if the log may end before bytes that this replica once had: it neither votes nor stands."""
    first_members: Members = Members()
    """The members before the first group record in the log."""
    history: tuple[GroupRecord, ...] = ()
    """The confirmed group records, from the one in force at the beginning of the log on.

    They are in the log, too, but its first files may be deleted, and a record may be damaged.
    """
    join_offset: int = 0
    """Where this log began when it replaced another one (see `JoinFrom`), or 0."""
    history_begin: int = 0
    """The CommitLog offset from which on `history` is complete: where the log began when it was saved."""
    group_id: str = ""
    """The id of the group, which members that this replica does not know name; empty if it is not known."""


class SaveTerm(NamedTuple):
    """Make `saved` durable."""

    saved: SavedTerm


class SendToMember(NamedTuple):
    """Send a message; it may be lost, delayed, or arrive twice."""

    to: Member
    message: Message


class SendRecords(NamedTuple):
    """Add whole records to `message`, read from the log at its offset, and send it.

    At least one record; never a blank without the record after it.
    """

    to: Member
    message: Records


class SendRepair(NamedTuple):
    """Add the log bytes [message.offset, end) to `message`, after checking them, and send it."""

    to: Member
    message: RepairBytes
    end: int


class Append(NamedTuple):
    """Append `records` to the log at its end, `offset`, then flush the log in the background."""

    offset: int
    records: Sized


class AppendGroupRecord(NamedTuple):
    """Append a group record, then pass `GroupRecordAppended` to the node before any other input."""

    term: int
    members: Members


class Truncate(NamedTuple):
    """Remove the log from `offset` on, durably."""

    offset: int


class Restart(NamedTuple):
    """Remove the whole log and everything derived from it; the new log begins at `offset`, final up to it."""

    offset: int


class Trim(NamedTuple):
    """Delete the bytes of the log below `offset`, then pass `Trimmed` to the node."""

    offset: int


class RepairRange(NamedTuple):
    """Check `records`, and write them over the damaged bytes at `offset`; see `RaftNode.repaired`."""

    offset: int
    records: Sized


class Confirm(NamedTuple):
    """The log is final up to `offset`: dispatch it, and acknowledge sends whose records end there."""

    offset: int


class BecomeLeader(NamedTuple):
    """This replica was elected; it accepts sends after `OpenForSends`."""

    term: int


class OpenForSends(NamedTuple):
    """The first record of this leader is confirmed, and with it everything before."""

    term: int


class LoseLeadership(NamedTuple):
    """Fail all waiting acknowledgements, and stop what only a leader does, before the next effect."""

    reason: str


class Fail(NamedTuple):
    """Stop this replica, changing nothing: its log contradicts the group's."""

    reason: str


Effect: TypeAlias = (
    SaveTerm
    | SendToMember
    | SendRecords
    | SendRepair
    | Append
    | AppendGroupRecord
    | Truncate
    | Restart
    | Trim
    | RepairRange
    | Confirm
    | BecomeLeader
    | OpenForSends
    | LoseLeadership
    | Fail
)
