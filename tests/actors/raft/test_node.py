"""Single steps of RaftNode; whole groups are simulated in tests/sim."""

from __future__ import annotations

import random
from typing import Any

import pytest

from actors.raft import effects as do
from actors.raft.effects import SavedTerm
from actors.raft.history import GroupRecord
from actors.raft.leading import CONFIRM_MS, LINGER_MS
from actors.raft.members import Member, Members, NotAllowed
from actors.raft.messages import (
    Ack,
    CampaignNow,
    FetchRequest,
    JoinFrom,
    LeaderNotice,
    Mismatch,
    NotServed,
    Records,
    RepairBytes,
    RepairRequest,
    VoteRequest,
    VoteResponse,
)
from actors.raft.node import (
    Appended,
    Damaged,
    Flushed,
    GroupRecordAppended,
    RaftNode,
    RangeRepaired,
    Tick,
    Trimmed,
)
from actors.raft.state import LogState, Role, Timing

A, B, C, D = (Member(number, f"store-{number}") for number in range(4))
MEMBERS = Members((A, B, C))
RECORD_BYTES = 50
TIMING = Timing(1_000, 500)


def a_node(
    me: Member = A, end: int = 0, *, confirmed: int = 0, term: int = 0, min_offset: int = 0
) -> RaftNode:
    """A replica whose log was written in `term`."""
    records = (GroupRecord(min_offset, term, MEMBERS),) if term else ()
    log = LogState(min_offset, end, confirmed, records)
    saved = SavedTerm(term, first_members=MEMBERS)
    return RaftNode(me, saved, log, now_ms=0, rng=random.Random(1), timing=TIMING)


def sent(effects: list[Any], kind: type) -> list[Any]:
    return [
        each.message
        for each in effects
        if isinstance(each, do.SendToMember) and isinstance(each.message, kind)
    ]


def of(effects: list[Any], kind: type) -> list[Any]:
    return [each for each in effects if isinstance(each, kind)]


def elected(node: RaftNode) -> int:
    """Let the node win an election; return the time."""
    now = node.deadline_ms
    node.on(Tick(), now)
    node.on(VoteResponse(B, node.term, node.term + 1, True, True), now)
    effects = node.on(VoteResponse(B, node.term, node.term, False, True), now)
    (append,) = of(effects, do.AppendGroupRecord)
    start = node._state.end  # noqa: SLF001 - the owner knows the end of its log
    record = GroupRecord(start, append.term, append.members)
    node.on(GroupRecordAppended(record, start + RECORD_BYTES), now)
    return now


def opened(node: RaftNode) -> int:
    """Let the node win an election and confirm its first record; return the time."""
    now = elected(node)
    end = node._state.end  # noqa: SLF001
    node.on(Flushed(end), now)
    node.on(FetchRequest(B, node.term, 1, end, node.term, end, True), now)
    assert node.accepts_sends
    return now


def test_term_and_vote_are_saved_before_the_vote_leaves() -> None:
    effects = a_node().on(VoteRequest(B, 5, False, 0, 0), 10)
    kinds = [type(each) for each in effects]
    assert kinds.index(do.SaveTerm) < kinds.index(do.SendToMember)
    assert of(effects, do.SaveTerm)[0].saved[:2] == (5, B)
    assert sent(effects, VoteResponse)[0].is_granted


def test_times_that_make_followers_call_needless_elections_are_refused() -> None:
    with pytest.raises(ValueError, match="hold_ms 600 is more than half of election_ms 1,000"):
        RaftNode(A, SavedTerm(), LogState(0, 0, 0), now_ms=0, rng=random.Random(1), timing=Timing(1_000, 600))


