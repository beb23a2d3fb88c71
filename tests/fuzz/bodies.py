"""Fuzz targets for JSON bodies, property strings and settings: decode them, or raise the documented error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from actors.access.users import AccessTable
from actors.broker.core.metadata.tables import generations_from_json
from actors.broker.replication.ha.metadata_sync import decode_versions
from actors.broker.replication.raft.message_codec import decode_message, encode_message
from actors.raft import messages as raft
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.wire.bodies import broker, connected, groups, locks, progress, raft_members, routes
from actors.wire.properties_text import parse_properties
from actors.wire.raymq_requests import CommitOffsetsBody, decode_targets
from actors.wire.remoting_errors import Refused
from store.message.json_text import parse_rocketmq_json
from store.message.properties import decode_properties, encode_properties
from store.store_errors import MessageInvalid

Decoder = Callable[[bytes], Any]


def decoders() -> list[Decoder]:
    """Return all functions that decode a request or response body."""
    found: list[Decoder] = [
        CommitOffsetsBody.decode,
        decode_targets,
        AccessTable.decode,
        decode_versions,
        lambda body: generations_from_json(parse_rocketmq_json(body)),
        lambda body: routes.RegisterBrokerBody.decode(body, True),
    ]
    for module in (broker, connected, groups, locks, progress, raft_members, routes):
        for name, each in sorted(vars(module).items()):
            if isinstance(each, type) and hasattr(each, "decode") and each.__module__ == module.__name__:
                found.append(each.decode)
            elif name.startswith("decode_"):
                found.append(each)
    return found


DECODERS = decoders()


def body(data: bytes) -> None:
    """Check that a body is decoded or refused, and that a decoded body can be encoded and decoded again."""
    if not data:
        return
    decode = DECODERS[data[0] % len(DECODERS)]
    try:
        found = decode(data[1:])
    except (Refused, ValueError):
        return
    if hasattr(found, "encode") and not isinstance(found, str):
        decode(found.encode())


def property_string(data: bytes) -> None:
    """Check that any bytes are decoded as properties, which do not change by encoding and decoding them."""
    properties = decode_properties(data)
    try:
        written = encode_properties(properties)
    except MessageInvalid:
        return
    assert decode_properties(written) == properties


def raft_message(data: bytes) -> None:
    """Check that a message of a Raft group is decoded or refused, and survives encoding and decoding."""
    try:
        found = decode_message(data)
    except ValueError:
        return
    assert encode_message(decode_message(encode_message(found))) == encode_message(found)


def settings_text(data: bytes) -> None:
    """Check that a properties file is parsed, or refused with the number of the line."""
    try:
        parse_properties(data.decode(errors="replace"))
    except ValueError as error:
        assert str(error).startswith("line ")  # noqa: PT017 - not every text is an error


def table_text(data: bytes) -> None:
    """Check that RocketMQ's JSON is parsed or refused, and standard JSON is parsed as by a JSON library."""
    try:
        found = parse_rocketmq_json(data)
    except ValueError:
        return
    try:
        strict = orjson.loads(data)
    except ValueError:
        return
    assert found == strict


def seeds_of_bodies() -> list[bytes]:
    """Return bodies that clients send, for each decoder; the first byte selects the decoder."""
    queue = {"topic": "T", "brokerName": "b", "queueId": 0}
    subscription = {"topic": "T", "subString": "*", "tagsSet": ["A"], "codeSet": [65], "subVersion": 1}
    config = {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": {}}
    texts: list[Any] = [
        {}, [], None, {"clientID": 5}, {"offsets": [["T", 0, 1, 2]], "group": "g", "clientId": "c"},
        {"clientID": "c", "producerDataSet": [{"groupName": "p"}],
         "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription]}]},
        {"consumerGroup": "g", "clientId": "c", "mqSet": [queue], "lockOKMQSet": [queue]},
        {"group": "g", "clientId": "c", "subscriptions": {"T": "*"}, "owned": [["T", "b", 0, 1]]},
        {"topicConfigSerializeWrapper": {"topicConfigTable": {"T": config}, "dataVersion": {"counter": 1}}},
        {"queueDatas": [{"brokerName": "b", "readQueueNums": 4}],
         "brokerDatas": [{"brokerAddrs": {"0": "127.0.0.1:1"}, "brokerName": "b", "cluster": "c"}]},
        {"offsetTable": {"a": 1}, "table": {"a": "b"}, "topicList": ["T"],
         "connectionSet": [{"clientId": "c"}]},
        [["topic", "T", "pub"], ["group", "g", "sub"]],
        {"21": 1, "7208": 5}, {"generations": {"T@g": {"0": 1}}},
        {"group": "g", "term": 3, "members": [{"replica": 1, "storeId": "b", "isVoter": True}]},
        {"locks": [["g", "c", "T", "b", 0, 1, 60000]]},
        {"users": [{"username": "u", "password": "p"}], "acls": [{"subject": "User:u", "policies": [
            {"entries": [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]}]}]},
        {"brokerAddrTable": {"b": {"brokerAddrs": {"0": "x"}}}, "clusterAddrTable": {"c": ["b"]}},
    ]  # fmt: skip
    made = [orjson.dumps(text) for text in texts]
    made.append(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":1}}}')
    return [bytes([index]) + text for index in range(len(DECODERS)) for text in made]


def seeds_of_raft_messages() -> list[bytes]:
    """Return one message of each kind that replicas of a Raft group send each other."""
    a, b = Member(0, "a"), Member(1, "b")
    history = (GroupRecord(5, 3, Members((a, b), (Member(2, "c"),), (("c", "h:1"),))),)
    return [
        encode_message(each)
        for each in (
            raft.VoteRequest(a, 3, True, 2, 100), raft.VoteResponse(a, 3, 3, False, True),
            raft.FetchRequest(a, 3, 7, 100, 2, 90, True), raft.Records(a, 3, 7, 0, 5, 9, history, b"records"),
            raft.Mismatch(a, 3, 7, 2, 50), raft.JoinFrom(a, 3, 7, 4096, history),
            raft.NotServed(a, 3, -1, b, "not the leader"), raft.NotServed(a, 3, 7, None, ""),
            raft.Ack(a, 3, 90), raft.LeaderNotice(a, 3), raft.CampaignNow(a, 3),
            raft.RepairRequest(a, 3, 10, 20), raft.RepairBytes(a, 3, 10, b"records"),
        )
    ]  # fmt: skip
