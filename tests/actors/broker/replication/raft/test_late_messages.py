"""Messages that wait for what follows them."""

from __future__ import annotations

from actors.broker.replication.raft.late_messages import LateMessages
from actors.raft.members import Member
from actors.raft.messages import Ack, FetchRequest, Records

LEADER, FOLLOWER, OTHER = Member(0, "l"), Member(1, "f"), Member(2, "o")


def fetch(sender: Member, request_id: int) -> FetchRequest:
    return FetchRequest(sender, 1, request_id, 100, 1, 100, True)


def confirmation(request_id: int) -> Records:
    return Records(LEADER, 1, request_id, 100, 100, 100, (), b"")


def test_confirmation_waits_and_is_sent_if_nothing_is_appended() -> None:
    late = LateMessages()
    late.fetched(fetch(FOLLOWER, 7))
    assert late.delays(FOLLOWER, confirmation(7), is_flushed=True)
    assert late.take_due() == {FOLLOWER: confirmation(7)}
    assert late.take_due() == {}
    assert late.take_fetches() == []


def test_fetch_is_repeated_if_the_log_grows_while_its_confirmation_waits() -> None:
    late = LateMessages()
    late.fetched(fetch(FOLLOWER, 7))
    late.fetched(fetch(OTHER, 3))
    assert late.delays(FOLLOWER, confirmation(7), is_flushed=True)
    assert late.take_fetches() == [fetch(FOLLOWER, 7)]
    assert late.take_due() == {}


def test_waiting_confirmation_is_dropped_by_a_newer_fetch() -> None:
    late = LateMessages()
    late.fetched(fetch(FOLLOWER, 7))
    assert late.delays(FOLLOWER, confirmation(7), is_flushed=True)
    late.fetched(fetch(FOLLOWER, 8))
    assert late.take_fetches() == []
    assert not late.delays(
        FOLLOWER, confirmation(7), is_flushed=True
    )  # sent at once: the follower ignores it


def test_other_messages_do_not_wait() -> None:
    late = LateMessages()
    late.fetched(fetch(FOLLOWER, 7))
    assert not late.delays(FOLLOWER, Ack(LEADER, 1, 5), is_flushed=True)
    assert not late.delays(OTHER, confirmation(7), is_flushed=True)


def test_nothing_waits_after_the_leadership_is_lost() -> None:
    late = LateMessages()
    late.fetched(fetch(FOLLOWER, 7))
    assert late.delays(FOLLOWER, confirmation(7), is_flushed=True)
    late.clear()
    assert late.take_due() == {}
    assert not late.delays(FOLLOWER, confirmation(7), is_flushed=True)


def test_fetch_waits_for_the_flush_and_carries_its_position() -> None:
    late = LateMessages()
    assert late.delays(LEADER, fetch(FOLLOWER, 7)._replace(flushed=50), is_flushed=False)
    assert late.joined(LEADER, Ack(FOLLOWER, 1, 80)) == fetch(FOLLOWER, 7)._replace(flushed=80)
    assert not late.has_waiting
    assert late.joined(LEADER, Ack(FOLLOWER, 1, 100)) == Ack(FOLLOWER, 1, 100)


def test_fetch_that_waits_carries_no_position_of_another_term() -> None:
    late = LateMessages()
    assert late.delays(LEADER, fetch(FOLLOWER, 7), is_flushed=False)
    assert late.joined(LEADER, Ack(FOLLOWER, 2, 100)) == Ack(FOLLOWER, 2, 100)
    assert late.joined(OTHER, Ack(FOLLOWER, 1, 100)) == Ack(FOLLOWER, 1, 100)
    assert late.take_due() == {LEADER: fetch(FOLLOWER, 7)}


def test_fetch_of_a_flushed_log_replaces_one_that_waits() -> None:
    late = LateMessages()
    assert late.delays(LEADER, fetch(FOLLOWER, 7), is_flushed=False)
    assert not late.delays(LEADER, fetch(FOLLOWER, 8), is_flushed=True)
    assert not late.has_waiting


def test_fetch_that_waits_is_no_fetch_to_process_again() -> None:
    late = LateMessages()
    assert late.delays(LEADER, fetch(FOLLOWER, 7), is_flushed=False)
    assert late.take_fetches() == []
