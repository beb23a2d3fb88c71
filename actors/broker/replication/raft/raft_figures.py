"""Figures of a replica of a Raft group. What a leader knows of the others is 0 or empty on followers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from actors.broker.replication.raft.driver import RaftDriver
from actors.host.figures import Figure, Kind, Sample
from store.commitlog.positions import Positions
from store.common.clock import NS_PER_MS, Clock


def raft_figures(
    driver: RaftDriver, positions: Positions, leader_address: Callable[[], str], clock: Clock
) -> Sequence[Figure]:
    """Return the figures; `leader_address` returns the address of the leader, empty if it is not known."""
    node = driver.node

    def state() -> str:
        return driver.failure or str(node.role.value)

    def active_voters() -> int:
        return node.active_voters(clock.monotonic_ns() // NS_PER_MS)

    def match() -> str:
        return ", ".join(f"{each.replica}: {end}" for each, end in sorted(node.match_offsets.items()))

    def voters() -> str:
        return ", ".join(str(each) for each in sorted(each.replica for each in node.members.voters))

    def lag_bytes() -> Iterator[Sample]:
        for member, end in list(node.match_offsets.items()):
            yield Sample((str(member.replica),), max(positions.written - end, 0))

    return (
        Figure("raft_state", Kind.TEXT, "", state, "Role in the Raft group, or why it has none."),
        Figure(
            "raft_term", Kind.GAUGE, "", lambda: node.term, "Term of the Raft group.",
            runtime_names=("raftTerm",), metric="raymq_raft_term",
        ),
        Figure("raft_group_id", Kind.TEXT, "", lambda: node.group_id, "Id of the Raft group."),
        Figure("raft_leader", Kind.TEXT, "", leader_address, "Address of the leader."),
        Figure(
            "raft_is_leader", Kind.GAUGE, "", lambda: int(driver.is_leader), "1 if this replica leads.",
            metric="raymq_raft_is_leader",
        ),
        Figure(
            "raft_voters", Kind.GAUGE, "", lambda: len(node.members.voters), "Voters of the Raft group.",
            runtime_names=("raftVoters",), metric="raymq_raft_voters",
        ),
        Figure("raft_voter_numbers", Kind.TEXT, "", voters, "Numbers of the voters of the Raft group."),
        Figure(
            "raft_active_voters", Kind.GAUGE, "", active_voters,
            "Voters of which the leader got a message within an election time, itself included.",
            runtime_names=("raftActiveVoters",), metric="raymq_raft_active_voters",
        ),
        Figure(
            "raft_match", Kind.TEXT, "", match,
            "Position up to which each other replica has flushed the leader's log, by replica.",
            runtime_names=("raftMatch",),
        ),
        Figure(
            "raft_member_lag_bytes", Kind.GAUGE, "bytes", lag_bytes,
            "Bytes of the leader's log that a replica has not flushed.",
            labels=("replica",),
            metric="raymq_raft_member_lag_bytes",
        ),
    )  # fmt: skip
