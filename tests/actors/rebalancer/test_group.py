"""One group: members come, share, let go, leave, fall silent; and a rebalancer that starts again in the
middle of it.
"""

from __future__ import annotations

from itertools import count

import pytest

from actors.rebalancer.group import NS_PER_MS, Group
from actors.remoting.bodies.groups import GrantedQueue, SyncGroupReply, SyncGroupRequest
from actors.remoting.remoting_errors import Refused
from actors.strategies import AllocateMessageQueueAveragely
from store.message.message_queue import MessageQueue

LEASE_MS = 10_000


def queues(number: int, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "b", index) for index in range(number)]


class Story:
    """A group, its clock, and members that do as they are told at once."""

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
        self.owned: dict[str, list[GrantedQueue]] = {}
        self.seen: dict[str, int] = {}

    def sync(self, who: str, subscriptions: dict[str, str] | None = None, **fields: object) -> SyncGroupReply:
        request = SyncGroupRequest(
            "g", who, self.seen.get(who, 0), subscriptions or {"T": "*"}, list(self.owned.get(who, []))
        )
        for name, value in fields.items():
            setattr(request, name, value)
        reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
        self.owned[who] = list(reply.granted)
        self.seen[who] = reply.generation
        return reply

    def ids(self, who: str) -> list[int]:
        return [item.queue.queue_id for item in self.owned.get(who, [])]

    def expire(self) -> None:
        self.group.expire(self.now_ms * NS_PER_MS)


def test_the_first_member_gets_all_and_the_second_waits_until_the_first_lets_go() -> None:
    story = Story()
    story.sync("a")
    assert story.ids("a") == [0, 1, 2, 3]
    first = story.seen["a"]
    story.sync("b")
    assert story.ids("b") == []
    reply = story.sync("a", owned=[GrantedQueue(queue, first) for queue in queues(4)])
    assert [item.queue.queue_id for item in reply.granted] == [0, 1]
    assert [item.queue.queue_id for item in reply.revoke] == [2, 3]
    assert story.sync("b").granted == [], "told to let go is not let go"
    story.sync("a")
    reply = story.sync("b")
    assert story.ids("b") == [2, 3]
    assert all(item.generation > first for item in reply.granted)
    assert reply.members == ["a", "b"]


def test_a_change_is_told_once() -> None:
    story = Story()
    story.sync("a")
    assert story.group.take_change()
    assert not story.group.take_change()
    story.sync("a")
    assert not story.group.take_change()
    story.sync("b")
    assert story.group.take_change()
    story.sync("a")  # now its revoked queues are gone from what it names
    story.sync("a")
    assert story.group.take_change(), "there is something to have for b"


def test_a_member_that_says_goodbye_leaves_its_queues_at_once() -> None:
    story = Story()
    story.sync("a")
    story.sync("a", is_leaving=True)
    assert story.ids("a") == [], "who leaves is to let go of everything"
    reply = story.sync("a", is_leaving=True, owned=[])
    assert reply.granted == []
    story.sync("b")
    assert story.ids("b") == [0, 1, 2, 3]
    assert story.group.members().members == ("b",)


def test_a_silent_members_queues_are_free_when_its_lease_is_over_and_not_before() -> None:
    story = Story()
    story.sync("a")
    story.now_ms = LEASE_MS - 1
    story.sync("b")
    assert story.ids("b") == []
    story.now_ms = LEASE_MS
    story.sync("b")
    assert story.ids("b") == [0, 1, 2, 3]
    reply = story.sync("a")
    assert reply.granted == []
    assert [item.queue.queue_id for item in reply.revoke] == [0, 1, 2, 3]


def test_a_lost_connection_takes_nothing_from_a_member_and_its_farewell_only_its_place() -> None:
    story = Story()
    story.sync("a")
    story.group.unregister("a", "b1", True, LEASE_MS, 0)
    assert story.group.members().members == ("a",)
    story.group.unregister("a", "b1", False, LEASE_MS, 0)
    assert story.group.members().members == ()
    assert not story.group.is_empty, "its queues stay its own until its lease is over"
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.is_empty


def test_an_answer_that_was_lost_is_given_again() -> None:
    story = Story()
    story.sync("a")
    first = story.owned.pop("a")
    story.seen.pop("a")
    story.sync("a")
    assert story.owned["a"] == first


def test_an_old_request_that_comes_late_releases_nothing() -> None:
    story = Story()
    late = SyncGroupRequest("g", "a", 0, {"T": "*"}, [])
    story.sync("a")
    reply = story.group.sync(late, LEASE_MS, 0)
    assert [item.queue.queue_id for item in reply.granted] == [0, 1, 2, 3]
    story.sync("b")
    assert story.ids("b") == []


