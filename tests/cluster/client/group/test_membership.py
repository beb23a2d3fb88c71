"""A member's queues: what it begins, what it lets go, and what it says that it holds."""

from __future__ import annotations

from actors.remoting.bodies.groups import GrantedQueue, SyncGroupReply
from cluster.client.group.membership import Membership
from store.message.message_queue import MessageQueue

A0, A1, B0 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)


def granted(generation: int, *queues: MessageQueue, revoke: tuple[MessageQueue, ...] = ()) -> SyncGroupReply:
    grants = [GrantedQueue(queue, generation) for queue in queues]
    return SyncGroupReply(generation, grants, [GrantedQueue(queue, generation) for queue in revoke])


def test_granted_queues_are_started_once() -> None:
    member = Membership(lease_ms=15_000)
    assert member.apply(granted(1, A0, A1), 0).started == (GrantedQueue(A0, 1), GrantedQueue(A1, 1))
    assert not member.apply(granted(1, A0, A1), 10)
    assert member.held(10) == [A0, A1]


def test_a_revoked_queue_is_named_until_it_is_released() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0, A1), 0)
    changes = member.apply(granted(2, A0, A1, revoke=(A1,)), 10)
    assert changes.leaving == (A1,)
    assert member.held(10) == [A0]
    assert [grant.queue for grant in member.owned()] == [A0, A1]
    assert not member.apply(granted(2, A0, A1, revoke=(A1,)), 20), "it is told once to let go"
    member.released(A1)
    assert [grant.queue for grant in member.owned()] == [A0]


def test_a_queue_that_is_no_longer_granted_is_let_go() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0, A1), 0)
    assert member.apply(granted(2, A0), 10).leaving == (A1,)


def test_a_queue_comes_back_only_after_it_was_released_and_under_a_new_generation() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0), 0)
    member.apply(granted(2), 10)
    assert not member.apply(granted(3, A0), 20).started
    member.released(A0)
    assert member.apply(granted(4, A0), 30).started == (GrantedQueue(A0, 4),)
    assert member.generation_of(A0) == 4


def test_a_late_answer_changes_nothing() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(5, A0), 0)
    assert not member.apply(granted(4, B0), 10)
    assert member.held(10) == [A0]


def test_the_lease_runs_from_when_the_member_asked() -> None:
    member = Membership(lease_ms=15_000)
    assert member.lease_left_ms(0) <= 0
    member.apply(granted(1, A0), 1_000)
    assert member.lease_left_ms(6_000) == 10_000
    assert member.lease_left_ms(16_000) == 0
    member.keep(16_000)
    assert member.lease_left_ms(16_000) == 15_000, "nobody can give away queues while the rebalancer is down"


def test_nothing_is_held_once_the_lease_is_over() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0), 1_000)
    assert member.held(15_999) == [A0]
    assert member.held(16_000) == []
    assert [grant.queue for grant in member.owned()] == [A0], "it is still named to the rebalancer"
    member.apply(granted(1, A0), 16_000)
    assert member.held(16_000) == [A0]


def test_what_is_not_granted_after_the_lease_is_lost_at_once() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0, A1, B0), 0)
    member.apply(granted(2, A0, A1), 10)
    changes = member.apply(granted(3, A0), 14_000, now_ms=15_010)
    assert (changes.started, changes.leaving, changes.lost) == ((), (), (A1, B0))
    assert [grant.queue for grant in member.owned()] == [A0]
    assert member.apply(granted(4), 14_500, now_ms=15_020).leaving == (A0,), "the lease runs again"


def test_a_fenced_queue_is_forgotten_at_once() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0), 0)
    assert member.fenced(A0)
    assert not member.fenced(A0)
    assert member.owned() == []


def test_leaving_lets_go_of_everything() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(granted(1, A0, B0), 0)
    assert member.leave_all() == (A0, B0)
    assert member.held(0) == []