def test_only_voter_stands_at_its_start_without_waiting_for_a_leader() -> None:
    log, saved = LogState(0, 50, 0), SavedTerm(3, first_members=Members((A,)))
    node = RaftNode(A, saved, log, now_ms=7, rng=random.Random(1), timing=TIMING)
    assert node.deadline_ms == 7
    node.on(Tick(), 7)
    assert (node.role, node.term) == (Role.LEADER, 4)

    lost = RaftNode(A, saved, LogState(0, 50, 60), now_ms=7, rng=random.Random(1), timing=TIMING)
    lost.on(Tick(), 7)
    assert lost.role is Role.FOLLOWER  # it lacks confirmed bytes
    assert lost.deadline_ms > 7


def test_second_candidate_of_a_term_gets_no_vote_also_after_a_restart() -> None:
    node = a_node()
    (save,) = of(node.on(VoteRequest(B, 5, False, 0, 0), 10), do.SaveTerm)
    assert not sent(node.on(VoteRequest(C, 5, False, 9, 999), 11), VoteResponse)[0].is_granted
    restarted = RaftNode(A, save.saved, LogState(0, 0, 0), now_ms=0, rng=random.Random(2), timing=Timing())
    assert not sent(restarted.on(VoteRequest(C, 5, False, 9, 999), 11), VoteResponse)[0].is_granted


@pytest.mark.parametrize(
    ("last_term", "end", "granted"), [(2, 999, False), (3, 99, False), (3, 100, True), (4, 1, True)]
)
def test_vote_goes_only_to_a_log_that_is_as_complete(last_term: int, end: int, granted: bool) -> None:
    node = a_node(end=100, term=3)
    assert sent(node.on(VoteRequest(B, 9, False, last_term, end), 1), VoteResponse)[0].is_granted == granted


def test_pre_vote_is_refused_while_a_leader_is_heard() -> None:
    node = a_node()
    node.on(LeaderNotice(B, 1), 100)
    assert not sent(node.on(VoteRequest(C, 2, True, 9, 999), 500), VoteResponse)[0].is_granted
    assert node.term == 1


def test_vote_request_that_arrives_after_its_leader_does_not_end_the_lease() -> None:
    node = a_node()
    node.on(LeaderNotice(B, 1), 100)
    assert not sent(node.on(VoteRequest(B, 1, False, 0, 0), 110), VoteResponse)[0].is_granted
    assert node.leader == B
    assert not sent(node.on(VoteRequest(C, 2, True, 9, 999), 120), VoteResponse)[0].is_granted


def test_leader_opens_only_when_its_first_record_has_a_majority() -> None:
    node = a_node()
    now = elected(node)
    assert node.role is Role.LEADER
    assert not node.accepts_sends
    assert of(node.on(Flushed(RECORD_BYTES), now), do.Confirm) == []
    effects = node.on(FetchRequest(B, 1, 1, RECORD_BYTES, 1, RECORD_BYTES, True), now)
    assert of(effects, do.Confirm) == [do.Confirm(RECORD_BYTES)]
    assert of(effects, do.OpenForSends) == [do.OpenForSends(1)]
    assert of(effects, do.SaveTerm)[0].saved.history == (GroupRecord(0, 1, MEMBERS),)
    assert node.accepts_sends


def test_acknowledgement_of_bytes_that_were_not_compared_does_not_count() -> None:
    node = a_node()
    now = elected(node)
    node.on(Flushed(RECORD_BYTES), now)
    assert of(node.on(Ack(B, 1, RECORD_BYTES), now), do.Confirm) == []


def test_messages_of_strangers_and_old_terms_are_refused_by_name() -> None:
    node = a_node(end=100, term=4)
    now = opened(node)
    (refusal,) = sent(node.on(FetchRequest(D, node.term, 7, 0, 0, 0, True), now), NotServed)
    assert "replica 3 (store store-3) is not a member" in refusal.reason
    (refusal,) = sent(node.on(FetchRequest(B, 1, 8, 0, 0, 0, True), now), NotServed)
    assert (refusal.term, refusal.leader) == (node.term, A)
    (refusal,) = sent(node.on(LeaderNotice(B, 2), now), NotServed)
    assert "term 2 is over" in refusal.reason


