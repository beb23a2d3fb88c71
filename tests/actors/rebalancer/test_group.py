"""Group: members join, share queues, release them, leave or become silent, and the rebalancer restarts."""

from __future__ import annotations

from itertools import count

import pytest

from actors.rebalancer.group import NS_PER_MS, Group
from actors.strategies import AllocateMessageQueueAveragely
from actors.wire.bodies.groups import AssignedQueue, SyncGroupReply, SyncGroupRequest
from actors.wire.remoting_errors import Refused
from store.message.message_queue import MessageQueue

LEASE_MS = 10_000


def queues(number: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "b", index) for index in range(number)]


class Story:
    """A group, its clock, and members that release revoked queues immediately."""

    def __init__(self, number_of_queues: int = 4, generation: int = 100, recovering_ms: int = 0) -> None:
        numbers = count(generation + 1)
        self.group = Group(
            "g",
            AllocateMessageQueueAveragely(),
            generation,
            lambda lease_ms: next(numbers),
            recovering_ms * NS_PER_MS,
        )
        self.group.set_queues("T", queues(number_of_queues))
        self.now_ms = 0
        self.owned: dict[str, list[AssignedQueue]] = {}
        self.seen: dict[str, int] = {}

    def sync(
        self, client: str, subscriptions: dict[str, str] | None = None, **fields: object
    ) -> SyncGroupReply:
        request = SyncGroupRequest(
            "g",
            client,
            self.seen.get(client, 0),
            subscriptions or {"T": "*"},
            list(self.owned.get(client, [])),
        )
        for name, value in fields.items():
            setattr(request, name, value)
        reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
        self.owned[client] = list(reply.assigned)
        self.seen[client] = reply.generation
        return reply

    def ids(self, client: str) -> list[int]:
        return [item.queue.queue_id for item in self.owned.get(client, [])]

    def expire(self) -> None:
        self.group.expire(self.now_ms * NS_PER_MS)


def test_second_member_gets_queues_only_after_the_first_releases_them() -> None:
    story = Story()
    story.sync("a")
    assert story.ids("a") == [0, 1, 2, 3]
    first = story.seen["a"]
    story.sync("b")
    assert story.ids("b") == []
    reply = story.sync("a", owned=[AssignedQueue(queue, first) for queue in queues(4)])
    assert [item.queue.queue_id for item in reply.assigned] == [0, 1]
    assert [item.queue.queue_id for item in reply.revoke] == [2, 3]
    assert story.sync("b").assigned == [], "a revoked queue is not free before it is released"
    story.sync("a")
    reply = story.sync("b")
    assert story.ids("b") == [2, 3]
    assert all(item.generation > first for item in reply.assigned)
    assert reply.members == ["a", "b"]


def test_change_is_reported_once() -> None:
    story = Story()
    story.sync("a")
    assert story.group.take_change()
    assert not story.group.take_change()
    story.sync("a")
    assert not story.group.take_change()
    story.sync("b")
    assert story.group.take_change()
    story.sync("a")  # the member no longer reports the revoked queues
    story.sync("a")
    assert story.group.take_change(), "free queues are available for b"


def test_leaving_member_releases_its_queues_immediately() -> None:
    story = Story()
    story.sync("a")
    story.sync("a", is_leaving=True)
    assert story.ids("a") == [], "a leaving member must release all queues"
    reply = story.sync("a", is_leaving=True, owned=[])
    assert reply.assigned == []
    story.sync("b")
    assert story.ids("b") == [0, 1, 2, 3]
    assert story.group.members().members == ("b",)


def test_queues_of_a_silent_member_are_free_when_its_lease_is_over() -> None:
    story = Story()
    story.sync("a")
    story.now_ms = LEASE_MS - 1
    story.sync("b")
    assert story.ids("b") == []
    story.now_ms = LEASE_MS
    story.sync("b")
    assert story.ids("b") == [0, 1, 2, 3]
    reply = story.sync("a")
    assert reply.assigned == []
    assert [item.queue.queue_id for item in reply.revoke] == [0, 1, 2, 3]