def test_a_request_that_a_later_one_has_overtaken_takes_nothing_up_again() -> None:
    story = Story()
    story.sync("a")
    late = SyncGroupRequest("g", "a", story.seen["a"], {"T": "*"}, list(story.owned["a"]))
    story.sync("b")
    for _ in range(2):
        story.sync("a")  # sees that it is to let go of two, and does
    assert story.ids("a") == [0, 1]
    assert story.group.sync(late, LEASE_MS, 0).revoke == []
    story.sync("b")
    assert story.ids("b") == [2, 3], "what the older request still names is not taken up"


def test_each_request_makes_the_lease_longer_and_none_makes_it_shorter() -> None:
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


def test_who_comes_back_with_what_another_has_had_since_is_to_let_go_of_it() -> None:
    story = Story(1)
    story.sync("a")
    before = story.owned["a"]
    story.now_ms = LEASE_MS
    story.sync("b")
    story.sync("b", is_leaving=True, owned=[])
    reply = story.sync("a", owned=before)
    assert (reply.granted, reply.revoke) == ([], before)
    story.sync("a", owned=[])
    assert story.ids("a") == [0], "under a generation of its own"
    assert story.owned["a"][0].generation > before[0].generation


def test_a_member_that_leaves_is_one_until_it_has_let_go_but_is_given_nothing_more() -> None:
    story = Story()
    for who in ("a", "b", "a", "a", "b"):
        story.sync(who)
    held = list(story.owned["b"])
    story.sync("b", is_leaving=True, owned=held)
    assert story.group.members().members == ("a", "b")
    story.group.set_queues("T", queues(6))
    story.sync("a")
    assert story.ids("a") == [0, 1, 4, 5]


def test_who_leaves_does_not_say_what_the_others_subscribe_to_nor_does_a_retry_topic() -> None:
    story = Story()
    story.sync("a")
    story.sync("a", {"T": "*", "%RETRY%g": "*"})
    story.sync("b")  # only pulls: it has no use for retries
    story.sync("a", is_leaving=True)
    story.sync("b", is_leaving=True)
    story.sync("c", {"U": "*"})


def test_a_member_whose_lease_ran_out_goes_on_if_nobody_else_had_its_queues() -> None:
    story = Story()
    story.sync("a")
    before = story.owned["a"]
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.is_empty
    story.sync("a", lease_left_ms=-1)
    assert story.owned["a"] == before


def test_different_subscriptions_are_refused_with_both_unless_allowed() -> None:
    story = Story()
    story.group.set_queues("U", queues(2, "U"))
    story.sync("a")
    with pytest.raises(Refused, match=r"b subscribes to U \[x\], member a to T \[\*\]") as error:
        story.sync("b", {"U": "x"})
    assert error.value.code == 7002
    story.sync("b", {"U": "x"}, allow_subscription_change=True)
    assert [item.queue.topic for item in story.owned["b"]] == ["U", "U"]
    assert story.ids("a") == [0, 1, 2, 3]


def test_a_lone_member_may_change_its_subscription() -> None:
    story = Story()
    story.group.set_queues("U", queues(2, "U"))
    story.sync("a")
    reply = story.sync("a", {"U": "*"})
    assert [item.queue.topic for item in reply.granted] == ["U", "U"]
    assert [item.queue.topic for item in reply.revoke] == ["T"] * 4


def test_queues_that_come_are_given_and_those_that_go_are_taken() -> None:
    story = Story(2)
    story.sync("a")
    story.group.set_queues("T", queues(3))
    assert story.group.take_change()
    story.sync("a")
    assert story.ids("a") == [0, 1, 2]
    story.group.set_queues("T", queues(1))
    story.sync("a")
    assert story.ids("a") == [0]


def test_after_a_restart_members_keep_what_they_report_and_others_wait_one_lease() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [GrantedQueue(queue, 150) for queue in queues(2)]
    story.seen["a"] = 150
    story.sync("new")
    assert story.ids("new") == []
    story.sync("a")
    assert story.ids("a") == [0, 1]
    story.owned["b"] = [GrantedQueue(queues(4)[3], 160)]
    story.seen["b"] = 160
    story.now_ms = LEASE_MS - 1
    for who in ("a", "b", "new"):
        story.sync(who)
    assert (story.ids("a"), story.ids("b"), story.ids("new")) == ([0, 1], [3], [])
    assert story.group.take_change()
    story.now_ms = LEASE_MS
    story.expire()
    assert story.group.take_change(), "the waiting is over"
    for _ in range(3):
        for who in ("a", "b", "new"):
            story.sync(who)
    assert (story.ids("a"), story.ids("b"), story.ids("new")) == ([0, 1], [2], [3])


def test_after_a_restart_a_report_under_a_lease_that_is_over_counts_for_nothing() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [GrantedQueue(queue, 150) for queue in queues(4)]
    assert story.sync("stale", lease_left_ms=0).granted == []
    story.owned["b"] = [GrantedQueue(queue, 160) for queue in queues(4)]
    assert len(story.sync("b", lease_left_ms=5).granted) == 4


