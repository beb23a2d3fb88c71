"""Following: a replica copies the log of its leader.

no leader ──LeaderNotice──→ fetch ──Records──→ append, fetch again when they are flushed
                              ├────Mismatch──→ truncate what diverged, fetch again
                              ├────JoinFrom──→ begin a new log there, fetch again
                              └───NotServed──→ wait for the next notice

`verified` is the end of the part of the log that is known to equal the leader's: only this part is
acknowledged or confirmed.
"""

from actors.raft.effects import Append, RepairRange, Trim, Truncate
from actors.raft.members import Member
from actors.raft.messages import (
    Ack,
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

UNKNOWN = 1 << 62  # beyond any log


class Following:
    """The copy of the leader's log that one replica makes while it does not lead."""

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        # Random, so that a response to a fetch from before a restart is recognized.
        self._request_id = state.rng.getrandbits(62)
        self._sent_ms = 0
        self._fetches_when_flushed = False
        self._acked = 0
        self._verified = 0
        self._verified_term = -1
        self._leader_confirmed = 0
        self._leader_end = UNKNOWN
        self._damage: tuple[int, int] | None = None
        self._repair_at_ms = 0

    def deadline_ms(self) -> int | None:
        """Time at which the fetch is repeated; None without a leader."""
        return None if self._state.leader is None else self._sent_ms + self._state.timing.fetch_timeout_ms

    @property
    def damage(self) -> tuple[int, int] | None:
        """The damaged range of the log that is to be repaired from the leader, or None."""
        return self._damage

    # ---- requests ------------------------------------------------------------------------------------------

    def on_notice(self, notice: LeaderNotice, now_ms: int) -> bool:
        """Follow the sender, which leads this term. Returns False if this replica did so before."""
        state = self._state
        if state.leader == notice.sender and state.role is Role.FOLLOWER:
            return False
        self.follow(notice.sender, now_ms)
        return True

    def follow(self, leader: Member, now_ms: int) -> None:
        """Begin to fetch from the leader of this term."""
        state = self._state
        state.role = Role.FOLLOWER
        state.leader = leader
        if self._verified_term != state.term:
            self._verified_term, self._verified, self._acked, self._leader_confirmed = state.term, 0, 0, 0
            self._leader_end = UNKNOWN
        self._fetch(now_ms)

    def on_tick(self, now_ms: int) -> None:
        """Repeat the fetch if its response is overdue."""
        if self._state.leader is not None and now_ms >= self._sent_ms + self._state.timing.fetch_timeout_ms:
            self._fetch(now_ms)

    def _fetch(self, now_ms: int) -> None:
        state = self._state
        if state.leader is None:
            return
        self._request_id += 1
        self._sent_ms = now_ms
        self._fetches_when_flushed = False
        end, term_before = state.end, state.history.term_before(state.end)
        self._acked = self._durable()
        state.send(
            state.leader,
            FetchRequest(
                state.me,
                state.term,
                self._request_id,
                end,
                term_before,
                self._acked,
                state.is_electable and self._damage is None,
            ),
        )
        if self._damage is not None and now_ms >= self._repair_at_ms:
            self._repair_at_ms = now_ms + state.timing.fetch_timeout_ms
            state.send(state.leader, RepairRequest(state.me, state.term, *self._damage))

    def _durable(self) -> int:
        """The end of the part that is flushed and equals the leader's log."""
        return min(self._state.flushed, self._verified)

    def _awaits_flush(self) -> bool:
        """Return True if the next fetch can acknowledge more after the flush that is due or in flight."""
        return self._state.flushed < self._state.end

    def on_flushed(self, now_ms: int) -> None:
        """Acknowledge what the last flush has made durable, with the next fetch if it is due."""
        state = self._state
        if state.leader is None or self._durable() <= self._acked:
            return
        if self._fetches_when_flushed:
            self._fetch(now_ms)
        else:
            self._acked = self._durable()
            state.send(state.leader, Ack(state.me, state.term, self._acked))
        self._become_electable()

    # ---- responses -----------------------------------------------------------------------------------------

    def is_expected(self, response: Records | Mismatch | JoinFrom | NotServed) -> bool:
        """Return True for the response to the last fetch, from the leader of this term."""
        return response.request_id == self._request_id and response.sender == self._state.leader

    def on_records(self, response: Records, now_ms: int) -> None:
        """Append the records, and confirm what the leader has confirmed of them.

        The next fetch acknowledges the records: it is sent when they are flushed, at the latest after
        `fetch_timeout_ms`.
        """
        state = self._state
        if response.offset != state.end:
            state.fail(f"records for offset {response.offset:,}, but the log ends at {state.end:,}")
            return
        if len(response.records):
            state.effects.append(Append(response.offset, response.records))
            state.end += len(response.records)
            for record in response.history:
                if record.start < state.end:
                    state.history.add(record)
        self._verified = state.end
        self._leader_confirmed = response.confirmed
        self._leader_end = min(self._leader_end, response.end)
        state.confirm(min(response.confirmed, self._verified))
        self._become_electable()
        if self._awaits_flush():
            self._request_id += 1  # a copy of this response is not expected any more
            self._fetches_when_flushed = True
        else:
            self._fetch(now_ms)

    def _become_electable(self) -> None:
        if not self._state.is_electable and self.has_caught_up():
            self._state.set_electable(is_electable=True)

    def has_caught_up(self) -> bool:
        """Return True if this log has all that is confirmed, durably.

        That is known when the leader has confirmed what its log had at its first response since this replica
        started: the first record of its term, and all that this replica may have acknowledged, and then lost.
        """
        return self._leader_end <= self._leader_confirmed <= self._durable()

    def on_mismatch(self, response: Mismatch, now_ms: int) -> None:
        """Truncate the part of the log that diverged, and fetch again."""
        state = self._state
        _, own_end = state.history.last_term_up_to(response.last_term, state.end)
        offset = min(own_end, response.end)
        if not max(state.confirmed, state.min) <= offset < state.end:
            state.fail(
                f"the leader's log differs below offset {offset:,}, but this log, which ends at "
                f"{state.end:,}, is final up to {state.confirmed:,}"
            )
            return
        self.truncate(offset)
        self._fetch(now_ms)

    def truncate(self, offset: int) -> None:
        """Remove the log from `offset` on, then forget the terms and members there."""
        state = self._state
        state.effects.append(Truncate(offset))
        state.history.truncate_to(offset)
        state.end = offset
        state.flushed = min(state.flushed, offset)
        self._verified = min(self._verified, offset)

    def on_join(self, response: JoinFrom, now_ms: int) -> None:
        """Replace the log, of which the leader has no byte left, by one that begins at its oldest file."""
        state = self._state
        if response.offset < state.confirmed:
            state.fail(f"cannot join at {response.offset:,}: the log is final up to {state.confirmed:,}")
            return
        state.restart_log(response.offset, response.history)
        self._damage = None
        self._fetch(now_ms)

    def on_not_served(self, response: NotServed, now_ms: int) -> None:
        """Follow the leader that the response names, or wait for a notice or an election."""
        state = self._state
        state.leader = None
        if response.leader is not None and response.leader != state.me:
            self.follow(response.leader, now_ms)

    # ---- repair --------------------------------------------------------------------------------------------

    def on_damage(self, begin: int, end: int) -> None:
        """Request the bytes of a damaged range from the leader; until then this replica does not stand.

        The part that may not be final is truncated. As it may have been acknowledged, this replica does not
        vote until it has caught up.
        """
        state = self._state
        if end > state.confirmed:
            state.set_electable(is_electable=False)
            self._leader_end = UNKNOWN
            self._request_id += 1  # the response under way follows the old end
            self.truncate(max(begin, state.confirmed))
            end = state.confirmed
        if begin < end:
            self._damage = (begin, end)

    def on_repair_bytes(self, response: RepairBytes) -> None:
        """Write the leader's bytes over the damaged ones, or drop them if it has deleted its own."""
        if self._damage is None:
            return
        if response.offset == self._damage[0] and len(response.records):
            self._state.effects.append(RepairRange(response.offset, response.records))
        elif self._damage[0] < response.offset <= self._state.confirmed and not len(response.records):
            self._state.effects.append(Trim(response.offset))

    def on_repaired(self) -> None:
        """Record that the damaged range is repaired."""
        self._damage = None

    def on_trimmed(self, offset: int) -> None:
        """Forget the part of the damaged range that was deleted."""
        if self._damage is not None:
            begin, end = self._damage
            self._damage = (max(begin, offset), end) if offset < end else None