def test_unregistered_member_keeps_its_queues_until_its_lease_is_over() -> None:
    story = Story()
    story.sync("a")
    story.group.unregister("a", "b1", True, LEASE_MS, 0)
    assert story.group.members().members == ("a",)
    story.group.unregister("a", "b1", False, LEASE_MS, 0)
    assert story.group.members().members == ()
    assert not story.group.is_empty, "it keeps its queues until its lease is over"
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.is_empty


def test_lost_response_is_repeated_with_the_same_grants() -> None:
    story = Story()
    story.sync("a")
    first = story.owned.pop("a")
    story.seen.pop("a")
    story.sync("a")
    assert story.owned["a"] == first


def test_delayed_old_request_releases_no_queue() -> None:
    story = Story()
    late = SyncGroupRequest("g", "a", 0, {"T": "*"}, [])
    story.sync("a")
    reply = story.group.sync(late, LEASE_MS, 0)
    assert [item.queue.queue_id for item in reply.assigned] == [0, 1, 2, 3]
    story.sync("b")
    assert story.ids("b") == []


def test_request_overtaken_by_a_later_one_reclaims_no_queue() -> None:
    story = Story()
    story.sync("a")
    late = SyncGroupRequest("g", "a", story.seen["a"], {"T": "*"}, list(story.owned["a"]))
    story.sync("b")
    for _ in range(2):
        story.sync("a")  # learns that two queues are revoked, and releases them
    assert story.ids("a") == [0, 1]
    assert story.group.sync(late, LEASE_MS, 0).revoke == []
    story.sync("b")
    assert story.ids("b") == [2, 3], "queues in the older request are not reclaimed"


def test_requests_extend_the_lease_and_never_shorten_it() -> None:
    story = Story()
    story.sync("a")
    story.now_ms = 5_000
    story.sync("a")
    held = SyncGroupRequest("g", "a", story.seen["a"], {"T": "*"}, list(story.owned["a"]))
    story.group.sync(held, 1_000, story.now_ms * NS_PER_MS)
    story.now_ms = 5_000 + LEASE_MS - 1
    story.sync("b")
    assert (story.ids("b"), story.group.members().members) == ([], ("a", "b"))
    story.now_ms += 1
    story.sync("b")
    assert story.ids("b") == [0, 1, 2, 3]


def test_former_owner_must_release_a_queue_that_had_another_owner_since() -> None:
    story = Story(1)
    story.sync("a")
    before = story.owned["a"]
    story.now_ms = LEASE_MS
    story.sync("b")
    story.sync("b", is_leaving=True, owned=[])
    reply = story.sync("a", owned=before)
    assert (reply.assigned, reply.revoke) == ([], before)
    story.sync("a", owned=[])
    assert story.ids("a") == [0], "under a new generation"
    assert story.owned["a"][0].generation > before[0].generation


def test_leaving_member_remains_until_release_but_is_assigned_nothing() -> None:
    story = Story()
    for who in ("a", "b", "a", "a", "b"):
        story.sync(who)
    held = list(story.owned["b"])
    story.sync("b", is_leaving=True, owned=held)
    assert story.group.members().members == ("a", "b")
    story.group.set_queues("T", queues(6))
    story.sync("a")
    assert story.ids("a") == [0, 1, 4, 5]


def test_leaving_members_and_retry_topics_do_not_count_as_subscriptions() -> None:
    story = Story()
    story.sync("a")
    story.sync("a", {"T": "*", "%RETRY%g": "*"})
    story.sync("b")  # only pulls, so it has no retry topic
    story.sync("a", is_leaving=True)
    story.sync("b", is_leaving=True)
    story.sync("c", {"U": "*"})


def test_member_reclaims_its_queues_after_its_lease_if_they_are_still_free() -> None:
    story = Story()
    story.sync("a")
    before = story.owned["a"]
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.is_empty
    story.sync("a", lease_left_ms=-1)
    assert story.owned["a"] == before


