"""RocketMQ's Java consumers: push, pull, rebalance, and resuming at committed offsets."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cluster.client import Admin, ClientError
from tests.compat.agent import Agent, Facts
from tests.compat.build import JavaKit
from tests.compat.conftest import CLIENTS, DEFAULT_CLIENT, OTHER_CLIENTS, Agents, Names
from tests.compat.peers import Peer
from tests.compat.raymq import RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import NEVER_S, eventually

pytestmark = pytest.mark.java


def bodies(messages: list[Facts]) -> list[str]:
    return sorted(message["body"] for message in messages)


def numbered(topic: str, count: int, first: int = 0) -> list[dict[str, object]]:
    return [
        {"topic": topic, "body": f"{n:04}", "tags": f"Tag{n % 3}", "keys": f"k{n}"}
        for n in range(first, first + count)
    ]


def texts(count: int, first: int = 0) -> list[str]:
    return [f"{n:04}" for n in range(first, first + count)]


def committed_at_broker(peer: Peer, group: str, topic: str) -> int:
    """Return the sum of a group's committed offsets, queried without joining the group."""
    with Admin(peer.nameserver_address) as admin:
        return sum(offset or 0 for offset in admin.committed_offsets(group, topic).values())


def queues_of(agent: Agent, name: str, topic: str) -> set[int]:
    queues = agent.call("push_queues", name=name)
    return {queue["queueId"] for queue in queues if queue["topic"] == topic}


def test_push_consumer_gets_existing_and_new_messages(each_client: Agent, topic: str, names: Names) -> None:
    each_client.send(numbered(topic, 50))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    assert bodies(each_client.received(topic, 50)) == texts(50)

    each_client.send(numbered(topic, 5, first=50))
    assert bodies(each_client.received(topic, 55)) == texts(55)
    each_client.call("push_stop", name=topic)


@pytest.mark.parametrize("version", [DEFAULT_CLIENT, *OTHER_CLIENTS])
def test_slow_heartbeat_does_not_delay_the_first_messages(
    kit: JavaKit, peer: Peer, topic: str, names: Names, tmp_path: Path, version: str
) -> None:
    if not isinstance(peer, RayMQ):
        pytest.skip("RocketMQ refuses the pulls of such a consumer until its next rebalance")
    profile, encoding = CLIENTS[version]
    no_second_rebalance = f"-Drocketmq.client.rebalance.waitInterval={int(NEVER_S * 1000)}"
    with Agent(
        kit, profile, peer.nameserver_address, tmp_path, encoding=encoding, jvm=[no_second_rebalance]
    ) as agent:
        agent.send(numbered(topic, 20))
        # The second heartbeat, one second after the start, is in flight when the queues are assigned.
        agent.call("push_start", name=topic, group=names.group(), topic=topic, heartbeatTakesMs=200)
        received = agent.received(topic, 20)
        agent.call("push_stop", name=topic)
    assert bodies(received) == texts(20)


def test_tag_expression_filters_messages(each_client: Agent, topic: str, names: Names) -> None:
    each_client.call("push_start", name=topic, group=names.group(), topic=topic, expression="Tag0 || Tag2")
    each_client.send(numbered(topic, 60))

    received = each_client.received(topic, 40)
    each_client.call("push_stop", name=topic)
    assert {message["tags"] for message in received} == {"Tag0", "Tag2"}
    assert len(received) == 40


def test_group_resumes_at_its_committed_offsets(
    each_client: Agent, topic: str, names: Names, peer: Peer
) -> None:
    each_client.send(numbered(topic, 30))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    assert len(each_client.received(topic, 30)) == 30
    each_client.call("push_stop", name=topic)
    # A leaving client commits with one-way requests, which the broker may process later.
    eventually(lambda: committed_at_broker(peer, names.group(), topic) == 30, "30 committed")

    each_client.send(numbered(topic, 10, first=30))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    received = each_client.received(topic, 10)
    each_client.call("push_stop", name=topic)
    assert bodies(received) == texts(10, first=30)


