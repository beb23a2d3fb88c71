"""A queue never has two owners with running leases, and finally every queue has one owner.

Hypothesis delivers requests and responses in any order: delayed, lost, duplicated, reordered. Members join,
stall, crash and release queues at any time. The rebalancer is killed and restarts with only its generations.
Queues are added and removed. A member consumes a queue from the response that grants it until it releases the
queue or its lease ends by its own clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from actors.rebalancer.group import NS_PER_MS, Group
from actors.strategies import make_strategy
from actors.wire.bodies.groups import AssignedQueue, SyncGroupReply, SyncGroupRequest
from store.message.message_queue import MessageQueue

LEASE_MS = 100
STRATEGIES = ["averagely", "averagely_by_circle", "consistent_hash"]


@dataclass
class Member:
    """A member like a Python client: one request at a time; it ignores responses to abandoned requests."""

    name: str
    generation: int = 0
    held: dict[MessageQueue, int] = field(default_factory=dict)
    leaving: set[MessageQueue] = field(default_factory=set)
    lease_until_ms: int = 0
    waiting_for: int = -1

    def lease_left_ms(self, now_ms: int) -> int:
        return self.lease_until_ms - now_ms

    def consumed(self, now_ms: int) -> set[MessageQueue]:
        return set(self.held) if self.lease_left_ms(now_ms) > 0 else set()

    def send_request(self, number: int, now_ms: int) -> SyncGroupRequest:
        self.waiting_for = number
        owned = [AssignedQueue(queue, generation) for queue, generation in sorted(self.held.items())]
        left_ms = self.lease_left_ms(now_ms)
        return SyncGroupRequest(
            "g",
            self.name,
            self.generation,
            {"T": "*"},
            owned,
            lease_ms=LEASE_MS,
            lease_left_ms=left_ms,
            sequence=number,
        )

    def receive_response(self, number: int, reply: SyncGroupReply, requested_at_ms: int, now_ms: int) -> None:
        if number != self.waiting_for or reply.generation < self.generation:
            return
        self.waiting_for = -1
        was_suspended = self.lease_left_ms(now_ms) <= 0
        self.generation = reply.generation
        self.lease_until_ms = max(self.lease_until_ms, requested_at_ms + reply.lease_ms)
        assigned = {item.queue: item.generation for item in reply.assigned}
        for queue in list(self.held):
            if queue not in assigned:
                if was_suspended:
                    self.release(queue)
                else:
                    self.leaving.add(queue)
        for queue, generation in assigned.items():
            self.held.setdefault(queue, generation)

    def release(self, queue: MessageQueue) -> None:
        self.held.pop(queue, None)
        self.leaving.discard(queue)


class World:
    """Members, a rebalancer that may be down, and all requests and responses in flight between them."""

    def __init__(self, strategy: str, number_of_queues: int) -> None:
        self.strategy = strategy
        self.queues = [MessageQueue("T", "b", index) for index in range(number_of_queues)]
        self.now_ms = 0
        self.last_generation = 0
        self.members: dict[str, Member] = {}
        self.names = 0
        self.numbers = 0
        self.requests: list[tuple[int, SyncGroupRequest, int]] = []
        self.replies: list[tuple[int, str, SyncGroupReply, int]] = []
        self.owner_of: dict[MessageQueue, str] = {}
        self.group: Group | None = None
        self.start(recovering=False)

    def start(self, recovering: bool = True) -> None:
        self.last_generation += 100 if recovering else 0
        until_ms = self.now_ms + LEASE_MS if recovering else 0
        self.group = Group(
            "g",
            make_strategy(self.strategy),
            self.last_generation,
            self.next_generation,
            until_ms * NS_PER_MS,
        )
        self.group.set_queues("T", self.queues)

    def next_generation(self, lease_ms: int) -> int:
        self.last_generation += 1
        return self.last_generation

    # events, chosen by hypothesis

    def join(self) -> None:
        self.names += 1
        name = f"m{self.names}"
        self.members[name] = Member(name)

    def send_request(self, which: int) -> None:
        if self.members:
            member = self._pick(list(self.members.values()), which)
            self.numbers += 1
            self.requests.append((self.numbers, member.send_request(self.numbers, self.now_ms), self.now_ms))

    def request_arrives(self, which: int, duplicate: bool) -> None:
        if not self.requests:
            return
        number, request, requested_at_ms = self._pick(self.requests, which)
        if not duplicate:
            self.requests.remove((number, request, requested_at_ms))
        if self.group is not None:
            reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
            self.replies.append((number, request.client_id, reply, requested_at_ms))

    def reply_arrives(self, which: int, duplicate: bool) -> None:
        if not self.replies:
            return
        packet = self._pick(self.replies, which)
        if not duplicate:
            self.replies.remove(packet)
        number, name, reply, requested_at_ms = packet
        if name in self.members:
            self.members[name].receive_response(number, reply, requested_at_ms, self.now_ms)

    def lose(self, which: int, duplicate: bool) -> None:
        packets: list[Any] = self.requests if duplicate else self.replies
        if packets:
            packets.remove(self._pick(packets, which))

    def release(self, which: int) -> None:
        holders = [member for member in self.members.values() if member.held]
        if holders:
            member = self._pick(holders, which)
            member.release(self._pick(sorted(member.leaving or member.held), which))

    def exchange(self, which: int) -> None:
        """One member releases its revoked queues, sends a request and receives the response."""
        if self.members and self.group is not None:
            member = self._pick(list(self.members.values()), which)
            for queue in list(member.leaving):
                member.release(queue)
            self.numbers += 1
            request = member.send_request(self.numbers, self.now_ms)
            reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
            member.receive_response(self.numbers, reply, self.now_ms, self.now_ms)

    def crash(self, which: int) -> None:
        if self.members:
            del self.members[self._pick(sorted(self.members), which)]

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        if self.group is not None:
            self.group.expire(self.now_ms * NS_PER_MS)

    def change_queues(self, number: int) -> None:
        self.queues = [MessageQueue("T", "b", index) for index in range(number)]
        if self.group is not None:
            self.group.set_queues("T", self.queues)

    def kill(self) -> None:
        self.group = None

    @staticmethod
    def _pick(choices: list[Any], which: int) -> Any:
        return choices[which % len(choices)]

    # invariants

    def check(self) -> None:
        owner_of: dict[MessageQueue, str] = {}
        for member in self.members.values():
            for queue in member.consumed(self.now_ms):
                other = owner_of.setdefault(queue, member.name)
                assert other == member.name, (
                    f"{queue} is owned by {other} and {member.name} at {self.now_ms} ms"
                )

    def settle(self) -> None:
        """Run without faults for longer than any lease.

        All members send requests and release their revoked queues.
        """
        if self.group is None:
            self.start()
        assert self.group is not None
        self.requests.clear()
        self.replies.clear()
        for _ in range(12):
            self.advance(LEASE_MS // 4)
            for index in range(len(self.members)):
                self.exchange(index)
                self.check()


which = st.integers(0, 20)
steps = st.one_of(
    st.tuples(st.just("join")),
    st.tuples(st.just("send_request"), which),
    st.tuples(st.just("send_request"), which),
    st.tuples(st.just("request_arrives"), which, st.booleans()),
    st.tuples(st.just("request_arrives"), which, st.booleans()),
    st.tuples(st.just("reply_arrives"), which, st.booleans()),
    st.tuples(st.just("reply_arrives"), which, st.booleans()),
    st.tuples(st.just("lose"), which, st.booleans()),
    st.tuples(st.just("release"), which),
    st.tuples(st.just("exchange"), which),
    st.tuples(st.just("exchange"), which),
    st.tuples(st.just("crash"), which),
    st.tuples(st.just("advance"), st.sampled_from([1, 10, 30, 60, 99, 100, 130])),
    st.tuples(st.just("kill")),
    st.tuples(st.just("start")),
    st.tuples(st.just("change_queues"), st.integers(0, 5)),
)


@settings(max_examples=120, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    number_of_queues=st.integers(1, 5),
    members=st.integers(1, 4),
    story=st.lists(steps, max_size=60),
)
def test_queue_never_has_two_owners_and_finally_has_one(
    strategy: str, number_of_queues: int, members: int, story: list[tuple[Any, ...]]
) -> None:
    world = World(strategy, number_of_queues)
    for _ in range(members):
        world.join()
    for name, *arguments in story:
        getattr(world, name)(*arguments)
        world.check()
    world.settle()
    note(str(world.members))
    held = {queue for member in world.members.values() for queue in member.consumed(world.now_ms)}
    assert held == (set(world.queues) if world.members else set())


# Mostly complete exchanges, with occasional steps of every other kind.
WEIGHTS = {
    "exchange": 30,
    "send_request": 12,
    "request_arrives": 12,
    "reply_arrives": 12,
    "lose": 3,
    "release": 4,
    "advance": 14,
    "join": 2,
    "crash": 2,
    "kill": 1,
    "start": 2,
    "change_queues": 1,
}


def arguments_of(name: str, chance: random.Random) -> tuple[Any, ...]:
    which = chance.randrange(1000)
    match name:
        case "join" | "kill" | "start":
            return ()
        case "advance":
            return (chance.choice([1, 5, 20, 50, 95, 99, 100]),)
        case "change_queues":
            return (chance.randrange(6),)
        case "request_arrives" | "reply_arrives" | "lose":
            return (which, chance.random() < 0.3)
        case _:
            return (which,)


@pytest.mark.parametrize("seed", range(25))
def test_queue_never_has_two_owners_in_long_random_runs(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance.choice(STRATEGIES), chance.randint(1, 6))
    for _ in range(3):
        world.join()
    for _ in range(4):
        for name in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=120):
            if name != "join" or len(world.members) < 6:
                getattr(world, name)(*arguments_of(name, chance))
            world.check()
        world.settle()
        held = {queue for member in world.members.values() for queue in member.consumed(world.now_ms)}
        assert held == (set(world.queues) if world.members else set())
