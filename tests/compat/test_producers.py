"""RocketMQ's Java producers: messages are stored as acknowledged and read back unchanged."""

from __future__ import annotations

import hashlib
import socket
import struct
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.compat.agent import Agent, Facts, OperationFailed
from tests.compat.conftest import MAX_MESSAGE_BYTES, Agents, Names
from tests.compat.peers import Peer
from tests.eventually import LIMIT_S, eventually

pytestmark = pytest.mark.java

MESSAGE_ILLEGAL = 13
INVALID_QUEUE = 29
NO_ROUTE = 10005


def read_all(client: Agent, topic: str, group: str = "G_reader") -> list[Facts]:
    """Pull all messages of the topic, queue by queue."""
    found: list[Facts] = []
    for queue in client.publish_queues(topic):
        offset, end = 0, next(o["max"] for o in client.offsets(topic) if o["queueId"] == queue["queueId"])
        while offset < end:
            pulled = client.call("pull", group=group, offset=offset, **queue)
            assert pulled["status"] == "FOUND", pulled
            found += pulled["messages"]
            offset = pulled["next"]
    return found


def assert_queues_are_without_gaps(results: Sequence[Facts]) -> None:
    offsets = defaultdict(list)
    for result in results:
        offsets[result["queueId"]].append(result["queueOffset"])
    for queue_id, taken in offsets.items():
        assert sorted(taken) == list(range(len(taken))), f"queue {queue_id}: {sorted(taken)}"


def messages_for(topic: str, count: int) -> list[Facts]:
    return [
        {
            "topic": topic,
            "body": f"body {number} – ключ",
            "tags": f"Tag{number % 3}",
            "keys": f"key{number} group{number % 5}",
            "properties": {"colour": "синий", "number": str(number)},
            "flag": number,
        }
        for number in range(count)
    ]


def facts_sent(message: Facts) -> tuple[object, ...]:
    return (message["body"], message["tags"], message["keys"], message["flag"])


def test_sync_sends_are_acknowledged_and_read_back_unchanged(each_client: Agent, topic: str) -> None:
    wanted = messages_for(topic, 40)
    results = each_client.send_dispatched(wanted)

    assert [result["status"] for result in results] == ["SEND_OK"] * 40
    assert {result["queueId"] for result in results} == {0, 1, 2, 3}
    assert_queues_are_without_gaps(results)
    read = {message["msgId"]: message for message in read_all(each_client, topic)}
    assert len(read) == 40
    for sent, result in zip(wanted, results, strict=True):
        message = read[result["msgId"]]
        assert facts_sent(message) == facts_sent(sent)
        assert (
            message["properties"].items()
            >= {"colour": "синий", "number": sent["properties"]["number"]}.items()
        )
        assert (message["queueId"], message["queueOffset"]) == (result["queueId"], result["queueOffset"])
        assert message["bornTimestamp"] <= message["storeTimestamp"] + 1


def test_offset_message_id_has_broker_address_and_finds_the_message(
    each_client: Agent, topic: str, peer: Peer
) -> None:
    [result] = each_client.send([{"topic": topic, "body": "find me"}])

    host, port, offset = struct.unpack(">4siq", bytes.fromhex(result["offsetMsgId"]))
    assert f"{socket.inet_ntoa(host)}:{port}" == peer.broker_address
    seen = each_client.call("view", topic=topic, msgId=result["offsetMsgId"])
    assert (seen["body"], seen["commitLogOffset"], seen["msgId"]) == ("find me", offset, result["msgId"])


def test_async_sends_are_all_acknowledged(each_client: Agent, topic: str) -> None:
    results = each_client.send(messages_for(topic, 300), mode="async")

    assert [result.get("status") for result in results] == ["SEND_OK"] * 300
    assert len({result["msgId"] for result in results}) == 300
    assert_queues_are_without_gaps(results)
    eventually(lambda: sum(queue["max"] for queue in each_client.offsets(topic)) == 300, "the dispatch")


def test_oneway_sends_are_stored(each_client: Agent, topic: str) -> None:
    assert each_client.send(messages_for(topic, 50), mode="oneway") == [None] * 50

    each_client.call("lite_start", name=topic, group=f"{topic}_g", topic=topic, assign=True)
    received = each_client.polled(topic, 50)
    each_client.call("lite_stop", name=topic)
    assert sorted(message["flag"] for message in received) == list(range(50))