def test_members_share_queues_and_take_over_those_of_a_leaver(
    each_client: Agent, topic: str, names: Names
) -> None:
    for member in ("one", "two"):
        each_client.call("push_start", name=topic + member, group=names.group(), topic=topic)

    def shared() -> bool:
        one, two = (queues_of(each_client, topic + member, topic) for member in ("one", "two"))
        return len(one) == len(two) == 2 and one | two == {0, 1, 2, 3}

    eventually(shared, "two queues for each of two members")
    each_client.call("push_stop", name=topic + "one")
    eventually(
        lambda: queues_of(each_client, topic + "two", topic) == {0, 1, 2, 3},
        "all four queues for the remaining member",
    )
    each_client.send(numbered(topic, 40))
    assert bodies(each_client.received(topic + "two", 40)) == texts(40)
    each_client.call("push_stop", name=topic + "two")


def test_queues_of_a_killed_member_are_taken_over(agents: Agents, topic: str, names: Names) -> None:
    survivor, victim = agents.get("5.3.3-json"), agents.start("4.9.8-json")
    for agent, name in ((survivor, "survivor"), (victim, "victim")):
        agent.call("push_start", name=topic + name, group=names.group(), topic=topic)
    eventually(
        lambda: len(queues_of(survivor, topic + "survivor", topic)) == 2, "two queues for each of two members"
    )

    victim.kill()
    eventually(
        lambda: len(queues_of(survivor, topic + "survivor", topic)) == 4, "all four queues for the survivor"
    )
    survivor.send(numbered(topic, 20))
    assert set(bodies(survivor.received(topic + "survivor", 20))) >= set(texts(20))
    survivor.call("push_stop", name=topic + "survivor")


def test_broadcast_consumers_all_get_every_message(client: Agent, topic: str, names: Names) -> None:
    members = [f"{topic}{number}" for number in range(2)]
    for member in members:
        client.call("push_start", name=member, group=names.group(), topic=topic, model="BROADCASTING")
    client.send(numbered(topic, 20))

    for member in members:
        assert bodies(client.received(member, 20)) == texts(20)
        client.call("push_stop", name=member)


