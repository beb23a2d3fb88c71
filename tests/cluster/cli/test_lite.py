"""`raymq lite`: the list by name, one lite topic, groups, clients and dispatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cluster.client import LiteConsumer
from tests.cluster.cli.conftest import Raymq
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, eventually

WAIT_MS = int(LIMIT_S * 1000)


@dataclass
class Chats:
    """A topic of type LITE, and its group with one consumer, which has read a part."""

    topic: str
    group: str
    consumer: LiteConsumer


@pytest.fixture
def chats(raymq: Raymq, cluster: Cluster) -> Iterator[Chats]:
    topic = f"{raymq.filled()}-lite"
    group = f"{topic}-agents"
    types = ("--attribute", "message.type=LITE", "--attribute", "lite.topic.expiration=60")
    raymq.ok("topic", "create", topic, *types)
    raymq.ok("group", "create", group, "--attribute", f"lite.bind.topic={topic}")
    for name in ("session-1", "session-2", "Other"):
        for body in ("a", "b"):
            raymq.ok("send", topic, body, "--lite-topic", name)
    with LiteConsumer(cluster.address, group, topic) as consumer:
        consumer.subscribe("session-1", "session-2", "empty")
        read = [each for _ in range(2) for each in consumer.receive(max_messages=1, timeout_ms=WAIT_MS)]
        consumer.ack(next(each for each in read if each.lite_topic == "session-1"))
        yield Chats(topic, group, consumer)


def test_lite_topics_are_listed_and_found_by_name(raymq: Raymq, chats: Chats) -> None:
    found = raymq.ok("lite", "list", chats.topic)
    assert (found["groups"], found["expires_after_min"]) == ([chats.group], 60)
    assert (found["count"], found["matches"]) == (3, 3)
    rows = {row["lite_topic"]: row for row in found["rows"]}
    assert list(rows) == ["Other", "session-1", "session-2"]
    first, other = rows["session-1"], rows["Other"]
    assert (first["messages"], first["subscribers"], first["lag"]) == (2, 1, 1)
    assert first["last_ms"] >= first["oldest_ms"] > 0
    assert first["groups"][0]["oldest_ms"] > 0
    assert (other["messages"], other["subscribers"], other["lag"]) == (2, 0, None)  # no group has read it
    found = raymq.ok("lite", "list", chats.topic, "--match", "SESSION", "--max", "1")
    assert (found["count"], found["matches"], [row["lite_topic"] for row in found["rows"]]) == (
        3,
        2,
        ["session-1"],
    )
    shown = raymq.shown("lite", "list", chats.topic, "--max", "1")
    assert "2 more: give --match or --max" in shown
    assert "3 lite topics" in shown


def test_lite_topic_is_described(raymq: Raymq, chats: Chats) -> None:
    found = raymq.ok("lite", "describe", chats.topic, "session-1")
    (row,) = found["brokers"]
    assert (row["min_offset"], row["max_offset"], row["lag"]) == (0, 2, 1)
    (group,) = row["groups"]
    assert (group["group"], group["lag"], group["subscribers"]) == (chats.group, 1, 1)
    clients = {each["client_id"] for each in found["subscribers"]}
    assert len(clients) == 1
    assert clients.pop() in raymq.shown("lite", "describe", chats.topic, "session-1")
    empty = raymq.ok("lite", "describe", chats.topic, "empty")["brokers"][0]
    assert (empty["messages"], empty["oldest_ms"], empty["last_ms"], empty["lag"]) == (0, None, None, 0)
    assert "no lite topic 'session'" in raymq.refused("lite", "describe", chats.topic, "session")
    assert "type not match" in raymq.refused("lite", "describe", raymq.filled(), "session-1")


def test_messages_of_a_lite_topic_are_shown(raymq: Raymq, chats: Chats) -> None:
    found = raymq.ok("message", "get", chats.topic, "--lite-topic", "session-2", "--count", "10")
    assert [each["body"] for each in found] == ["a", "b"]
    last = raymq.ok("message", "get", chats.topic, "--lite-topic", "session-2", "--offset", "1")
    assert (last["body"], last["properties"]["__LITE_TOPIC"]) == ("b", "session-2")
    arguments = ("message", "get", chats.topic, "--lite-topic", "session-2", "--offset")
    assert "no such message" in raymq.refused(*arguments, "2")


def test_lag_subscriptions_and_dispatch_of_a_group(raymq: Raymq, chats: Chats) -> None:
    found = raymq.ok("lite", "group", chats.group, "--top", "1")
    assert (found["topic"], found["lag"]) == (chats.topic, 3)
    assert [(each["lite_topic"], each["lag"]) for each in found["largest"]] == [("session-2", 2)]
    assert found["oldest_ms"] == found["oldest"][0]["oldest_ms"]
    assert "3" in raymq.shown("lite", "group", chats.group)
    client_id = raymq.ok("lite", "describe", chats.topic, "empty")["subscribers"][0]["client_id"]
    rows = raymq.ok("lite", "client", chats.topic, chats.group, client_id)
    assert {row["lite_topic"] for row in rows} == {"session-1", "session-2", "empty"}
    assert raymq.ok("lite", "dispatch", chats.group)["group"] == chats.group
    assert "not exist" in raymq.refused("lite", "group", "no-such-group")
    assert "not exist" in raymq.refused("lite", "dispatch", "no-such-group")
    chats.consumer.close()
    eventually(lambda: raymq.ok("lite", "client", chats.topic, chats.group, client_id) == [])


def test_attributes_of_a_group_are_kept_by_other_changes(raymq: Raymq, chats: Chats) -> None:
    changed = raymq.ok("group", "create", chats.group, "--max-retries", "3")
    assert changed["settings"]["attributes"] == {"lite.bind.topic": chats.topic}
    assert raymq.ok("lite", "list", chats.topic)["groups"] == [chats.group]
    code, _, error = raymq.run("send", chats.topic, "x", "--lite-topic", "a b")
    assert code == 2
    assert "'a b' is invalid" in error
