# ruff: noqa: SLF001 - a mutation replaces a private part of the core
"""Mutations: deliberate mistakes in the core, the log or the operator, which the simulation must find.

`python -m tests.sim.mutations` runs each until a seed finds it, and prints the table of `docs/simulation.md`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from actors.raft import leading as leading_module
from actors.raft.effects import AppendGroupRecord, LoseLeadership, SavedTerm, Send
from actors.raft.election import Election
from actors.raft.following import Following
from actors.raft.leading import Leading
from actors.raft.members import Member, Members, next_change
from actors.raft.state import ReplicaState, Role
from tests.sim import simulation as simulation_module
from tests.sim.checks import Violation
from tests.sim.model_log import ModelLog
from tests.sim.replica import SimReplica
from tests.sim.schedule import draw
from tests.sim.simulation import Simulation


class Mutation(NamedTuple):
    """A mistake: `replaced` lists owner, attribute and the wrong value."""

    name: str
    budget: int
    """Number of seeds within which it must be found; about three times what it took."""
    replaced: tuple[tuple[Any, str, Any], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, wrong in self.replaced:
                stack.enter_context(patch.object(owner, attribute, wrong))
            yield


def find(mutation: Mutation, first: int = 0) -> tuple[int, str] | None:
    """Return the first seed of the budget that finds the mutation, and what it found."""
    with mutation.applied():
        for seed in range(first, first + mutation.budget):
            try:
                Simulation(draw(seed)).run()
            except Violation as violation:
                return seed, str(violation)
    return None


# ---- election ----------------------------------------------------------------------------------------------


def _save_without_vote(replica: SimReplica, effect: Any) -> None:
    replica.saved = effect.saved._replace(voted_for=None)


def _send_before_save(state: ReplicaState, to: Member, message: Any) -> None:
    state.effects.append(Send(to, message))


# ---- log ---------------------------------------------------------------------------------------------------


def _lead_without_record(leading: Leading, now: int) -> None:
    """Skip the group record if the last term is empty, as an epoch list that only records bytes does."""
    begin(leading, now)
    state = leading._state
    records = state.history.records
    if records and records[-1].start == state.end - 1:
        state.effects[:] = [each for each in state.effects if type(each) is not AppendGroupRecord]
        leading._opens_at, leading._is_open = state.end, True


begin = Leading.begin


def _count_unverified(leading: Leading, sender: Member, progress: Any, flushed: int, now: int) -> None:
    progress.verified = max(progress.verified, flushed)
    count(leading, sender, progress, flushed, now)


count = Leading.count


def _is_short_enough(leading: Leading, fetch: Any) -> bool:
    return bool(fetch.offset <= leading._state.end)


def _is_from_leader(following: Following, response: Any) -> bool:
    return bool(response.sender == following._state.leader)


def _durable_unverified(following: Following) -> int:
    return following._state.flushed


def _durable_unflushed(following: Following) -> int:
    return following._verified


def _majority_with_learners(leading: Leading) -> int:
    state = leading._state
    flushed = [state.flushed, *(each.match for each in leading.progress.values())]
    flushed.sort(reverse=True)
    return flushed[min(state.members.majority, len(flushed)) - 1]


def _majority_of_one_less(leading: Leading) -> int:
    state = leading._state
    flushed = [
        state.flushed,
        *(leading.progress[each].match for each in state.members.voters if each != state.me),
    ]
    flushed.sort(reverse=True)
    return flushed[max(state.members.majority - 2, 0)]


# ---- role --------------------------------------------------------------------------------------------------


def _leads(leading: Leading) -> bool:
    return leading._state.role is Role.LEADER


def _lose_silently(state: ReplicaState, reason: str) -> None:
    if state.role is Role.LEADER:
        state.role, state.leader = Role.FOLLOWER, None


def _keep_waiting(replica: SimReplica, effect: LoseLeadership) -> None:
    pass


# ---- disk --------------------------------------------------------------------------------------------------


def _wipe_with_same_id(sim: Simulation, number: int, down_ms: int) -> None:
    replica = sim.replicas[number]
    if sim._may_lose_data_of(replica):
        sim._down(replica, down_ms, keeps_cache=True)
        replica.saved = SavedTerm(first_members=replica.saved.first_members)
        lost = replica.log.tokens(0, replica.log.durable)
        replica.log = ModelLog()
        replica.log.lost = lost


def _always_electable(state: ReplicaState, *arguments: Any) -> None:
    init(state, *arguments)
    state.is_electable = True


init = ReplicaState.__init__


def _caught_up_with_any_leader(following: Following) -> bool:
    return following._leader_confirmed <= following._durable()


def _caught_up_unflushed(following: Following) -> bool:
    return following._leader_end <= following._leader_confirmed <= following._verified


# ---- members -----------------------------------------------------------------------------------------------


def _swap_voters(members: Members, remove: Member | None, add: Member | None) -> Members | None:
    if add in members.learners and remove in members.voters:
        return members.without(remove).with_voter(add)
    return next_change(members, remove, add)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


MUTATIONS = (
    Mutation("a vote does not compare the logs", 30, ((Election, "is_complete", always(True)),)),
    Mutation("the vote is not saved", 30, ((SimReplica, "_save_term", _save_without_vote),)),
    Mutation("a message leaves before the term is saved", 30, ((ReplicaState, "send", _send_before_save),)),
    Mutation(
        "a fetch does not compare the terms",
        30,
        ((Leading, "has_same_bytes", _is_short_enough),),
    ),
    Mutation(
        "bytes are acknowledged before the flush",
        30,
        ((Following, "_durable", _durable_unflushed), (Following, "_awaits_flush", always(False))),
    ),
    Mutation(
        "bytes are acknowledged that were not compared",
        3000,
        ((Following, "_durable", _durable_unverified), (Leading, "count", _count_unverified)),
    ),
    Mutation(
        "records of an old term are confirmed by counting",
        200,
        ((Leading, "is_of_this_term", always(True)),),
    ),
    Mutation(
        "one vote less than a majority confirms", 30, ((Leading, "majority_offset", _majority_of_one_less),)
    ),
    Mutation("an empty term leaves no record", 30, ((Leading, "begin", _lead_without_record),)),
    Mutation(
        "the response to an earlier fetch is used",
        30,
        ((Following, "is_expected", _is_from_leader),),
    ),
    Mutation("a flush counts over a truncation", 1000, ((ModelLog, "is_valid", always(True)),)),
    Mutation(
        "a restart takes the whole log as confirmed",
        30,
        ((ModelLog, "recovered_bound", lambda log: log.end),),
    ),
    Mutation(
        "acknowledgements wait over the loss of the leadership",
        30,
        ((SimReplica, "_lose_leadership", _keep_waiting),),
    ),
    Mutation(
        "the loss of the leadership is not reported",
        30,
        ((ReplicaState, "lose_leadership", _lose_silently),),
    ),
    Mutation(
        "sends open before the leader's first record is confirmed",
        30,
        ((Leading, "is_open", property(_leads)),),
    ),
    Mutation("a leader without a majority does not resign", 30, ((Leading, "hears_majority", always(True)),)),
    Mutation("a learner counts", 100, ((Leading, "majority_offset", _majority_with_learners),)),
    Mutation(
        "members change while the last change is unconfirmed", 100, ((Leading, "is_settled", always(True)),)
    ),
    Mutation(
        "a voter is replaced in one step",
        3000,
        ((simulation_module, "next_change", _swap_voters), (leading_module, "check_change", always(None))),
    ),
    Mutation("a wiped replica keeps its identity", 300, ((Simulation, "_fault_wipe", _wipe_with_same_id),)),
    Mutation(
        "a replica that lost confirmed bytes votes", 3000, ((ReplicaState, "__init__", _always_electable),)
    ),
    Mutation(
        "a replica counts as complete before the leader is",
        2000,
        ((Following, "has_caught_up", _caught_up_with_any_leader),),
    ),
    Mutation(
        "a replica counts as complete before its flush",
        300,
        ((Following, "has_caught_up", _caught_up_unflushed),),
    ),
)


def main() -> None:
    """Print the seed that finds each mutation."""
    names = sys.argv[1:]
    for mutation in MUTATIONS:
        if names and not any(each in mutation.name for each in names):
            continue
        began = time.process_time()
        found = find(mutation)
        text = "not found" if found is None else f"{found[0] + 1} | {found[1]}"
        print(f"| {mutation.name} | {text} |  {time.process_time() - began:.1f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