@pytest.mark.parametrize("start", ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"])
def test_new_topic_is_consumed_from_its_start_with_any_start_setting(
    client: Agent, topic: str, names: Names, start: str
) -> None:
    client.send(numbered(topic, 8))
    client.call("push_start", name=topic, group=names.group(), topic=topic, **{"from": start})

    received = client.received(topic, 8)
    client.call("push_stop", name=topic)
    assert bodies(received) == texts(8)


def test_lite_pull_consumer_commits_and_resumes(
    each_client: Agent, topic: str, names: Names, peer: Peer
) -> None:
    each_client.send(numbered(topic, 40))
    each_client.call("lite_start", name=topic, group=names.group(), topic=topic)
    assert bodies(each_client.polled(topic, 40)) == texts(40)
    # RocketMQ's broker loses some of the first commits of a group if they arrive concurrently.
    for _ in range(2 if isinstance(peer, RocketMQ) else 1):
        each_client.call("lite_commit", name=topic)
    queues = each_client.publish_queues(topic)

    def committed() -> int:  # the client commits with one-way requests
        return sum(each_client.call("lite_committed", name=topic, **queue) for queue in queues)

    eventually(lambda: committed() == 40, "40 committed, as the client sees it")
    each_client.call("lite_stop", name=topic)
    # A leaving client commits with one-way requests, which the broker may process later.
    eventually(lambda: committed_at_broker(peer, names.group(), topic) == 40, "40 committed")

    each_client.send(numbered(topic, 4, first=40))
    each_client.call("lite_start", name=topic, group=names.group(), topic=topic)
    received = each_client.polled(topic, 4)
    each_client.call("lite_stop", name=topic)
    assert bodies(received) == texts(4, first=40)


def test_assigned_consumer_can_seek_back(client: Agent, topic: str, names: Names) -> None:
    queue = {"topic": topic, "broker": "broker-a", "queueId": 2}
    client.send([message | queue for message in numbered(topic, 20)])
    client.call("lite_start", name=topic, group=names.group(), topic=topic, assign=True)
    assert len(client.polled(topic, 20)) == 20

    client.call("lite_seek", name=topic, offset=5, **queue)
    again = client.polled(topic, 15)
    client.call("lite_stop", name=topic)
    assert [message["queueOffset"] for message in again] == list(range(5, 20))


def test_client_versions_and_encodings_consume_each_others_messages(
    agents: Agents, topic: str, names: Names
) -> None:
    writers = list(CLIENTS)
    for number, writer in enumerate(writers):
        agents.get(writer).send(numbered(topic, 10, first=10 * number))

    for reader in writers:
        agents.get(reader).call(
            "push_start", name=topic, group=names.group(reader.replace(".", "_")), topic=topic
        )
    for reader in writers:
        count = 10 * len(writers)
        assert bodies(agents.get(reader).received(topic, count)) == texts(count)
        agents.get(reader).call("push_stop", name=topic)


def test_messages_with_one_hash_key_are_polled_in_order(agents: Agents, topic: str, names: Names) -> None:
    client = agents.get("5.3.3-json")
    results = client.send([message | {"hashKey": "one"} for message in numbered(topic, 200)])
    client.call("lite_start", name=topic, group=names.group(), topic=topic)
    received = client.polled(topic, 200)
    client.call("lite_stop", name=topic)

    assert len({result["queueId"] for result in results}) == 1
    assert [message["body"] for message in received] == texts(200)
    assert all(a["queueOffset"] < b["queueOffset"] for a, b in itertools.pairwise(received))


def test_orderly_consumer_keeps_order_across_retries(client: Agent, topic: str, names: Names) -> None:
    wanted = [{"topic": topic, "body": f"{n:04}", "hashKey": f"{n % 3}"} for n in range(9)]
    client.send(wanted)
    client.call("push_start", name=topic, group=names.group(), topic=topic, orderly=True, failures=1)

    received = client.received(topic, 18)
    client.call("push_stop", name=topic)
    for key in range(3):
        bodies_of_key = [m["body"] for m in received if int(m["body"]) % 3 == key and m["reconsumeTimes"] > 0]
        assert bodies_of_key == [f"{n:04}" for n in range(key, 9, 3)]


def test_orderly_consumer_sends_to_the_dead_letter_topic_without_delay(
    agents: Agents, topic: str, names: Names, peer: Peer
) -> None:
    client = agents.get("4.9.8-json")  # counts one retry fewer than 5.x
    client.send([{"topic": topic, "body": f"{n}", "queueId": 0, "broker": "broker-a"} for n in range(3)])
    orderly = {"orderly": True, "failures": 1 << 30, "maxReconsumeTimes": 1}
    client.call("push_start", name=topic, group=names.group(), topic=topic, **orderly)

    dead = {"topic": f"%DLQ%{names.group()}", "broker": "broker-a", "queueId": 0}
    eventually(lambda: end_of(peer, dead["topic"]) == 3, "three dead letters")
    client.call("push_stop", name=topic)
    client.create_topic(peer.broker_address, dead["topic"], queues=1)  # the topic is write-only before
    letters = client.call("pull", group=names.group("_reader"), offset=0, **dead)["messages"]
    assert [letter["body"] for letter in letters] == ["0", "1", "2"]
    assert {letter["properties"]["DELAY"] for letter in letters} == {"-1"}
    assert {letter["properties"]["RETRY_TOPIC"] for letter in letters} == {topic}


def end_of(peer: Peer, topic: str) -> int:
    with Admin(peer.nameserver_address) as admin:
        try:
            return sum(admin.end_offsets(topic).values())
        except ClientError:
            return 0


def test_broker_side_rebalance_assigns_queues_evenly(client: Agent, topic: str, names: Names) -> None:
    for member in ("one", "two"):
        client.call("push_start", name=topic + member, group=names.group(), topic=topic, brokerBalances=True)

    def shared() -> bool:
        one, two = (queues_of(client, topic + member, topic) for member in ("one", "two"))
        return (one, two) in (({0, 1}, {2, 3}), ({2, 3}, {0, 1}))

    eventually(shared, "two queues for each of two members")
    client.send(numbered(topic, 20))

    def received() -> list[Facts]:
        return [message for name in ("one", "two") for message in client.received(topic + name, 0)]

    eventually(lambda: set(bodies(received())) == set(texts(20)), "all messages")
    for member in ("one", "two"):
        client.call("push_stop", name=topic + member)
    assert bodies(received()) == texts(20)
