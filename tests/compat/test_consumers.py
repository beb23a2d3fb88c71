"""RocketMQ's Java consumers: pushed, pulled, balanced among members, and going on where they were."""

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
    """The sum of a group's offsets, asked by one who does not join it."""
    with Admin(peer.nameserver_address) as admin:
        return sum(offset or 0 for offset in admin.committed_offsets(group, topic).values())


def queues_of(agent: Agent, name: str, topic: str) -> set[int]:
    queues = agent.call("push_queues", name=name)
    return {queue["queueId"] for queue in queues if queue["topic"] == topic}


def test_a_push_consumer_gets_what_was_there_and_what_comes(
    each_client: Agent, topic: str, names: Names
) -> None:
    each_client.send(numbered(topic, 50))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    assert bodies(each_client.received(topic, 50)) == texts(50)

    each_client.send(numbered(topic, 5, first=50))
    assert bodies(each_client.received(topic, 55)) == texts(55)
    each_client.call("push_stop", name=topic)


@pytest.mark.parametrize("version", [DEFAULT_CLIENT, *OTHER_CLIENTS])
def test_a_heartbeat_under_way_keeps_no_consumer_waiting(
    kit: JavaKit, peer: Peer, topic: str, names: Names, tmp_path: Path, version: str
) -> None:
    if not isinstance(peer, RayMQ):
        pytest.skip("RocketMQ refuses a consumer's pulls until its next rebalance then")
    profile, encoding = CLIENTS[version]
    no_second_rebalance = f"-Drocketmq.client.rebalance.waitInterval={int(NEVER_S * 1000)}"
    with Agent(
        kit, profile, peer.nameserver_address, tmp_path, encoding=encoding, jvm=[no_second_rebalance]
    ) as agent:
        agent.send(numbered(topic, 20))
        # The second one, a second after the start, is under way when the queues are shared out.
        agent.call("push_start", name=topic, group=names.group(), topic=topic, heartbeatTakesMs=200)
        received = agent.received(topic, 20)
        agent.call("push_stop", name=topic)
    assert bodies(received) == texts(20)


def test_tags_choose_what_a_group_gets(each_client: Agent, topic: str, names: Names) -> None:
    each_client.call("push_start", name=topic, group=names.group(), topic=topic, expression="Tag0 || Tag2")
    each_client.send(numbered(topic, 60))

    received = each_client.received(topic, 40)
    each_client.call("push_stop", name=topic)
    assert {message["tags"] for message in received} == {"Tag0", "Tag2"}
    assert len(received) == 40


def test_a_group_goes_on_where_it_was(each_client: Agent, topic: str, names: Names, peer: Peer) -> None:
    each_client.send(numbered(topic, 30))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    assert len(each_client.received(topic, 30)) == 30
    each_client.call("push_stop", name=topic)
    # A client that leaves commits one-way: its broker may hear of it later.
    eventually(lambda: committed_at_broker(peer, names.group(), topic) == 30, "30 committed")

    each_client.send(numbered(topic, 10, first=30))
    each_client.call("push_start", name=topic, group=names.group(), topic=topic)
    received = each_client.received(topic, 10)
    each_client.call("push_stop", name=topic)
    assert bodies(received) == texts(10, first=30)


def test_members_share_the_queues_and_heirs_take_over(each_client: Agent, topic: str, names: Names) -> None:
    for member in ("one", "two"):
        each_client.call("push_start", name=topic + member, group=names.group(), topic=topic)

    def shared() -> bool:
        one, two = (queues_of(each_client, topic + member, topic) for member in ("one", "two"))
        return len(one) == len(two) == 2 and one | two == {0, 1, 2, 3}

    eventually(shared, "two queues for each of two members")
    each_client.call("push_stop", name=topic + "one")
    eventually(
        lambda: queues_of(each_client, topic + "two", topic) == {0, 1, 2, 3},
        "all four for the one that stayed",
    )
    each_client.send(numbered(topic, 40))
    assert bodies(each_client.received(topic + "two", 40)) == texts(40)
    each_client.call("push_stop", name=topic + "two")


def test_a_member_that_dies_leaves_its_queues_to_the_others(agents: Agents, topic: str, names: Names) -> None:
    survivor, victim = agents.get("5.3.3-json"), agents.start("4.9.8-json")
    for agent, name in ((survivor, "survivor"), (victim, "victim")):
        agent.call("push_start", name=topic + name, group=names.group(), topic=topic)
    eventually(
        lambda: len(queues_of(survivor, topic + "survivor", topic)) == 2, "two queues for each of two members"
    )

    victim.kill()
    eventually(lambda: len(queues_of(survivor, topic + "survivor", topic)) == 4, "all four for the survivor")
    survivor.send(numbered(topic, 20))
    assert set(bodies(survivor.received(topic + "survivor", 20))) >= set(texts(20))
    survivor.call("push_stop", name=topic + "survivor")