def test_confirmation_travels_with_the_next_records() -> None:
    node = a_node()
    now, end = opened(node), RECORD_BYTES
    node.on(FetchRequest(B, node.term, 2, end, node.term, end, True), now)
    effects = node.on(Appended(end + RECORD_BYTES), now)
    (records,) = of(effects, do.SendRecords)
    assert (records.to, records.message.confirmed) == (B, end)
    assert sent(node.on(Tick(), now + CONFIRM_MS), Records) == []


def test_confirmation_is_sent_alone_if_no_records_follow() -> None:
    node = a_node()
    now, end = opened(node), RECORD_BYTES
    node.on(Appended(end + 10), now)
    node.on(Flushed(end + 10), now)
    effects = node.on(FetchRequest(B, node.term, 2, end + 10, node.term, end + 10, True), now)
    assert of(effects, do.Confirm) == [do.Confirm(end + 10)]
    assert sent(effects, Records) == []
    assert node.deadline_ms <= now + CONFIRM_MS
    (records,) = sent(node.on(Tick(), now + CONFIRM_MS), Records)
    assert records.confirmed == end + 10
    assert sent(node.on(Tick(), now + 2 * CONFIRM_MS), Records) == []


@pytest.mark.parametrize("is_held", [True, False])
def test_round_waits_for_half_of_what_was_confirmed_but_only_briefly(is_held: bool) -> None:
    node = a_node()
    now, end = opened(node), RECORD_BYTES
    fetch = FetchRequest(B, node.term, 2, end, node.term, end, True)
    first, second = (fetch, Appended(end + 10)) if is_held else (Appended(end + 10), fetch)
    assert of(node.on(first, now) + node.on(second, now), do.SendRecords) == []
    assert node.deadline_ms == now + LINGER_MS
    assert len(of(node.on(Appended(end + RECORD_BYTES // 2), now + 1), do.SendRecords)) == 1
    node.on(fetch._replace(request_id=3, offset=end + RECORD_BYTES // 2), now + 1)
    node.on(Appended(end + RECORD_BYTES // 2 + 1), now + 1)
    assert len(of(node.on(Tick(), now + LINGER_MS), do.SendRecords)) == 1
    node.on(fetch._replace(request_id=4, offset=end + RECORD_BYTES // 2 + 1), now + LINGER_MS)
    assert len(of(node.on(Appended(end + RECORD_BYTES), now + LINGER_MS), do.SendRecords)) == 1


def test_leadership_is_lost_before_anything_of_another_leader_is_accepted() -> None:
    node = a_node()
    now = opened(node)
    effects = node.on(LeaderNotice(B, node.term + 1), now)
    assert isinstance(effects[0], do.LoseLeadership)
    assert node.leader == B


def test_leader_without_a_majority_resigns_also_after_a_pause() -> None:
    node = a_node()
    now = opened(node)
    effects = node.on(Appended(99), now + 5_000)  # first input after the process was stopped
    assert isinstance(effects[0], do.LoseLeadership)
    assert "no majority within 1,000 ms" in effects[0].reason


def a_follower(end: int = 100, *, confirmed: int = 0) -> tuple[RaftNode, FetchRequest]:
    node = a_node(end=end, confirmed=confirmed, term=3)
    (fetch,) = sent(node.on(LeaderNotice(B, 4), 10), FetchRequest)
    return node, fetch


def test_records_are_appended_confirmed_and_acknowledged_once_flushed() -> None:
    node, fetch = a_follower()
    assert (fetch.offset, fetch.term_before, fetch.flushed) == (100, 3, 0)
    history = (GroupRecord(100, 4, MEMBERS),)
    effects = node.on(Records(B, 4, fetch.request_id, 100, 120, 140, history, bytes(40)), 11)
    assert of(effects, do.Append) == [do.Append(100, bytes(40))]
    assert of(effects, do.Confirm) == [do.Confirm(120)]
    assert node.epochs == [(3, 0), (4, 100)]
    (fetch,) = sent(node.on(Flushed(140), 12), FetchRequest)
    assert (fetch.offset, fetch.flushed) == (140, 140)


def test_second_copy_of_records_is_ignored_while_they_are_flushed() -> None:
    node, fetch = a_follower()
    records = Records(B, 4, fetch.request_id, 100, 120, 140, (), bytes(40))
    assert of(node.on(records, 11), do.Append) == [do.Append(100, bytes(40))]
    assert node.on(records, 11) == []


def test_fetch_does_not_wait_longer_than_the_fetch_time_out_for_a_flush() -> None:
    node, fetch = a_follower()
    node.on(Records(B, 4, fetch.request_id, 100, 120, 140, (), bytes(40)), 11)
    (fetch,) = sent(node.on(Tick(), 10 + TIMING.fetch_timeout_ms), FetchRequest)
    assert (fetch.offset, fetch.flushed) == (140, 100)
    assert sent(node.on(Flushed(140), 900), Ack) == [Ack(A, 4, 140)]


def test_response_to_an_earlier_request_is_ignored() -> None:
    node, fetch = a_follower()
    assert node.on(Records(B, 4, fetch.request_id - 1, 100, 120, 140, (), bytes(40)), 11) == []


def test_diverged_tail_is_truncated_but_never_below_confirmed() -> None:
    node, fetch = a_follower(confirmed=60)
    effects = node.on(Mismatch(B, 4, fetch.request_id, 3, 80), 11)
    assert of(effects, do.Truncate) == [do.Truncate(80)]
    (fetch,) = sent(effects, FetchRequest)
    effects = node.on(Mismatch(B, 4, fetch.request_id, 2, 40), 12)
    assert of(effects, do.Truncate) == []
    assert "this log, which ends at 80, is final up to 60" in of(effects, do.Fail)[0].reason


def test_log_too_old_for_the_leader_is_replaced_by_one_of_a_voter() -> None:
    node, fetch = a_follower(end=100, confirmed=60)
    base = (GroupRecord(150, 4, MEMBERS),)
    effects = node.on(JoinFrom(B, 4, fetch.request_id, 200, base), 11)
    kinds = [type(each) for each in effects]
    assert kinds.index(do.SaveTerm) < kinds.index(do.Restart)
    assert not sent(node.on(VoteRequest(C, 9, False, 3, 999), 12), VoteResponse)[0].is_granted
    assert not sent(node.on(VoteRequest(C, 10, False, 4, 199), 12), VoteResponse)[0].is_granted
    assert sent(node.on(VoteRequest(C, 11, False, 4, 200), 12), VoteResponse)[0].is_granted


@pytest.mark.parametrize("has_replaced", [False, True])
def test_log_is_replaced_at_the_start_if_the_replica_stopped_before(has_replaced: bool) -> None:
    node, fetch = a_follower(end=100, confirmed=60)
    base = (GroupRecord(150, 4, MEMBERS),)
    saved = of(node.on(JoinFrom(B, 4, fetch.request_id, 200, base), 11), do.SaveTerm)[-1].saved
    old = LogState(0, 100, 60, (GroupRecord(0, 3, MEMBERS),))
    log = LogState(200, 200, 200) if has_replaced else old
    node = RaftNode(A, saved, log, now_ms=0, rng=random.Random(1), timing=TIMING)
    assert node.start() == ([] if has_replaced else [do.Restart(200)])
    (fetch,) = sent(node.on(LeaderNotice(B, 4), 1), FetchRequest)
    assert (fetch.offset, fetch.term_before) == (200, 4)


def test_deleted_files_were_confirmed_even_if_the_saved_bound_is_older() -> None:
    node = RaftNode(A, SavedTerm(), LogState(80, 100, 60), now_ms=0, rng=random.Random(1), timing=TIMING)
    assert node.confirmed == 80


def test_files_that_a_power_loss_brings_back_are_not_compared_without_their_history() -> None:
    """Which term wrote the bytes before offset 100 is not known any more."""
    node = a_node(end=200, confirmed=200, term=3, min_offset=100)
    (save,) = of(node.on(Trimmed(120), 10), do.SaveTerm)
    log = LogState(50, 200, 200, (GroupRecord(100, 3, MEMBERS),))
    leader = RaftNode(A, save.saved, log, now_ms=0, rng=random.Random(1), timing=TIMING)
    now = opened(leader)
    leader.on(Trimmed(80), now)
    (join,) = sent(leader.on(FetchRequest(B, leader.term, 1, 100, 2, 100, True), now), JoinFrom)
    assert join.offset == 120


def test_replica_that_lost_confirmed_bytes_saves_that_it_must_not_vote() -> None:
    node = a_node(end=100, confirmed=120, term=3)
    (save,) = node.start()
    assert not save.saved.is_electable
    assert a_node(end=100, confirmed=100, term=3).start() == []


def a_follower_that_lost_bytes(end: int) -> tuple[RaftNode, FetchRequest]:
    node, fetch = a_follower(end, confirmed=end + 20)
    assert not node.is_electable
    return node, fetch


def test_replica_that_lost_bytes_waits_for_all_it_may_have_acknowledged() -> None:
    node, fetch = a_follower_that_lost_bytes(100)
    history = (GroupRecord(120, 4, MEMBERS),)
    # The leader may confirm up to 240 with what this replica had acknowledged before the loss.
    node.on(Records(B, 4, fetch.request_id, 100, 140, 240, history, bytes(60)), 11)
    (fetch,) = sent(node.on(Flushed(160), 12), FetchRequest)
    assert not node.is_electable
    node.on(Records(B, 4, fetch.request_id, 160, 240, 300, (), bytes(80)), 13)
    assert not node.is_electable
    node.on(Flushed(240), 14)
    assert node.is_electable


def test_response_under_way_is_ignored_after_damage_that_shortens_the_log() -> None:
    node, fetch = a_follower(end=100, confirmed=60)
    assert do.Truncate(80) in node.on(Damaged(80, 100), 20)
    assert not node.is_electable
    assert node.on(Records(B, 4, fetch.request_id, 100, 100, 140, (), bytes(40)), 21) == []


def test_damaged_range_is_repaired_from_the_leader_before_the_replica_stands() -> None:
    node, fetch = a_follower(end=100, confirmed=100)
    assert node.on(Damaged(20, 40), 20) == []
    assert not node.is_electable
    effects = node.on(Records(B, 4, fetch.request_id, 100, 100, 100, (), b""), 900)
    assert sent(effects, RepairRequest) == [RepairRequest(A, 4, 20, 40)]
    assert node.on(RepairBytes(B, 4, 20, bytes(20)), 901) == [do.RepairRange(20, bytes(20))]
    node.on(RangeRepaired(), 902)
    assert node.is_electable


def test_damage_that_the_leader_has_deleted_is_trimmed() -> None:
    node, _ = a_follower(end=100, confirmed=100)
    node.on(Damaged(20, 40), 20)
    assert node.on(RepairBytes(B, 4, 60, b""), 30) == [do.Trim(60)]
    node.on(Trimmed(60), 31)
    assert node.is_electable


def test_leader_with_a_damaged_log_resigns() -> None:
    node = a_node()
    now = opened(node)
    effects = node.on(Damaged(0, 10), now)
    assert "damaged at offset 0" in of(effects, do.LoseLeadership)[0].reason
    assert node.role is Role.FOLLOWER


@pytest.mark.parametrize("is_pre", [True, False], ids=["pre-vote", "vote"])
def test_candidate_that_finds_damage_is_not_elected(is_pre: bool) -> None:
    node = a_node(end=100, confirmed=100, term=3)
    now = node.deadline_ms
    node.on(Tick(), now)
    if not is_pre:
        node.on(VoteResponse(B, 3, 4, True, True), now)
    node.on(Damaged(20, 40), now)
    effects = node.on(VoteResponse(B, node.term, 4, is_pre, True), now)
    assert not of(effects, do.BecomeLeader)
    assert node.term == (3 if is_pre else 4)


def test_transfer_stops_sends_until_the_target_stands_or_time_is_up() -> None:
    node = a_node()
    now = opened(node)
    effects = node.transfer(B, now)
    assert sent(effects, CampaignNow) == [CampaignNow(A, node.term)]
    assert not node.accepts_sends
    now += 900
    node.on(Ack(B, node.term, 0), now)
    node.on(Tick(), now + 100)
    assert node.accepts_sends
    with pytest.raises(NotAllowed, match="not another voter"):
        node.transfer(D, now + 101)


def test_transfer_waits_until_all_of_the_log_is_confirmed() -> None:
    """Else the sends that wait for their acknowledgement would fail."""
    node = a_node()
    now = opened(node)
    end = RECORD_BYTES + 100
    node.on(Appended(end), now)
    assert not sent(node.transfer(B, now), CampaignNow)
    node.on(FetchRequest(B, node.term, 1, end, node.term, end, True), now)
    effects = node.on(Ack(B, node.term, end), now)
    assert not sent(effects, CampaignNow)
    assert sent(node.on(Flushed(end), now), CampaignNow) == [CampaignNow(A, node.term)]


def test_members_change_only_on_an_open_leader_with_a_healthy_majority() -> None:
    node = a_node()
    with pytest.raises(NotAllowed, match="is not the leader"):
        node.change_members(Members((A, B)), 0)
    now = elected(node)
    with pytest.raises(NotAllowed, match="not confirmed the first record"):
        node.change_members(Members((A, B)), now)
    node.on(Flushed(RECORD_BYTES), now)
    node.on(FetchRequest(B, 1, 1, RECORD_BYTES, 1, RECORD_BYTES, False), now)
    with pytest.raises(NotAllowed, match="only 1 of the 2 voters would be up and complete"):
        node.change_members(Members((A, B)), now)
    with pytest.raises(NotAllowed, match="transfer the leadership first"):
        node.change_members(Members((B, C)), now)
    (append,) = node.change_members(MEMBERS.with_learner(D), now)
    assert append == do.AppendGroupRecord(1, MEMBERS.with_learner(D))


def test_leader_knows_from_where_members_that_were_heard_need_its_log() -> None:
    node = a_node()
    assert node.needed_offset(-1) is None
    now = opened(node)
    assert node.needed_offset(-1) == 0  # C was not compared
    node.on(FetchRequest(C, node.term, 1, RECORD_BYTES, node.term, 20, True), now + 5)
    assert node.needed_offset(-1) == 20
    assert node.needed_offset(now + 5) == RECORD_BYTES  # no member was heard
    node.on(Ack(B, node.term, RECORD_BYTES), now + 7)
    assert node.needed_offset(now + 5) == RECORD_BYTES


@pytest.mark.parametrize("message", ["ack", "fetch"])
def test_what_a_follower_had_flushed_in_an_older_term_does_not_count(message: str) -> None:
    """It may have been truncated since: the same bytes are in its log again, but not on its disk."""
    node = a_node(end=100, term=3)
    now = opened(node)
    end, term = node.confirmed, node.term
    node.on(Appended(end + 50), now)
    node.on(Flushed(end + 50), now)
    node.on(FetchRequest(B, term, 2, end + 50, term, end, True), now)  # has, but has not flushed
    assert node.confirmed == end
    if message == "ack":
        node.on(Ack(B, term - 1, end + 50), now)
    else:
        node.on(FetchRequest(B, term - 1, 2, end + 50, term, end + 50, True), now)
    assert node.confirmed == end
    node.on(Ack(B, term, end + 50), now)
    assert node.confirmed == end + 50
