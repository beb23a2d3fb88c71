"""Typed headers: conversion from and to the string fields of a command, under RocketMQ's keys."""

from __future__ import annotations

import pytest

from actors.wire.headers import (
    GetRouteInfoHeader,
    PullMessageHeader,
    QueryMessageHeader,
    RegisterBrokerHeader,
    SendMessageHeader,
    SendMessageHeaderV1,
    UnregisterClientHeader,
)
from actors.wire.remoting_errors import Refused

V2 = {
    "a": "group",
    "b": "topic",
    "c": "TBW102",
    "d": "4",
    "e": "3",
    "f": "1",
    "g": "1700000000000",
    "h": "7",
    "i": "TAGS\x01a\x02",
    "j": "2",
    "k": "false",
    "l": "16",
    "m": "true",
}


def test_send_header_round_trips_with_one_letter_keys() -> None:
    header = SendMessageHeader.from_ext(V2)
    assert (header.producer_group, header.topic, header.queue_id, header.sys_flag) == ("group", "topic", 3, 1)
    assert (header.born_timestamp, header.flag, header.properties) == (1700000000000, 7, "TAGS\x01a\x02")
    assert (header.reconsume_times, header.max_reconsume_times, header.batch) == (2, 16, True)
    assert header.to_ext() == V2


def test_send_header_is_decoded_from_long_keys() -> None:
    long = SendMessageHeaderV1("group", "topic", 3, "p", sys_flag=1, born_timestamp=5).to_ext()
    assert long["producerGroup"] == "group"
    again = SendMessageHeaderV1.from_ext(long)
    assert (again.topic, again.queue_id, again.properties, again.born_timestamp) == ("topic", 3, "p", 5)
    # librocketmq writes booleans as numbers and omits optional fields
    sparse = {key: long[key] for key in long if key not in ("properties", "reconsumeTimes", "unitMode")}
    assert SendMessageHeaderV1.from_ext({**sparse, "batch": "1"}).batch


@pytest.mark.parametrize("key", list("abcdefgh"))
def test_send_header_without_a_required_field_is_refused_by_name(key: str) -> None:
    with pytest.raises(Refused, match=f"header field `{key}` is missing") as error:
        SendMessageHeader.from_ext({name: value for name, value in V2.items() if name != key})
    assert error.value.code == 1
    with pytest.raises(Refused, match="header field `topic` is missing"):
        SendMessageHeaderV1.from_ext({"producerGroup": "g"})


def test_invalid_number_in_a_header_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"`e` is not a 64-bit integer: 'three'"):
        SendMessageHeader.from_ext({**V2, "e": "three"})
    pull = PullMessageHeader("g", "t", 0, 0).to_ext()
    with pytest.raises(Refused, match="`queueOffset` is not a 64-bit integer"):
        PullMessageHeader.from_ext({**pull, "queueOffset": ""})
    with pytest.raises(Refused, match="`brokerId` is not a 64-bit integer"):
        RegisterBrokerHeader.from_ext(
            {"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "x"}
        )


def test_pull_header_round_trips() -> None:
    header = PullMessageHeader(
        "g", "t", 1, 2, sys_flag=3, suspend_timeout_millis=15000, subscription="a || b"
    )
    again = PullMessageHeader.from_ext(header.to_ext())
    assert (again.consumer_group, again.topic, again.queue_id, again.queue_offset) == ("g", "t", 1, 2)
    assert (again.sys_flag, again.suspend_timeout_millis, again.subscription) == (3, 15000, "a || b")
    assert (again.expression_type, again.max_msg_bytes) == ("TAG", None)


def test_headers_use_rocketmq_keys_and_omit_absent_fields() -> None:
    assert GetRouteInfoHeader("T").to_ext() == {"topic": "T"}
    assert GetRouteInfoHeader("T", True).to_ext() == {"topic": "T", "acceptStandardJsonOnly": "true"}
    assert GetRouteInfoHeader.from_ext({"topic": "T", "bname": "x"}) == GetRouteInfoHeader("T")
    assert UnregisterClientHeader("c", consumer_group="g").to_ext() == {"clientID": "c", "consumerGroup": "g"}
    query = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9"}
    assert QueryMessageHeader.from_ext({**query, "_UNIQUE_KEY_QUERY": "true"}).is_unique_key
    assert RegisterBrokerHeader.from_ext(
        {"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "0", "bodyCrc32": "5"}
    ) == RegisterBrokerHeader("b", "a", "c", 0, body_crc32=5)
    with pytest.raises(Refused, match="header field `topic` is missing"):
        GetRouteInfoHeader.from_ext({})
