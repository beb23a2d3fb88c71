"""Bodies of Java, C++ and Python clients round-trip or are decoded; invalid bodies are refused."""

from __future__ import annotations

import struct
import zlib

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.wire.bodies import routes
from actors.wire.bodies.groups import (
    AssignedQueue,
    ConsumerData,
    GroupMembers,
    HeartbeatData,
    SubscriptionData,
    SyncGroupReply,
    SyncGroupRequest,
)
from actors.wire.bodies.routes import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)
from actors.wire.remoting_errors import Refused
from store.message.data_version import DataVersion
from store.message.message_queue import MessageQueue


def test_route_json_has_rocketmq_shape_and_quoted_broker_ids() -> None:
    route = TopicRouteData([QueueData("b0", 4, 8, 6)], [BrokerData("C", "b0", {1: "h:2", 0: "h:1"})], "b0:4")
    assert orjson.loads(route.encode()) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "h:1", "1": "h:2"},
                "brokerName": "b0",
                "cluster": "C",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "orderTopicConf": "b0:4",
        "queueDatas": [
            {"brokerName": "b0", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
        ],
    }
    assert TopicRouteData.decode(route.encode()) == route
    info = ClusterInfo({"b0": route.broker_datas[0]}, {"C": ["b0"]})
    assert ClusterInfo.decode(info.encode()) == info


@pytest.mark.parametrize("hold", [bytes, bytearray, memoryview])
def test_cluster_info_with_unquoted_broker_ids_is_decoded(hold: type[bytes]) -> None:
    body = (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911",1:"h{2:3"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["broker-a"]}}'
    )
    broker = BrokerData("C", "broker-a", {0: "127.0.0.1:10911", 1: "h{2:3"})
    assert ClusterInfo.decode(hold(body)) == ClusterInfo({"broker-a": broker}, {"C": ["broker-a"]})


@pytest.mark.parametrize(
    "unterminated",
    [
        b'{"' + b'\\"' * 500_000,
        b'{"' + b'\\"' * 500_000 + b"\\",
        b'{{"' + b'\\"' * 500_000,
        b'{{"a"' * 200_000,
    ],
)
def test_body_with_unterminated_string_is_refused_quickly(unterminated: bytes) -> None:
    """A decoder that backtracked to each quote would take hours."""
    with pytest.raises(Refused, match="not a valid ClusterInfo"):
        ClusterInfo.decode(unterminated)


def topic_config(name: str) -> dict[str, object]:
    return {
        "topicName": name,
        "readQueueNums": 4,
        "writeQueueNums": 8,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }


def compressed(body: RegisterBrokerBody, attributes: str = "") -> bytes:
    """The form that Java brokers send with `compressed=true`."""
    parts = [orjson.dumps(body.data_version.to_json())]
    data = b"".join(struct.pack(">i", len(part)) + part for part in parts)
    data += struct.pack(">i", len(body.topic_configs))
    for name in body.topic_configs:
        text = f"{name} 4 8 6 SINGLE_TAG{attributes}".encode()
        data += struct.pack(">i", len(text)) + text
    servers = orjson.dumps(body.filter_servers)
    return zlib.compress(data + struct.pack(">i", len(servers)) + servers + struct.pack(">i", 0), 9)


@pytest.mark.parametrize("attributes", ["", ' {"+message.type":"FIFO"}'])
def test_registration_is_decoded_plain_and_compressed(attributes: str) -> None:
    body = RegisterBrokerBody(DataVersion(3, 1700000000000, 2), {"T": topic_config("T")}, ["f:1"])
    assert RegisterBrokerBody.decode(body.encode()) == body
    found = RegisterBrokerBody.decode(compressed(body, attributes), compressed=True)
    assert found.data_version == body.data_version
    assert found.filter_servers == ["f:1"]
    config = found.topic_configs["T"]
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (4, 8, 6)


@settings(max_examples=80, deadline=None)
@given(cut=st.integers(0, 100), value=st.binary(min_size=1, max_size=3))
def test_damaged_compressed_registration_is_refused(cut: int, value: bytes) -> None:
    body = RegisterBrokerBody(DataVersion(), {"T": topic_config("T")})
    whole = bytearray(zlib.decompress(compressed(body)))
    whole[cut : cut + len(value)] = value
    for data in (zlib.compress(whole), bytes(whole)):
        try:
            RegisterBrokerBody.decode(data, compressed=True)
        except Refused as error:
            assert error.code == 1  # noqa: PT017 - some damage leaves a valid body


def test_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_INFLATED_BYTES", 100_000)
    with pytest.raises(Refused, match="decompresses to more than 100,000 bytes"):
        RegisterBrokerBody.decode(zlib.compress(bytes(200_000)), compressed=True)


def test_java_heartbeat_round_trips() -> None:
    heartbeat = HeartbeatData(
        "10.0.0.1@77#123",
        [ConsumerData("g", subscriptions=[SubscriptionData("T", "a || b", ["a", "b"], [97, 98], 5)])],
        ["pg"],
    )
    assert HeartbeatData.decode(heartbeat.encode()) == heartbeat


def test_librocketmq_heartbeat_with_numeric_enums_and_string_numbers_is_decoded() -> None:
    found = HeartbeatData.decode(
        b'{"clientID":"7-10.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g",'
        b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1700","topic":"T"}]}]}'
    )
    (consumer,) = found.consumers
    assert consumer == ConsumerData(
        "g",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
        [SubscriptionData("T", "*", sub_version=1700)],
    )
    assert found.producer_groups == []


def test_sync_group_request_and_response_round_trip() -> None:
    owned = [AssignedQueue(MessageQueue("T", "b", 3), 9)]
    request = SyncGroupRequest("g", "c", 9, {"T": "*"}, owned, "averagely", 10_000, -5, True)
    assert SyncGroupRequest.decode(request.encode()) == request
    reply = SyncGroupReply(9, owned, owned, ["c"], False, 15_000)
    assert SyncGroupReply.decode(reply.encode()) == reply
    members = GroupMembers(("a", "b"), True)
    assert GroupMembers.decode(members.encode()) == members
    assert orjson.loads(members.encode())["consumerIdList"] == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "remark"),
    [
        (b"", "not a valid SYNC_GROUP request"),
        (b"[]", "it holds a list, not an object"),
        (b"{}", "must have `group` and `clientId`"),
        (b'{"group":"g","clientId":"c","owned":5}', "field `owned` of the body must be a list: '5'"),
        (b'{"group":"g","clientId":"c","owned":[["T","b"]]}', "is not a valid queue"),
        (b'{"group":"g","clientId":"c","subscriptions":[]}', "`subscriptions`"),
        (b'{"group":"g","clientId":"c","generation":"x"}', "`generation` of the body must be an integer"),
        (b'{"group":{},"clientId":"c"}', "`group` of the body"),
    ],
)
def test_invalid_sync_group_request_is_refused_naming_the_field(body: bytes, remark: str) -> None:
    with pytest.raises(Refused) as error:
        SyncGroupRequest.decode(body)
    assert remark in error.value.remark


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = ["clientID", "consumerDataSet", "producerDataSet", "brokerDatas", "queueDatas", "filterServerTable"]


@settings(max_examples=80, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(KEYS), json_values))
def test_arbitrary_json_is_decoded_or_refused(fields: dict[str, object]) -> None:
    for kind in (HeartbeatData, TopicRouteData, ClusterInfo, RegisterBrokerBody):
        try:
            kind.decode(orjson.dumps(fields))
        except Refused as error:
            assert error.code == 1  # noqa: PT017 - any input may or may not be an error