def test_different_subscriptions_are_refused_naming_both_unless_allowed() -> None:
    story = Story()
    story.group.set_queues("U", queues(2, "U"))
    story.sync("a")
    with pytest.raises(Refused, match=r"b subscribes to U \[x\], but member a to T \[\*\]") as error:
        story.sync("b", {"U": "x"})
    assert error.value.code == 7002
    story.sync("b", {"U": "x"}, allow_subscription_change=True)
    assert [item.queue.topic for item in story.owned["b"]] == ["U", "U"]
    assert story.ids("a") == [0, 1, 2, 3]


def test_only_member_may_change_its_subscription() -> None:
    story = Story()
    story.group.set_queues("U", queues(2, "U"))
    story.sync("a")
    reply = story.sync("a", {"U": "*"})
    assert [item.queue.topic for item in reply.assigned] == ["U", "U"]
    assert [item.queue.topic for item in reply.revoke] == ["T"] * 4


def test_added_queues_are_assigned_and_removed_ones_revoked() -> None:
    story = Story(2)
    story.sync("a")
    story.group.set_queues("T", queues(3))
    assert story.group.take_change()
    story.sync("a")
    assert story.ids("a") == [0, 1, 2]
    story.group.set_queues("T", queues(1))
    story.sync("a")
    assert story.ids("a") == [0]


def test_restart_keeps_reported_queues_and_new_members_wait_one_lease() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [AssignedQueue(queue, 150) for queue in queues(2)]
    story.seen["a"] = 150
    story.sync("new")
    assert story.ids("new") == []
    story.sync("a")
    assert story.ids("a") == [0, 1]
    story.owned["b"] = [AssignedQueue(queues(4)[3], 160)]
    story.seen["b"] = 160
    story.now_ms = LEASE_MS - 1
    for who in ("a", "b", "new"):
        story.sync(who)
    assert (story.ids("a"), story.ids("b"), story.ids("new")) == ([0, 1], [3], [])
    assert story.group.take_change()
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.take_change(), "recovery is over"
    for _ in range(3):
        for who in ("a", "b", "new"):
            story.sync(who)
    assert (story.ids("a"), story.ids("b"), story.ids("new")) == ([0, 1], [2], [3])


def test_restart_ignores_reports_under_an_expired_lease() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [AssignedQueue(queue, 150) for queue in queues(4)]
    assert story.sync("stale", lease_left_ms=0).assigned == []
    story.owned["b"] = [AssignedQueue(queue, 160) for queue in queues(4)]
    assert len(story.sync("b", lease_left_ms=5).assigned) == 4


def test_restart_frees_reported_queues_when_the_lease_is_reported_over() -> None:
    """The first report was sent before the lease was over, but delayed."""
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [AssignedQueue(queue, 150) for queue in queues(4)]
    assert len(story.sync("stale", lease_left_ms=5).assigned) == 4
    assert story.sync("stale", lease_left_ms=0).assigned == []
    story.owned["b"] = [AssignedQueue(queue, 150) for queue in queues(4)]
    assert len(story.sync("b", lease_left_ms=5).assigned) == 4, "the queues are free"


def test_restart_does_not_extend_a_lease_with_the_first_response() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [AssignedQueue(queue, 150) for queue in queues(4)]
    assert story.sync("a", lease_left_ms=3_000, generation=150).lease_ms == 3_000
    assert story.sync("a", lease_left_ms=2 * LEASE_MS, generation=150).lease_ms == LEASE_MS
    assert story.sync("a", lease_left_ms=-1, generation=150).lease_ms == 1
    story.now_ms = LEASE_MS
    assert story.sync("a", lease_left_ms=3_000, generation=150).lease_ms == LEASE_MS


def test_restart_prefers_the_later_grant_whichever_is_reported_first() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [AssignedQueue(queue, 150) for queue in queues(4)]
    story.owned["b"] = [AssignedQueue(queue, 160) for queue in queues(4)]
    story.sync("stale")
    assert len(story.sync("b").assigned) == 4
    assert story.sync("stale").assigned == []


