"""RaftDriver: feeds the RaftNode of a broker, and executes its effects on the store and the network.

    messages of replicas ┐              ┌ RaftLog, TermFile
    time                 ┼→ RaftNode ──→┼ messages to replicas
    end of each turn     ┘              └ sends open, leadership lost, replica failed

All of it runs on the broker's event loop. Before each input the node learns what has happened to the log:
what sends have appended, what was flushed, which files were deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from actors.broker.replication.raft.addresses import MemberAddresses
from actors.broker.replication.raft_log import RaftLog
from actors.raft import effects as do
from actors.raft.members import Member, Members, NotAllowed
from actors.raft.messages import Message
from actors.raft.node import (
    Appended,
    Damaged,
    Flushed,
    GroupNamed,
    GroupRecordAppended,
    Input,
    RaftNode,
    RangeRepaired,
    Tick,
    Trimmed,
)
from actors.raft.state import Role
from actors.raft.term_file import TermFile
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message_store import MessageStore
from store.store_errors import RecordDamaged, StoreError
from store.upkeep.retention import Need
from store.writing.send_gate import REPLICATION

_log = get_logger(__name__)

READ_BYTES = 1 << 20
"""Most records of one message, in bytes; one record may be longer."""
NO_LEADER = "this replica does not lead its group: send to the leader"

KEEP_MS = 3_600_000
"""For how long a leader keeps what a silent member lacks, if the disk has room."""

MAX_TERMS_AHEAD = 1 << 32
"""A group with an election every second needs 136 years for so many terms; the last one is 2⁶³ − 1."""


class CannotLead(Exception):
    """The log does not accept the record that a leader appends."""


class Timer(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Give up the call."""


class BrokerActions(Protocol):
    """What the driver has the broker do; the methods are called while effects are executed."""

    def send(self, to: Member, message: Message) -> None:
        """Send a message, which may be lost. Raises ValueError if it is too long."""

    def open_for_sends(self, term: int) -> None:
        """Take over as the leader of `term`: its first record is confirmed."""

    def lose_leadership(self) -> None:
        """Stop what only a leader does. The waiting acknowledgements have failed."""

    def fail(self) -> None:
        """Stop serving: the replica has failed."""

    def restart(self, reason: str) -> None:
        """Stop the broker and start it again, if anything would start it; called after `fail`."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Plan a call on the event loop."""

    def request_tick(self) -> None:
        """Request a turn of the event loop, which flushes and dispatches."""

    def await_flush(self) -> None:
        """Wait briefly for the flush in flight; called by a follower."""