def test_batch_is_stored_in_one_queue_in_order(each_client: Agent, topic: str) -> None:
    wanted = messages_for(topic, 10)
    result = each_client.call("send_batch", messages=wanted)

    assert result["status"] == "SEND_OK"
    assert len(result["offsetMsgId"].split(",")) == 10
    assert len(result["msgId"].split(",")) == 10
    assert result["traceOn"]
    eventually(lambda: sum(queue["max"] for queue in each_client.offsets(topic)) == 10, "the dispatch")
    read = read_all(each_client, topic)
    assert {message["queueId"] for message in read} == {result["queueId"]}
    assert [message["queueOffset"] for message in read] == list(range(10))
    assert [facts_sent(message) for message in read] == [facts_sent(message) for message in wanted]
    for identity, message in zip(result["offsetMsgId"].split(","), read, strict=True):
        assert int(identity[16:], 16) == message["commitLogOffset"]


def test_vip_channel_port_serves_clients(client: Agent, topic: str, names: Names) -> None:
    assert client.call("send_vip", topic=topic, body="by the VIP channel")["status"] == "SEND_OK"

    client.call("push_start", name=topic, group=names.group(), topic=topic, vip=True)
    received = client.received(topic, 1)
    client.call("push_stop", name=topic)
    assert [message["body"] for message in received] == ["by the VIP channel"]


def test_message_of_an_open_transaction_is_hidden(client: Agent, topic: str) -> None:
    assert client.call("send_in_transaction", topic=topic, body="half")["status"] == "SEND_OK"
    client.send_dispatched([{"topic": topic, "body": "after it"}])
    assert [message["body"] for message in read_all(client, topic)] == ["after it"]


def test_large_body_is_stored_compressed_and_read_decompressed(each_client: Agent, topic: str) -> None:
    body = "so long " * 2000
    each_client.send_dispatched([{"topic": topic, "body": body}])

    [message] = read_all(each_client, topic)
    assert message["storeSize"] < len(body) // 2
    assert message["bodyLength"] == len(body)
    assert message["bodySha1"] == hashlib.sha1(body.encode()).hexdigest()


def test_queue_selector_keeps_a_key_in_one_queue(client: Agent, topic: str) -> None:
    results = client.send([{"topic": topic, "body": "x", "hashKey": f"plane{n % 7}"} for n in range(70)])

    queues = [{result["queueId"] for result in results[first::7]} for first in range(7)]
    assert all(len(one) == 1 for one in queues), queues
    assert len(set.union(*queues)) > 1


def test_body_over_the_limit_is_refused_as_illegal_message(each_client: Agent, topic: str) -> None:
    [result] = each_client.send([{"topic": topic, "bodySize": MAX_MESSAGE_BYTES + 1}])

    assert result["code"] == MESSAGE_ILLEGAL, result
    [fits] = each_client.send([{"topic": topic, "bodySize": MAX_MESSAGE_BYTES // 2}])
    assert fits["status"] == "SEND_OK"


def test_send_to_a_missing_queue_is_refused(client: Agent, topic: str) -> None:
    [result] = client.send([{"topic": topic, "body": "x", "broker": "broker-a", "queueId": 99}])

    assert result["code"] == INVALID_QUEUE, result


def test_send_to_a_missing_topic_finds_no_route(each_client: Agent) -> None:
    [result] = each_client.send([{"topic": "MissingTopic", "body": "x"}])

    assert result["code"] == NO_ROUTE, result


def test_topic_with_an_invalid_name_is_not_created(client: Agent, peer: Peer) -> None:
    with pytest.raises(OperationFailed):
        client.create_topic(peer.broker_address, "no spaces allowed")


def test_request_reply_returns_the_reply(agents: Agents, topic: str, names: Names) -> None:
    # The client 5.3.3 stops waiting as soon as its request is stored, with either broker.
    client = agents.get("4.9.8-json")
    client.call("push_start", name=topic, group=names.group(), topic=topic, replies=True)
    reply = client.call("request", topic=topic, body="again ", timeoutMs=int(LIMIT_S * 1000))
    assert reply["body"] == "again again "
    assert reply["properties"]["MSG_TYPE"] == "reply"
    client.call("push_stop", name=topic)


def test_request_without_reply_times_out(client: Agent, topic: str) -> None:
    # The client 5.3.3 stops waiting early, see above.
    with pytest.raises(OperationFailed, match="RequestTimeoutException"):
        client.call("request", topic=topic, body="hello?", timeoutMs=int(LIMIT_S * 1000))
