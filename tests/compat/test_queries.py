"""Routes, offsets, pull statuses and queries by id, key and time, requested by RocketMQ's Java clients."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from contextlib import suppress

import pytest

from actors.transport.client import RemotingClient
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import SearchOffsetHeader
from store.common.clock import SystemClock
from tests.compat.agent import Agent, OperationFailed
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

QUEUE = {"broker": "broker-a", "queueId": 1}


def filled_queue(client: Agent, topic: str, count: int) -> list[dict[str, object]]:
    """Send `count` messages to queue 1; return the results."""
    return client.send_dispatched(
        [
            {
                "topic": topic,
                "body": f"{n}",
                "tags": "Even" if n % 2 == 0 else "Odd",
                "keys": f"key{n} all",
                **QUEUE,
            }
            for n in range(count)
        ]
    )


def test_route_has_the_created_queues(each_client: Agent, names: Names, peer: Peer) -> None:
    each_client.create_topic(peer.broker_address, names.topic(), queues=3)

    queues = each_client.publish_queues(names.topic())
    assert queues == [{"topic": names.topic(), "broker": "broker-a", "queueId": n} for n in range(3)]


def test_min_and_max_offsets_of_empty_and_filled_queues(each_client: Agent, topic: str) -> None:
    sent = filled_queue(each_client, topic, 12)

    seen = {queue["queueId"]: queue for queue in each_client.offsets(topic)}
    assert [(seen[n]["min"], seen[n]["max"]) for n in range(4)] == [(0, 0), (0, 12), (0, 0), (0, 0)]
    first = each_client.call("view", topic=topic, msgId=sent[0]["offsetMsgId"])
    assert seen[1]["earliestMs"] == first["storeTimestamp"]


def test_offset_is_found_by_timestamp(client: Agent, topic: str) -> None:
    sent = filled_queue(client, topic, 10)
    stored = [client.call("view", topic=topic, msgId=one["offsetMsgId"])["storeTimestamp"] for one in sent]

    def at(timestamp_ms: int) -> int:
        return int(client.offsets(topic, timestampMs=timestamp_ms)[1]["atTime"])

    assert at(stored[0] - 10_000) == 0
    assert stored[at(stored[6])] == stored[6]
    assert at(stored[9] + 10_000) == 10


def test_offset_search_by_timestamp_with_both_boundary_types(client: Agent, peer: Peer, topic: str) -> None:
    sent = filled_queue(client, topic, 12)
    stored = [client.call("view", topic=topic, msgId=one["offsetMsgId"])["storeTimestamp"] for one in sent]
    wanted = sorted({each + near for each in stored for near in (-1, 0, 1)} | {1, stored[-1] + 10_000})

    searches = [(when, bound) for when in wanted for bound in ("LOWER", "UPPER")]
    found = asyncio.run(offsets_at(peer, topic, searches))

    for (when, bound), offset in zip(searches, found, strict=True):
        last_before = max(bisect_right(stored, when) - 1, 0)
        expected = bisect_left(stored, when) if bound == "LOWER" else last_before
        assert offset == expected, (when - stored[0], bound, [each - stored[0] for each in stored])


async def offsets_at(peer: Peer, topic: str, searches: list[tuple[int, str]]) -> list[int]:
    """Return the broker's responses to SEARCH_OFFSET_BY_TIMESTAMP for each (timestamp, boundary type)."""
    client = RemotingClient(SystemClock())
    try:
        responses = [
            await client.invoke(
                peer.broker_address,
                RemotingCommand(
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffsetHeader(topic, 1, when, bound).to_ext(),
                ),
                int(LIMIT_S * 1000),
            )
            for when, bound in searches
        ]
    finally:
        await client.close()
    return [int(response.ext["offset"]) for response in responses]


@pytest.mark.parametrize(
    ("offset", "expression", "status", "following"),
    [
        (0, "*", "FOUND", 8),
        (5, "*", "FOUND", 8),
        (8, "*", "NO_NEW_MSG", 8),
        (9, "*", "OFFSET_ILLEGAL", 8),
        (0, "Unused", "NO_MATCHED_MSG", 8),
        (0, "Odd", "FOUND", 8),
    ],
)
def test_pull_status_and_next_offset(
    client: Agent, names: Names, topic: str, offset: int, expression: str, status: str, following: int
) -> None:
    filled_queue(client, topic, 8)

    pulled = client.call(
        "pull", group=names.group(), topic=topic, offset=offset, expression=expression, **QUEUE
    )
    assert (pulled["status"], pulled["next"], pulled["min"], pulled["max"]) == (status, following, 0, 8)


def test_pull_returns_at_most_the_requested_messages(each_client: Agent, names: Names, topic: str) -> None:
    filled_queue(each_client, topic, 50)

    pulled = each_client.call("pull", group=names.group(), topic=topic, offset=3, max=7, **QUEUE)
    assert [message["queueOffset"] for message in pulled["messages"]] == list(range(3, 10))
    assert pulled["next"] == 10


def test_held_pull_returns_when_a_message_arrives(client: Agent, names: Names, topic: str) -> None:
    client.send([{"topic": topic, "body": "soon", **QUEUE}])
    client.call("push_start", name=topic, group=names.group(), topic=topic)
    client.received(topic, 1)
    client.send([{"topic": topic, "body": "held", **QUEUE}])

    received = client.received(topic, 2)
    client.call("push_stop", name=topic)
    assert [message["body"] for message in received] == ["soon", "held"]


def test_messages_are_found_by_key_and_unique_key(each_client: Agent, topic: str) -> None:
    sent = filled_queue(each_client, topic, 9)

    def found(key: str) -> list[str]:
        with suppress(OperationFailed):
            return sorted(message["body"] for message in each_client.call("query", topic=topic, key=key))
        return []

    # The index is written after the consume queues.
    eventually(lambda: found("all") == [str(n) for n in range(9)], "the index of all messages")
    assert found("key4") == ["4"]
    [unique] = [each_client.call("view", topic=topic, msgId=sent[7]["msgId"])]
    assert unique["body"] == "7"
    with pytest.raises(OperationFailed):
        each_client.call("query", topic=topic, key="missing")


def test_broker_stores_the_committed_offset_of_a_group(each_client: Agent, topic: str, names: Names) -> None:
    filled_queue(each_client, topic, 20)
    where = {"group": names.group(), "topic": topic, **QUEUE}
    each_client.call("pull", offset=0, **where)  # creates the group
    each_client.call("commit_offset", offset=13, **where)

    assert each_client.call("consumer_offset", **where) == 13