class RaftDriver:
    """Drives the node of one replica."""

    def __init__(
        self,
        node: RaftNode,
        log: RaftLog,
        store: MessageStore,
        term_file: TermFile,
        clock: Clock,
        addresses: MemberAddresses,
        broker: BrokerActions,
    ) -> None:
        self.node = node
        self.failure = ""
        """Why this replica takes no further part in its group; empty while it does."""
        self._log = log
        self._store = store
        self._term_file = term_file
        self._clock = clock
        self._addresses = addresses
        self._broker = broker
        self._is_running = False
        store.gate.close(REPLICATION, NO_LEADER)
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._opening: tuple[int, int] | None = None
        """The term that this replica leads, and the CommitLog offset that it must have flushed to open."""
        self._end, self._flushed, self._min = log.end, log.flushed, log.min
        # What was sent last, because the other followers mostly want the same: its term, offset and log end.
        self._records_at, self._records = (0, 0, 0), b""
        self._do: dict[type, Callable[[Any], None]] = {
            do.SaveTerm: lambda effect: self._term_file.write(effect.saved),
            do.SendToMember: lambda effect: self._broker.send(effect.to, effect.message),
            do.SendRecords: self._send_records,
            do.SendRepair: self._send_repair,
            do.Append: self._append,
            do.AppendGroupRecord: self._append_group_record,
            do.Truncate: self._truncate,
            do.Restart: self._restart,
            do.Trim: lambda effect: store.retention.delete_before(effect.offset),
            do.RepairRange: self._repair,
            do.Confirm: lambda effect: self._log.confirm(effect.offset),
            do.BecomeLeader: self._become_leader,
            do.OpenForSends: self._prepare_to_open,
            do.LoseLeadership: self._lose_leadership,
            do.Fail: lambda effect: self._fail(effect.reason),
        }

    @property
    def accepts_sends(self) -> bool:
        """True while this replica leads, and may append."""
        return not self._store.gate.is_closed_by(REPLICATION)

    @property
    def is_leader(self) -> bool:
        """True while this replica leads, possibly without having confirmed the first record of its term."""
        return self._is_running and self.node.role is Role.LEADER

    # ---- life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the group, on the running event loop."""
        self._is_running = True
        damage = self._log.damage
        self._run(self.node.start)
        if damage is not None:
            self._feed(Damaged(*damage))
        self._arm()

    def stop(self) -> None:
        """Take no further part; waiting acknowledgements fail."""
        self._is_running = False
        self._move_gate()
        if self._timer is not None:
            self._timer.cancel()
        self._abandon("this replica is being stopped")

    # ---- input ---------------------------------------------------------------------------------------------

    def receive(self, message: Message, address: str = "", group_id: str = "") -> None:
        """Process a message of the replica at `address`, which names its group.

        Raises Refused if its sender is not a member, or names a term that no group reaches.
        """
        if not self._is_running:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, self.failure or "this replica does not run")
        sender = message.sender
        if not self.node.is_of_group(message, group_id):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{sender} is not a member of the group {self.node.group_id!r}, and names {group_id!r}: a "
                "replica that was removed must be stopped, one that has lost its store must be replaced",
            )
        if message.term > self.node.term + MAX_TERMS_AHEAD:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"term {message.term:,} of {sender} is too far ahead of term {self.node.term:,}",
            )
        self._addresses.receive(sender, address)
        self._feed(message)
        if group_id not in ("", self.node.group_id) and sender == self.node.leader:
            self._feed(GroupNamed(group_id))

    def need(self) -> Need | None:
        """Return from where on other members need this log; None if it does not lead."""
        offset = self.node.needed_offset(self._now() - KEEP_MS) if self._is_running else None
        effect = "a replica that needs them copies the log again from its new beginning"
        return None if offset is None else Need(offset, "replicas", effect)

    def change_members(self, members: Members) -> None:
        """Append a group record with other members, one step away. Raises NotAllowed; only for a leader."""
        self._report_log()
        effects = self.node.change_members(members, self._now())
        self._run(lambda: effects)
        self._broker.request_tick()

    def transfer(self, to: Member) -> None:
        """Transfer the leadership to another voter; see `RaftNode.transfer`. Raises NotAllowed."""
        if not self._is_running:
            raise NotAllowed(self.failure or "this replica does not run")
        self._report_log()
        effects = self.node.transfer(to, self._now())
        self._run(lambda: effects)
        self._arm()
        self._broker.request_tick()

    def end_turn(self) -> None:
        """Report what this turn has appended, flushed or deleted; called before it is confirmed."""
        if self._is_running:
            if not self.is_leader:
                self._broker.await_flush()  # so that it is acknowledged in this turn
            self._report_log()
            self._arm()

    def _feed(self, message: Input) -> None:
        self._report_log()
        if self._is_running:
            self._run(lambda: self.node.on(message, self._now()))
            self._arm()
            self._broker.request_tick()

    def _report_log(self) -> None:
        """Report the changes of the log that the node has not caused."""
        log = self._log
        if log.end != self._end:  # first: another input could end the leadership
            if self.node.role is not Role.LEADER:
                self._fail(f"the log ends at {log.end:,} instead of {self._end:,}: not by its leader")
                return
            self._end = log.end
            self._run(lambda: self.node.on(Appended(self._end), self._now()))
        if log.flushed != self._flushed and self._is_running:
            self._flushed = log.flushed
            self._run(lambda: self.node.on(Flushed(self._flushed), self._now()))
        if self._opening is not None:
            self._open_if_flushed()
        if log.min > self._min and self._is_running:
            self._min, was_damaged = log.min, self.node.is_damaged
            self._run(lambda: self.node.on(Trimmed(self._min), self._now()))
            if was_damaged and not self.node.is_damaged:
                self._restart_broker(
                    "damaged records were deleted: the next start derives consume queues and index again"
                )
        if self.is_leader and (refusal := self._store.write_refusal) is not None:
            self._run(lambda: self.node.resign(refusal, self._now()))

    def _now(self) -> int:
        return self._clock.monotonic_ns() // NS_PER_MS

    def _arm(self) -> None:
        """Set the timer for the next Tick; a timer that is early enough is kept."""
        if not self._is_running:
            return
        deadline_ms = self.node.deadline_ms
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._now(), 1) / 1000
        self._timer = self._broker.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._is_running and self._now() >= self.node.deadline_ms:
            self._feed(Tick())
        self._arm()

    # ---- effects -------------------------------------------------------------------------------------------

    def _run(self, take: Callable[[], list[do.Effect]]) -> None:
        """Execute the effects of one input, each completely before the next one.

        After an error this replica takes no further part: what the node assumes may not have happened.
        """
        try:
            for effect in take():
                if not self._is_running:
                    return
                self._do[type(effect)](effect)
            if self._is_running:  # also while the leadership is being transferred: services append, too
                self._move_gate()
        except CannotLead as error:
            reason = str(error)
            self._run(lambda: self.node.resign(reason, self._now()))
        except (StoreError, OSError) as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise

    def _move_gate(self) -> None:
        if self._may_append:
            self._store.gate.open(REPLICATION)
        else:
            self._store.gate.close(REPLICATION, NO_LEADER)

    @property
    def _may_append(self) -> bool:
        return self._is_running and self.node.accepts_sends and self._opening is None

    def _become_leader(self, effect: do.BecomeLeader) -> None:
        _log.info("raft_leader_elected", term=effect.term)
        # The former leader may have confirmed more. A record of this term that is confirmed includes it.
        self._store.positions.forget_end()

    def _send_records(self, effect: do.SendRecords) -> None:
        message = effect.message
        place = message.term, message.offset, self._log.end  # no leader changes records of its own term
        if place != self._records_at:
            self._records_at, self._records = place, self._log.read(message.offset, READ_BYTES)
        self._broker.send(effect.to, message._replace(records=self._records))

    def _send_repair(self, effect: do.SendRepair) -> None:
        try:
            records = self._log.read_range(effect.message.offset, effect.end)
            self._broker.send(effect.to, effect.message._replace(records=records))
        except (RecordDamaged, ValueError) as error:
            _log.warning(
                "raft_repair_refused", to=str(effect.to), offset=effect.message.offset, cause=str(error)
            )

    def _append(self, effect: do.Append) -> None:
        self._log.append(effect.offset, effect.records)  # type: ignore[arg-type]
        self._end = self._log.end

    def _append_group_record(self, effect: do.AppendGroupRecord) -> None:
        members = effect.members.with_addresses(self._addresses.of_each(effect.members))
        self._store.gate.open(REPLICATION)  # for this record only
        try:
            record = self._log.append_group_record(effect.term, members)
        except StoreError as error:  # such as a full disk; nothing was appended
            raise CannotLead(f"its first record cannot be appended: {error}") from error
        self._end = self._log.end
        self._run(lambda: self.node.on(GroupRecordAppended(record, self._end), self._now()))

    def _prepare_to_open(self, effect: do.OpenForSends) -> None:
        self._opening = (effect.term, self._log.confirmed)
        self._open_if_flushed()

    def _open_if_flushed(self) -> None:
        """Open for sends when this disk has what the majority has confirmed: the tables need all of it."""
        if self._opening is not None and self._log.flushed >= self._opening[1] and self._is_running:
            term, self._opening = self._opening[0], None
            self._store.confirm()
            self._move_gate()
            self._broker.open_for_sends(term)

    def _truncate(self, effect: do.Truncate) -> None:
        _log.info("raft_log_truncated", offset=effect.offset, end=self._end)
        self._log.truncate(effect.offset)
        self._end = effect.offset
        self._flushed = min(self._flushed, effect.offset)

    def _restart(self, effect: do.Restart) -> None:
        """Begin a new log at the leader's oldest file; an old one is removed by the next start."""
        if not self._log.is_new:
            self._restart_broker(
                f"the leader's log begins at {effect.offset:,}, and lacks what this one ends with: the next "
                "start copies it from there"
            )
            return
        _log.info("raft_log_joined", offset=effect.offset)
        self._log.begin_at(effect.offset)
        self._end = self._flushed = self._min = effect.offset

    def _repair(self, effect: do.RepairRange) -> None:
        if self._log.repair(effect.offset, effect.records):  # type: ignore[arg-type]
            self._restart_broker(
                "damaged records were repaired: the next start derives consume queues and index again"
            )
        else:
            self._run(lambda: self.node.on(RangeRepaired(), self._now()))

    def _lose_leadership(self, effect: do.LoseLeadership) -> None:
        _log.warning("raft_leadership_lost", reason=effect.reason)
        self._opening = None
        self._store.gate.close(REPLICATION, NO_LEADER)  # before a foreign byte: services stop later
        self._abandon(f"this replica does not lead its group any more: {effect.reason}; send again")
        self._broker.lose_leadership()

    def _abandon(self, reason: str) -> None:
        self._store.abandon_unconfirmed(StoreError(reason))

    def _restart_broker(self, reason: str) -> None:
        self._fail(f"{reason}; it must be restarted")
        self._broker.restart(reason)

    def _fail(self, reason: str) -> None:
        """Stop this replica, changing nothing."""
        if not self._is_running:
            return
        _log.error("raft_replica_failed", reason=reason)
        self.failure = f"this replica takes no part in its group: {reason}"
        self.stop()
        self._broker.fail()