def test_after_a_restart_who_says_that_its_lease_is_over_has_let_go_of_what_it_reported() -> None:
    """The first report was under way since before that."""
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [GrantedQueue(queue, 150) for queue in queues(4)]
    assert len(story.sync("stale", lease_left_ms=5).granted) == 4
    assert story.sync("stale", lease_left_ms=0).granted == []
    story.owned["b"] = [GrantedQueue(queue, 150) for queue in queues(4)]
    assert len(story.sync("b", lease_left_ms=5).granted) == 4, "nobody has them any more"


def test_after_a_restart_no_lease_gets_longer_by_the_first_answer() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [GrantedQueue(queue, 150) for queue in queues(4)]
    assert story.sync("a", lease_left_ms=3_000, generation=150).lease_ms == 3_000
    assert story.sync("a", lease_left_ms=2 * LEASE_MS, generation=150).lease_ms == LEASE_MS
    assert story.sync("a", lease_left_ms=-1, generation=150).lease_ms == 1
    story.now_ms = LEASE_MS
    assert story.sync("a", lease_left_ms=3_000, generation=150).lease_ms == LEASE_MS


def test_after_a_restart_the_later_grant_of_a_queue_counts_whoever_reports_first() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["stale"] = [GrantedQueue(queue, 150) for queue in queues(4)]
    story.owned["b"] = [GrantedQueue(queue, 160) for queue in queues(4)]
    story.sync("stale")
    assert len(story.sync("b").granted) == 4
    assert story.sync("stale").granted == []


def test_a_topic_whose_route_has_not_come_yet_is_taken_from_nobody() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["a"] = [GrantedQueue(queue, 150) for queue in queues(2, "U")]
    story.sync("a", {"U": "*"})
    story.now_ms = LEASE_MS - 1
    story.sync("a", {"U": "*"})
    story.now_ms = LEASE_MS
    assert [item.queue.topic for item in story.sync("a", {"U": "*"}).granted] == ["U", "U"]


def test_a_report_of_a_generation_that_never_was_is_refused() -> None:
    story = Story(generation=200, recovering_ms=LEASE_MS)
    story.owned["liar"] = [GrantedQueue(queues(1)[0], 201)]
    assert story.sync("liar").granted == []


def test_one_member_that_assigns_itself_makes_all_do_so() -> None:
    story = Story()
    story.sync("python")
    assert story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    reply = story.sync("python")
    assert reply.is_self_assigning
    assert (reply.granted, reply.members) == ([], ["java", "python"])
    assert story.group.members().is_self_assigning
    assert not story.group.heartbeat("java", "b2", {"T": "a"}, 0), "the last heartbeat wins, and is told"
    for broker in ("b1", "b2"):
        story.group.unregister("java", broker, False, LEASE_MS, 0)
    story.sync("other", owned=[GrantedQueue(queues(1)[0], story.seen["python"])])
    assert story.ids("other") == [0], "nobody here knew any more who has what"


def test_a_member_that_assigns_itself_is_gone_when_no_broker_has_it() -> None:
    story = Story()
    for broker in ("b1", "b2"):
        story.group.heartbeat("java", broker, {"T": "*"}, 0)
    story.group.unregister("java", "b1", True, LEASE_MS, 0)
    assert story.group.members().members == ("java",)
    story.group.unregister("java", "b2", True, LEASE_MS, 0)
    assert story.group.members().members == ()
    story.sync("python")
    assert story.ids("python") == [], "who assigned itself may still be at it"
    story.now_ms = LEASE_MS
    story.sync("python")
    assert story.ids("python") == [0, 1, 2, 3]


def test_when_the_last_that_assigned_itself_says_so_its_queues_are_free_after_all_have_reported() -> None:
    story = Story()
    story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    for member in ("one", "two"):
        story.sync(member)
    story.owned["two"] = [GrantedQueue(queues(4)[3], 0)]
    story.group.unregister("java", "b1", False, LEASE_MS, 0)
    story.sync("one")
    assert story.ids("one") == [], "two may be at any of them"
    story.sync("two")
    story.sync("one")
    story.sync("two")
    assert (story.ids("one"), story.ids("two")) == ([0, 1], [2, 3])


def test_who_does_not_report_is_waited_for_until_its_lease_is_over() -> None:
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


def test_a_silent_member_that_assigns_itself_expires_and_a_farewell_is_believed() -> None:
    story = Story()
    story.group.heartbeat("java", "b1", {"T": "*"}, 0)
    story.group.heartbeat("other", "b1", {"T": "*"}, 5)
    story.group.expire_heartbeats(1, LEASE_MS, 10)
    assert story.group.members().members == ("other",)
    story.group.heartbeat("other", "b2", {"T": "*"}, 6)
    story.group.unregister("other", "b1", False, LEASE_MS, 10)
    assert story.group.is_empty
