"""Subscription groups: creation on first use, and refusals."""

from __future__ import annotations

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.groups import Groups
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.group_config import SubscriptionGroupConfig
from store.metadata import SubscriptionGroupTable


def groups_of(clock, **settings) -> tuple[Groups, list[str]]:
    changed: list[str] = []
    return Groups(BrokerSettings(**settings), SubscriptionGroupTable(clock), changed.append), changed


def test_group_is_created_on_first_use(clock) -> None:
    groups, changed = groups_of(clock)
    assert groups.get("G").retry_max_times == 16
    assert groups.get("G") is groups.get("G")
    assert changed == ["G"]
    groups.delete("G")
    groups.delete("G")
    assert changed == ["G", "G"]


def test_unknown_group_is_refused_without_auto_create(clock) -> None:
    groups, _ = groups_of(clock, auto_create_groups=False)
    with pytest.raises(Refused, match="auto_create_groups") as refused:
        groups.get("G")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert groups.get("TOOLS_CONSUMER").consume_broadcast_enable
    assert groups.get("CID_RMQ_SYS_X").group_name == "CID_RMQ_SYS_X"


def test_group_without_consume_permission_is_refused(clock) -> None:
    groups, _ = groups_of(clock)
    groups.update(SubscriptionGroupConfig("G", consume_enable=False))
    with pytest.raises(Refused) as refused:
        groups.for_consuming("G")
    assert refused.value.code == ResponseCode.NO_PERMISSION


def test_invalid_group_name_is_refused(clock) -> None:
    groups, _ = groups_of(clock)
    with pytest.raises(Refused) as refused:
        groups.get("a group")
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_group_of_a_retry_topic_is_an_existing_one(clock) -> None:
    groups, _ = groups_of(clock)
    for name in ("a", "a_b", "a_b_c"):
        groups.get(name)
    for topic, group in {
        "%RETRY%a": "a",
        "%RETRY%a_b": "a_b",
        "%RETRY%a_topic": "a",
        "%RETRY%a_b_topic": "a_b",
        "%RETRY%a_b+a_topic": "a_b",
        "%RETRY%unknown_topic": "unknown_topic",
    }.items():
        assert groups.of_retry_topic(topic) == group, topic


def test_group_attributes_are_changed_individually(clock) -> None:
    groups, _ = groups_of(clock)
    groups.update(SubscriptionGroupConfig("G", attributes={"+priority.factor": "80"}))
    groups.update(SubscriptionGroupConfig("G", retry_max_times=3))
    assert groups.get("G").attributes == {"priority.factor": "80"}
    groups.update(SubscriptionGroupConfig("G", attributes={"priority.factor": "0"}))
    assert groups.get("G").attributes == {"priority.factor": "0"}
    for changes, remark in (
        ({"+priority.factor": "101"}, "value is not in range(0, 100)"),
        ({"+nosuch": "1"}, "unsupported key: nosuch"),
    ):
        with pytest.raises(Refused) as refused:
            groups.update(SubscriptionGroupConfig("G", attributes=changes))
        assert refused.value.remark == remark
    groups.update(SubscriptionGroupConfig("G", attributes={"-priority.factor": ""}))
    assert groups.get("G").attributes == {}
