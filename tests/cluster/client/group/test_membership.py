"""Membership: the queues that a group member starts, releases, and reports as held."""

from __future__ import annotations

from actors.wire.bodies.groups import AssignedQueue, SyncGroupReply
from cluster.client.group.membership import Membership
from store.message.message_queue import MessageQueue

A0, A1, B0 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)


def assigned(generation: int, *queues: MessageQueue, revoke: tuple[MessageQueue, ...] = ()) -> SyncGroupReply:
    grants = [AssignedQueue(queue, generation) for queue in queues]
    return SyncGroupReply(generation, grants, [AssignedQueue(queue, generation) for queue in revoke])


def test_assigned_queues_are_started_once() -> None:
    member = Membership(lease_ms=15_000)
    assert member.apply(assigned(1, A0, A1), 0).started == (AssignedQueue(A0, 1), AssignedQueue(A1, 1))
    assert not member.apply(assigned(1, A0, A1), 10)
    assert member.held(10) == [A0, A1]


def test_revoked_queue_is_reported_as_held_until_released() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0, A1), 0)
    changes = member.apply(assigned(2, A0, A1, revoke=(A1,)), 10)
    assert changes.leaving == (A1,)
    assert member.held(10) == [A0]
    assert [grant.queue for grant in member.owned()] == [A0, A1]
    assert not member.apply(assigned(2, A0, A1, revoke=(A1,)), 20), "a revoked queue is returned only once"
    member.released(A1)
    assert [grant.queue for grant in member.owned()] == [A0]


def test_queue_missing_from_grants_is_released() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0, A1), 0)
    assert member.apply(assigned(2, A0), 10).leaving == (A1,)


def test_released_queue_can_be_assigned_again_under_new_generation() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0), 0)
    member.apply(assigned(2), 10)
    assert not member.apply(assigned(3, A0), 20).started
    member.released(A0)
    assert member.apply(assigned(4, A0), 30).started == (AssignedQueue(A0, 4),)
    assert member.generation_of(A0) == 4


def test_response_of_older_generation_is_ignored() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(5, A0), 0)
    assert not member.apply(assigned(4, B0), 10)
    assert member.held(10) == [A0]


def test_lease_starts_at_request_time() -> None:
    member = Membership(lease_ms=15_000)
    assert member.lease_left_ms(0) <= 0
    member.apply(assigned(1, A0), 1_000)
    assert member.lease_left_ms(6_000) == 10_000
    assert member.lease_left_ms(16_000) == 0
    member.extend_lease(16_000)
    assert member.lease_left_ms(16_000) == 15_000


def test_expired_lease_leaves_no_queue_to_consume() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0), 1_000)
    assert member.held(15_999) == [A0]
    assert member.held(16_000) == []
    assert [grant.queue for grant in member.owned()] == [A0], "the queue is still reported to the rebalancer"
    member.apply(assigned(1, A0), 16_000)
    assert member.held(16_000) == [A0]


def test_unassigned_queues_are_lost_after_lease_expiry() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0, A1, B0), 0)
    member.apply(assigned(2, A0, A1), 10)
    changes = member.apply(assigned(3, A0), 14_000, now_ms=15_010)
    assert (changes.started, changes.leaving, changes.lost) == ((), (), (A1, B0))
    assert [grant.queue for grant in member.owned()] == [A0]
    assert member.apply(assigned(4), 14_500, now_ms=15_020).leaving == (A0,), "the lease is valid again"


def test_fenced_queue_is_removed() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0), 0)
    assert member.fenced(A0)
    assert not member.fenced(A0)
    assert member.owned() == []


def test_leave_all_releases_every_queue() -> None:
    member = Membership(lease_ms=15_000)
    member.apply(assigned(1, A0, B0), 0)
    assert member.leave_all() == (A0, B0)
    assert member.held(0) == []
