"""A queue never has two owners whose leases run, and in the end every queue has one.

Members, their requests and the answers are moved by hypothesis in any order: late, lost, doubled,
overtaken; members join, stall, crash and let go when they like; the rebalancer is killed and starts with
nothing but its generations; queues come and go. A member here works on a queue from the answer that grants
it until it lets go, or its own count of the lease ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from actors.rebalancer.group import NS_PER_MS, Group
from actors.remoting.bodies.groups import GrantedQueue, SyncGroupReply, SyncGroupRequest
from actors.strategies import make_strategy
from store.message.message_queue import MessageQueue

LEASE_MS = 100
STRATEGIES = ["averagely", "averagely_by_circle", "consistent_hash"]


@dataclass
class Member:
    """A member as ours are: one request at a time, an answer to a request it gave up is nothing to it."""

    name: str
    generation: int = 0
    held: dict[MessageQueue, int] = field(default_factory=dict)
    leaving: set[MessageQueue] = field(default_factory=set)
    lease_until_ms: int = 0
    waiting_for: int = -1

    def lease_left_ms(self, now_ms: int) -> int:
        return self.lease_until_ms - now_ms

    def works_on(self, now_ms: int) -> set[MessageQueue]:
        return set(self.held) if self.lease_left_ms(now_ms) > 0 else set()

    def ask(self, number: int, now_ms: int) -> SyncGroupRequest:
        self.waiting_for = number
        owned = [GrantedQueue(queue, generation) for queue, generation in sorted(self.held.items())]
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

    def take(self, number: int, reply: SyncGroupReply, asked_at_ms: int, now_ms: int) -> None:
        if number != self.waiting_for or reply.generation < self.generation:
            return
        self.waiting_for = -1
        was_suspended = self.lease_left_ms(now_ms) <= 0
        self.generation = reply.generation
        self.lease_until_ms = max(self.lease_until_ms, asked_at_ms + reply.lease_ms)
        granted = {item.queue: item.generation for item in reply.granted}
        for queue in list(self.held):
            if queue not in granted:
                if was_suspended:
                    self.release(queue)
                else:
                    self.leaving.add(queue)
        for queue, generation in granted.items():
            self.held.setdefault(queue, generation)

    def release(self, queue: MessageQueue) -> None:
        self.held.pop(queue, None)
        self.leaving.discard(queue)


class World:
    """Members, a rebalancer that may be down, and everything that is on its way between them."""

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

    # what may happen, each chosen by hypothesis

    def join(self) -> None:
        self.names += 1
        name = f"m{self.names}"
        self.members[name] = Member(name)

    def ask(self, which: int) -> None:
        if self.members:
            member = self._pick(list(self.members.values()), which)
            self.numbers += 1
            self.requests.append((self.numbers, member.ask(self.numbers, self.now_ms), self.now_ms))

    def request_arrives(self, which: int, doubled: bool) -> None:
        if not self.requests:
            return
        number, request, asked_at_ms = self._pick(self.requests, which)
        if not doubled:
            self.requests.remove((number, request, asked_at_ms))
        if self.group is not None:
            reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
            self.replies.append((number, request.client_id, reply, asked_at_ms))

    def reply_arrives(self, which: int, doubled: bool) -> None:
        if not self.replies:
            return
        packet = self._pick(self.replies, which)
        if not doubled:
            self.replies.remove(packet)
        number, name, reply, asked_at_ms = packet
        if name in self.members:
            self.members[name].take(number, reply, asked_at_ms, self.now_ms)

    def lose(self, which: int, doubled: bool) -> None:
        packets: list[Any] = self.requests if doubled else self.replies
        if packets:
            packets.remove(self._pick(packets, which))

    def release(self, which: int) -> None:
        holders = [member for member in self.members.values() if member.held]
        if holders:
            member = self._pick(holders, which)
            member.release(self._pick(sorted(member.leaving or member.held), which))

    def talk(self, which: int) -> None:
        """One member asks and is answered without trouble, having finished what it was told to let go."""
        if self.members and self.group is not None:
            member = self._pick(list(self.members.values()), which)
            for queue in list(member.leaving):
                member.release(queue)
            self.numbers += 1
            request = member.ask(self.numbers, self.now_ms)
            reply = self.group.sync(request, LEASE_MS, self.now_ms * NS_PER_MS)
            member.take(self.numbers, reply, self.now_ms, self.now_ms)

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

    # what must hold

    def check(self) -> None:
        owner_of: dict[MessageQueue, str] = {}
        for member in self.members.values():
            for queue in member.works_on(self.now_ms):
                other = owner_of.setdefault(queue, member.name)
                assert other == member.name, f"{queue} is with {other} and {member.name} at {self.now_ms} ms"

    def settle(self) -> None:
        """No more trouble: everybody asks, finishes and asks again, for longer than any lease."""
        if self.group is None:
            self.start()
        assert self.group is not None
        self.requests.clear()
        self.replies.clear()
        for _ in range(12):
            self.advance(LEASE_MS // 4)
            for index in range(len(self.members)):
                self.talk(index)
                self.check()


which = st.integers(0, 20)
steps = st.one_of(
    st.tuples(st.just("join")),
    st.tuples(st.just("ask"), which),
    st.tuples(st.just("ask"), which),
    st.tuples(st.just("request_arrives"), which, st.booleans()),
    st.tuples(st.just("request_arrives"), which, st.booleans()),
    st.tuples(st.just("reply_arrives"), which, st.booleans()),
    st.tuples(st.just("reply_arrives"), which, st.booleans()),
    st.tuples(st.just("lose"), which, st.booleans()),
    st.tuples(st.just("release"), which),
    st.tuples(st.just("talk"), which),
    st.tuples(st.just("talk"), which),
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
def test_no_queue_ever_has_two_owners_and_in_the_end_each_has_one(
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
    held = {queue for member in world.members.values() for queue in member.works_on(world.now_ms)}
    assert held == (set(world.queues) if world.members else set())


# Mostly members that ask and are answered, with now and then a step of every other kind.
WEIGHTS = {
    "talk": 30,
    "ask": 12,
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
def test_long_lives_of_groups_under_constant_trouble(seed: int) -> None:
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
        held = {queue for member in world.members.values() for queue in member.works_on(world.now_ms)}
        assert held == (set(world.queues) if world.members else set())
