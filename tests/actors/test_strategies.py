"""The assignment strategies, compared with their definitions."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.strategies import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    assign_queues,
    make_strategy,
)
from store.message.message_queue import MessageQueue

ROOMS = ("r1", "r2", "r3")
queue_sets = st.sets(
    st.builds(
        MessageQueue,
        st.just("T"),
        st.builds("{}{}{}".format, st.sampled_from(ROOMS), st.sampled_from("-@"), st.sampled_from("ab")),
        st.integers(0, 12),
    ),
    max_size=40,
)
client_sets = st.sets(
    st.builds("{}-{}".format, st.sampled_from(ROOMS), st.integers(0, 9)), min_size=1, max_size=8
)
ALL = [
    AllocateMessageQueueAveragely(),
    AllocateMessageQueueAveragelyByCircle(),
    AllocateMessageQueueConsistentHash(),
    AllocateMachineRoomNearby(AllocateMessageQueueAveragely()),
]


def shares(
    strategy: AllocateMessageQueueStrategy, queues: set[MessageQueue], clients: set[str]
) -> dict[str, list[MessageQueue]]:
    return {client: strategy.allocate(client, queues, clients) for client in sorted(clients)}


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.name)
@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_every_queue_has_exactly_one_owner(
    strategy: AllocateMessageQueueStrategy, queues: set[MessageQueue], clients: set[str]
) -> None:
    found = shares(strategy, queues, clients)
    counts = Counter(queue for share in found.values() for queue in share)
    assert counts == Counter(queues)
    assert strategy.allocate("not in the list", queues, clients) == []
    assert {queue: client for client, share in found.items() for queue in share} == assign_queues(
        strategy, queues, clients
    )


@pytest.mark.parametrize("strategy", ALL[:2], ids=lambda strategy: strategy.name)
@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_shares_of_averaging_strategies_differ_by_at_most_one(
    strategy: AllocateMessageQueueStrategy, queues: set[MessageQueue], clients: set[str]
) -> None:
    sizes = [len(share) for share in shares(strategy, queues, clients).values()]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_averagely_matches_its_definition(queues: set[MessageQueue], clients: set[str]) -> None:
    ordered, ids = sorted(queues), sorted(clients)
    count, members = len(ordered), len(ids)
    rest = count % members
    for index, client in enumerate(ids):
        has_more = rest > 0 and index < rest
        size = 1 if count <= members else count // members + (1 if has_more else 0)
        start = index * size if has_more else index * size + rest
        expected = ordered[start : start + min(size, count - start)] if count > start else []
        assert AllocateMessageQueueAveragely().allocate(client, queues, clients) == expected


@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_by_circle_assigns_queues_round_robin(queues: set[MessageQueue], clients: set[str]) -> None:
    ids = sorted(clients)
    for index, client in enumerate(ids):
        expected = [queue for place, queue in enumerate(sorted(queues)) if place % len(ids) == index]
        assert AllocateMessageQueueAveragelyByCircle().allocate(client, queues, clients) == expected


@settings(max_examples=40, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_consistent_hash_moves_only_queues_of_the_removed_client(
    queues: set[MessageQueue], clients: set[str]
) -> None:
    strategy = AllocateMessageQueueConsistentHash()
    before = assign_queues(strategy, queues, clients)
    for gone in clients:
        rest = clients - {gone}
        if rest:
            after = assign_queues(strategy, queues, rest)
            assert {q: c for q, c in before.items() if c != gone}.items() <= after.items()


def test_consistent_hash_uses_the_md5_of_rocketmqs_queue_text() -> None:
    def place(text: str) -> int:
        return int.from_bytes(hashlib.md5(text.encode()).digest()[:4], "big")

    queue = MessageQueue("T", "b", 0)
    at = place("MessageQueue [topic=T, brokerName=b, queueId=0]")
    ring = sorted((place(f"{client}-{number}"), client) for client in ("x", "y", "z") for number in range(10))
    owner = next((client for spot, client in ring if spot >= at), ring[0][1])
    assert assign_queues(AllocateMessageQueueConsistentHash(), [queue], ["x", "y", "z"]) == {queue: owner}


@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_machine_room_assigns_only_queues_of_the_given_rooms(
    queues: set[MessageQueue], clients: set[str]
) -> None:
    strategy = AllocateMessageQueueByMachineRoom(["r1", "r3"])
    ours = sorted(queue for queue in queues if queue.broker_name.startswith(("r1@", "r3@")))
    per, rest = divmod(len(ours), len(clients))
    for index, client in enumerate(sorted(clients)):
        expected = ours[per * index : per * index + per]
        if rest > index:
            expected = [*expected, ours[index + per * len(clients)]]
        assert strategy.allocate(client, queues, clients) == expected
    counts = Counter(queue for share in shares(strategy, queues, clients).values() for queue in share)
    assert counts == Counter(ours)


@settings(max_examples=60, deadline=None)
@given(queues=queue_sets, clients=client_sets)
def test_machine_room_nearby_keeps_queues_in_their_room(queues: set[MessageQueue], clients: set[str]) -> None:
    strategy = AllocateMachineRoomNearby(
        AllocateMessageQueueAveragely(),
        room_of_broker=lambda name: name[:2],
        room_of_client=lambda name: name[:2],
    )
    rooms = {client[:2] for client in clients}
    for client, share in shares(strategy, queues, clients).items():
        for queue in share:
            assert queue.broker_name[:2] == client[:2] or queue.broker_name[:2] not in rooms


def test_by_config_returns_a_fixed_list() -> None:
    queues = [MessageQueue("T", "b", 3)]
    assert AllocateMessageQueueByConfig(queues).allocate("anyone", [], []) == queues


def test_make_strategy_accepts_known_names_only() -> None:
    assert make_strategy("averagely").name == "AVG"
    assert make_strategy("AVG_BY_CIRCLE").name == "AVG_BY_CIRCLE"
    assert make_strategy("consistent_hash").name == "CONSISTENT_HASH"
    assert make_strategy("machine_room:r1,r2").name == "MACHINE_ROOM"
    assert make_strategy("machine_room_nearby:avg_by_circle").name == "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"
    for wrong in ("", "best", "machine_room", "averagely:x", "machine_room_nearby:none"):
        with pytest.raises(ValueError, match="unknown strategy"):
            make_strategy(wrong)