def test_everyone_who_listens_to_a_broadcast_gets_all(client: Agent, topic: str, names: Names) -> None:
    members = [f"{topic}{number}" for number in range(2)]
    for member in members:
        client.call("push_start", name=member, group=names.group(), topic=topic, model="BROADCASTING")
    client.send(numbered(topic, 20))

    for member in members:
        assert bodies(client.received(member, 20)) == texts(20)
        client.call("push_stop", name=member)


@pytest.mark.parametrize("start", ["CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"])
def test_a_young_topic_is_read_from_its_start_whatever_is_asked(
    client: Agent, topic: str, names: Names, start: str
) -> None:
    client.send(numbered(topic, 8))
    client.call("push_start", name=topic, group=names.group(), topic=topic, **{"from": start})

    received = client.received(topic, 8)
    client.call("push_stop", name=topic)
    assert bodies(received) == texts(8)


def test_a_lite_pull_consumer_polls_commits_and_goes_on(
    each_client: Agent, topic: str, names: Names, peer: Peer
) -> None:
    each_client.send(numbered(topic, 40))
    each_client.call("lite_start", name=topic, group=names.group(), topic=topic)
    assert bodies(each_client.polled(topic, 40)) == texts(40)
    # Of a group's first commits that come side by side RocketMQ's broker keeps only some.
    for _ in range(2 if isinstance(peer, RocketMQ) else 1):
        each_client.call("lite_commit", name=topic)
    queues = each_client.publish_queues(topic)

    def committed() -> int:  # the client commits one-way
        return sum(each_client.call("lite_committed", name=topic, **queue) for queue in queues)

    eventually(lambda: committed() == 40, "40 committed, as the client sees it")
    each_client.call("lite_stop", name=topic)
    # A client that leaves commits one-way: its broker may hear of it later.
    eventually(lambda: committed_at_broker(peer, names.group(), topic) == 40, "40 committed")

    each_client.send(numbered(topic, 4, first=40))
    each_client.call("lite_start", name=topic, group=names.group(), topic=topic)
    received = each_client.polled(topic, 4)
    each_client.call("lite_stop", name=topic)
    assert bodies(received) == texts(4, first=40)


def test_an_assigned_consumer_seeks_back(client: Agent, topic: str, names: Names) -> None:
    queue = {"topic": topic, "broker": "broker-a", "queueId": 2}
    client.send([message | queue for message in numbered(topic, 20)])
    client.call("lite_start", name=topic, group=names.group(), topic=topic, assign=True)
    assert len(client.polled(topic, 20)) == 20

    client.call("lite_seek", name=topic, offset=5, **queue)
    again = client.polled(topic, 15)
    client.call("lite_stop", name=topic)
    assert [message["queueOffset"] for message in again] == list(range(5, 20))


def test_versions_and_encodings_read_each_others_messages(agents: Agents, topic: str, names: Names) -> None:
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


def test_order_within_a_queue_is_kept_while_members_come(agents: Agents, topic: str, names: Names) -> None:
    client = agents.get("5.3.3-json")
    results = client.send([message | {"hashKey": "one"} for message in numbered(topic, 200)])
    client.call("lite_start", name=topic, group=names.group(), topic=topic)
    received = client.polled(topic, 200)
    client.call("lite_stop", name=topic)

    assert len({result["queueId"] for result in results}) == 1
    assert [message["body"] for message in received] == texts(200)
    assert all(a["queueOffset"] < b["queueOffset"] for a, b in itertools.pairwise(received))


def test_in_order_although_each_fails_once(client: Agent, topic: str, names: Names) -> None:
    wanted = [{"topic": topic, "body": f"{n:04}", "hashKey": f"{n % 3}"} for n in range(9)]
    client.send(wanted)
    client.call("push_start", name=topic, group=names.group(), topic=topic, orderly=True, failures=1)

    received = client.received(topic, 18)
    client.call("push_stop", name=topic)
    for key in range(3):
        bodies_of_key = [m["body"] for m in received if int(m["body"]) % 3 == key and m["reconsumeTimes"] > 0]
        assert bodies_of_key == [f"{n:04}" for n in range(key, 9, 3)]


def test_a_consumer_in_order_gives_up_to_the_dead_letters_at_once(
    agents: Agents, topic: str, names: Names, peer: Peer
) -> None:
    client = agents.get("4.9.8-json")  # counts one retry less than 5.x
    client.send([{"topic": topic, "body": f"{n}", "queueId": 0, "broker": "broker-a"} for n in range(3)])
    orderly = {"orderly": True, "failures": 1 << 30, "maxReconsumeTimes": 1}
    client.call("push_start", name=topic, group=names.group(), topic=topic, **orderly)

    dead = {"topic": f"%DLQ%{names.group()}", "broker": "broker-a", "queueId": 0}
    eventually(lambda: end_of(peer, dead["topic"]) == 3, "three dead")
    client.call("push_stop", name=topic)
    client.create_topic(peer.broker_address, dead["topic"], queues=1)  # it is write-only until then
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


def test_a_client_that_leaves_balancing_to_the_broker_gets_its_share(
    client: Agent, topic: str, names: Names
) -> None:
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