def test_queues_of_a_topic_without_known_route_are_not_revoked() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [AssignedQueue(queue, 150) for queue in queues(2, "U")]
    story.sync("a", {"U": "*"})
    story.now_ms = LEASE_MS - 1
    story.sync("a", {"U": "*"})
    story.now_ms = LEASE_MS
    assert [item.queue.topic for item in story.sync("a", {"U": "*"}).assigned] == ["U", "U"]


def test_report_with_an_unassigned_generation_is_refused() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["impostor"] = [AssignedQueue(queues(1)[0], 201)]
    assert story.sync("impostor").assigned == []


def test_one_self_assigning_member_makes_all_self_assigning() -> None:
    story = Story()
    story.sync("python")
    assert story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    reply = story.sync("python")
    assert reply.is_self_assigning
    assert (reply.assigned, reply.members) == ([], ["java", "python"])
    assert story.group.members().is_self_assigning
    assert not story.group.heartbeat("java", "b2", {"T": "a"}, 0), (
        "the last heartbeat wins, and the change is reported"
    )
    for broker in ("b1", "b2"):
        story.group.unregister("java", broker, False, LEASE_MS, 0)
    story.sync("other", owned=[AssignedQueue(queues(1)[0], story.seen["python"])])
    assert story.ids("other") == [0], "the rebalancer has forgotten the former owners"


def test_self_assigning_member_is_removed_when_no_broker_has_it() -> None:
    story = Story()
    for broker in ("b1", "b2"):
        story.group.heartbeat("java", broker, {"T": "*"}, 0)
    story.group.unregister("java", "b1", True, LEASE_MS, 0)
    assert story.group.members().members == ("java",)
    story.group.unregister("java", "b2", True, LEASE_MS, 0)
    assert story.group.members().members == ()
    story.sync("python")
    assert story.ids("python") == [], "the self-assigning member may still be consuming"
    story.now_ms = LEASE_MS
    story.sync("python")
    assert story.ids("python") == [0, 1, 2, 3]


def test_recovery_ends_when_all_have_reported_after_the_last_unregisters() -> None:
    story = Story()
    story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    for member in ("one", "two"):
        story.sync(member)
    story.owned["two"] = [AssignedQueue(queues(4)[3], 0)]
    story.group.unregister("java", "b1", False, LEASE_MS, 0)
    story.sync("one")
    assert story.ids("one") == [], "`two` may own any of them"
    story.sync("two")
    story.sync("one")
    story.sync("two")
    assert (story.ids("one"), story.ids("two")) == ([0, 1], [2, 3])


def test_recovery_waits_one_lease_for_a_member_that_does_not_report() -> None:
    story = Story()
    story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    for member in ("one", "two"):
        story.sync(member)
    story.group.unregister("java", "b1", False, LEASE_MS, 0)
    story.now_ms = LEASE_MS - 1
    story.sync("one")
    assert story.ids("one") == []
    story.now_ms = LEASE_MS
    story.sync("one")
    assert story.ids("one") == [0, 1, 2, 3]


def test_self_assigning_member_is_removed_on_expiry_or_unregister() -> None:
    story = Story()
    story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    story.group.heartbeat("other", "b1", {"T": "*"}, 5)
    story.group.expire_heartbeats(1, LEASE_MS, 10)
    assert story.group.members().members == ("other",)
    story.group.heartbeat("other", "b2", {"T": "*"}, 6)
    story.group.unregister("other", "b1", False, LEASE_MS, 10)
    assert story.group.is_empty


def test_names_of_reported_queues_are_forgotten_with_their_owner() -> None:
    """Otherwise a member could make the group keep any number of names."""
    story = Story()
    story.sync("a")
    for number in range(3):
        reported = [AssignedQueue(MessageQueue(f"x{number}", "b", each), 1) for each in range(3)]
        story.sync("a", owned=[*story.owned["a"], *reported])
        story.owned["a"] = [each for each in story.owned["a"] if each.queue.topic == "T"]
        story.sync("a")
        assert story.group.owned_count == 4
