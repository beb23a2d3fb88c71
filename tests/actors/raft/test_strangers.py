"""Messages of replicas that are no members as far as the receiver knows: whom it believes, and when."""

from __future__ import annotations

import random
from typing import Any, get_args

import pytest

from actors.raft import effects as do
from actors.raft.effects import SavedTerm
from actors.raft.members import Member
from actors.raft.messages import FetchRequest, LeaderNotice, Message, Records, VoteRequest, VoteResponse
from actors.raft.node import GroupNamed, RaftNode
from actors.raft.state import LogState
from tests.actors.broker.replication.raft.test_hostile_messages import invented
from tests.actors.raft.test_node import TIMING, A, B, C, D, a_node, elected, of, opened, sent

GROUP, OTHER = "group", "another group"
STANDS = (VoteRequest, LeaderNotice)
"""What a member that this replica does not know sends first."""


def of_group(me: Member = A, **log: Any) -> RaftNode:
    node = a_node(me, **log)
    node.on(GroupNamed(GROUP), 0)
    return node


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_stranger_is_believed_only_as_candidate_or_leader_of_this_group(kind: Any) -> None:
    """Walks over all kinds of messages: a new kind is refused unless it is listed."""
    message = invented(kind, D, random.Random(1))
    for named, is_accepted in ((GROUP, kind in STANDS), (OTHER, False), ("", False)):
        assert of_group().is_of_group(message, named) is is_accepted, named
    assert not a_node().is_of_group(message, GROUP)  # as long as it does not know its own group
    for named in (GROUP, OTHER, ""):
        assert of_group().is_of_group(message._replace(sender=B), named)


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_replica_that_is_no_member_yet_takes_its_group_from_its_leader(kind: Any) -> None:
    message = invented(kind, B, random.Random(1))
    log = LogState(0, 0, 0)
    joining = RaftNode(D, SavedTerm(), log, now_ms=0, rng=random.Random(1), timing=TIMING)
    assert joining.is_of_group(message, GROUP)
    joining.on(LeaderNotice(B, 3), 10)
    (saved,) = of(joining.on(GroupNamed(GROUP), 10), do.SaveTerm)
    assert saved.saved.group_id == joining.group_id == GROUP
    assert not joining.is_of_group(message._replace(sender=C), OTHER)


def test_unknown_candidate_of_the_group_is_elected_and_followed() -> None:
    """D was added while this replica was down, and no other one is up."""
    node = of_group(end=100, term=3)
    assert sent(node.on(VoteRequest(D, 4, True, 3, 100), 10), VoteResponse)[0].is_granted
    assert sent(node.on(VoteRequest(D, 4, False, 3, 100), 20), VoteResponse)[0].is_granted
    (fetch,) = sent(node.on(LeaderNotice(D, 4), 30), FetchRequest)
    response = Records(D, 4, fetch.request_id, 100, 100, 100, (), b"")
    assert node.is_of_group(response, GROUP)
    node.on(response, 40)
    assert (node.leader, node.confirmed) == (D, 100)


def test_unknown_candidate_with_less_of_the_log_gets_no_vote() -> None:
    node = of_group(end=100, term=3)
    for is_pre in (True, False):
        response = sent(node.on(VoteRequest(D, 4, is_pre, 3, 99), 10), VoteResponse)[0]
        assert not response.is_granted


@pytest.mark.parametrize(
    "message", [VoteRequest(D, 9, True, 9, 999), VoteRequest(D, 9, False, 9, 999), LeaderNotice(D, 9)]
)
@pytest.mark.parametrize("is_leader", [True, False])
def test_stranger_changes_nothing_while_a_leader_is_heard(message: Any, is_leader: bool) -> None:
    """It may have been removed, and not know it; a member does the same with a pre-vote only."""
    node = of_group(end=100, term=3)
    now = opened(node) if is_leader else 100
    if not is_leader:
        node.on(LeaderNotice(B, 4), now)
    before = node.term, node.leader, node.role
    assert node.on(message, now + 999) == []
    assert (node.term, node.leader, node.role) == before


def test_stranger_that_leads_is_followed_when_the_lease_of_the_old_leader_is_over() -> None:
    node = of_group(term=3)
    node.on(LeaderNotice(B, 4), 100)
    node.on(LeaderNotice(D, 9), 1_100)
    assert (node.term, node.leader) == (9, D)


def test_old_terms_of_a_stranger_change_nothing() -> None:
    node = of_group(end=100, term=3)
    for message in (VoteRequest(D, 2, True, 9, 999), VoteRequest(D, 2, False, 9, 999), LeaderNotice(D, 2)):
        effects = node.on(message, 10)
        assert not any(each.is_granted for each in sent(effects, VoteResponse))
        assert (node.term, node.leader) == (3, None)


def test_first_leader_of_a_group_without_an_id_makes_one_that_later_leaders_keep() -> None:
    first = a_node()
    opened(first)
    assert first.group_id == f"{A.store_id}.1"
    second = of_group()
    opened(second)
    assert second.group_id == GROUP


def test_new_leader_makes_no_id_before_its_first_record_is_confirmed() -> None:
    node = a_node()
    elected(node)
    assert node.group_id == ""
