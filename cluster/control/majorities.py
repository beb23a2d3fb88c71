"""Majorities of Raft groups: whether a group still has one after some of its replicas are stopped. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from actors.host.service_host import State
from actors.raft.state import Role
from cluster.control.plan import Running
from cluster.views.replicas import group_role, knows_its_group


def lost_majorities(
    running: Iterable[Running], stopped: Collection[str], kept: Collection[str] | None = None
) -> Iterator[str]:
    """Yield a line for each Raft group that loses its majority if actors are stopped.

    Args:
        running: The running actors of the cluster.
        stopped: Names of the actors to stop.
        kept: If given, only groups with one of these broker names: the others are removed as a whole.
    """
    groups: dict[str, list[Running]] = {}
    for actor in running:
        if actor.replica.votes:
            groups.setdefault(actor.replica.broker, []).append(actor)
    for name, replicas in sorted(groups.items()):
        voters = _voters(replicas)
        up = {each.name for each in replicas if each.replica.number in voters and _takes_part(each)}
        left, majority = len(up.difference(stopped)), len(voters) // 2 + 1
        if (kept is None or name in kept) and left < majority <= len(up):
            yield (
                f"{', '.join(sorted(up.intersection(stopped)))}: the Raft group {name} would have {left} of "
                f"its {len(voters)} voters left, needs {majority}, and would refuse all sends. Start its "
                "other replicas first (`raymq status`, `raymq up`), or make it smaller: "
                f"`raymq replica remove {name} N`. To stop all of it, remove it from the topology: "
                "`raymq up --prune`"
            )


def _voters(replicas: Iterable[Running]) -> set[int]:
    """Return the numbers of the group's voters, as the replica with the greatest term knows them."""
    known = [each.details for each in replicas if each.details.get("raft_voter_numbers")]
    newest = max(
        known, key=lambda each: (int(each["raft_term"]), group_role(each) == Role.LEADER), default={}
    )
    return {int(each) for each in str(newest.get("raft_voter_numbers", "")).split(",") if each.strip()}


def _takes_part(replica: Running) -> bool:
    is_serving = replica.state == State.SERVING and bool(group_role(replica.details))
    return is_serving and knows_its_group(replica.details)
