"""Topics: creation, permissions, attributes and deletion, with RocketMQ's response codes and remarks."""

from __future__ import annotations

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.topics import BENCHMARK_TOPIC, DEFAULT_TOPIC, Topics
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.topic_config import TopicConfig
from store.metadata import TopicConfigTable


def topics_of(clock, **settings) -> tuple[Topics, list[str]]:
    changed: list[str] = []
    return Topics(
        BrokerSettings(**settings), TopicConfigTable(clock), changed.append, lambda name: None
    ), changed


def refusal_of(action) -> Refused:
    with pytest.raises(Refused) as refused:
        action()
    return refused.value


def test_new_broker_has_rocketmqs_system_topics(clock) -> None:
    topics, _ = topics_of(clock, cluster_name="C", broker_name="b")
    expected = {
        "SELF_TEST_TOPIC": 1, "TBW102": 8, "BenchmarkTest": 1024, "C": 16, "b": 1, "OFFSET_MOVED_EVENT": 1,
        "SCHEDULE_TOPIC_XXXX": 18, "C_REPLY_TOPIC": 1, "rmq_sys_REVIVE_LOG_C": 8,
        "rmq_sys_SYNC_BROKER_MEMBER_b": 1, "RMQ_SYS_TRANS_HALF_TOPIC": 1, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
        "rmq_sys_wheel_timer": 1,
    }  # fmt: skip
    assert {name: topic.write_queue_nums for name, topic in topics.table.topics.items()} == expected
    assert topics.get("TBW102").perm == 7


def test_send_creates_a_topic_with_the_smaller_queue_count(clock) -> None:
    topics, changed = topics_of(clock)
    assert topics.for_sending("T", DEFAULT_TOPIC, 4).write_queue_nums == 4
    assert topics.for_sending("U", DEFAULT_TOPIC, 64).write_queue_nums == 8
    assert topics.get("T").perm == 6
    assert changed == ["T", "U"]


def test_unknown_topic_is_refused_without_auto_create(clock) -> None:
    topics, _ = topics_of(clock, auto_create_topics=False)
    refused = refusal_of(lambda: topics.for_sending("T", DEFAULT_TOPIC, 4))
    assert refused.code == ResponseCode.TOPIC_NOT_EXIST
    assert "'T'" in refused.remark
    assert "auto_create_topics" in refused.remark
    assert topics.find(DEFAULT_TOPIC) is None


@pytest.mark.parametrize("name", ["", "a b", "ü", "x" * 128])
def test_invalid_topic_names_are_refused(clock, name: str) -> None:
    topics, _ = topics_of(clock)
    assert (
        refusal_of(lambda: topics.for_sending(name, DEFAULT_TOPIC, 4)).code == ResponseCode.INVALID_PARAMETER
    )
    assert refusal_of(lambda: topics.update(TopicConfig(name))).code == ResponseCode.INVALID_PARAMETER


def test_light_message_queue_topics_are_refused(clock) -> None:
    topics, changed = topics_of(clock)
    for action in (
        lambda: topics.for_sending("%LMQ%mine", DEFAULT_TOPIC, 4),
        lambda: topics.update(TopicConfig("%LMQ%mine")),
    ):
        refused = refusal_of(action)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "'%LMQ%mine'" in refused.remark
        assert "not supported" in refused.remark
    assert changed == []


def test_missing_permission_refuses_pulls_but_not_sends(clock) -> None:
    topics, _ = topics_of(clock)
    topics.update(TopicConfig("R", perm=4))
    topics.update(TopicConfig("W", perm=2))
    assert topics.for_sending("R", DEFAULT_TOPIC, 4).perm == 4
    assert refusal_of(lambda: topics.for_pulling("W")).code == ResponseCode.NO_PERMISSION
    assert topics.for_pulling("R").perm == 4


def test_system_topics_cannot_be_changed_or_written(clock) -> None:
    topics, _ = topics_of(clock)
    for action in (
        lambda: topics.for_sending("SCHEDULE_TOPIC_XXXX", DEFAULT_TOPIC, 4),
        lambda: topics.delete("SCHEDULE_TOPIC_XXXX"),
        lambda: topics.update(TopicConfig("SCHEDULE_TOPIC_XXXX", write_queue_nums=1)),
        lambda: topics.update(TopicConfig(BENCHMARK_TOPIC, read_queue_nums=8, write_queue_nums=8)),
        lambda: topics.delete("rmq_sys_anything"),
    ):
        assert refusal_of(action).code in {ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER}
    assert topics.get(BENCHMARK_TOPIC).write_queue_nums == 1024


ATTRIBUTES_REFUSED = [
    ({"+nosuch": "1"}, "unsupported key: nosuch"),
    (
        {"+message.type": "WRONG"},
        "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY, LITE, NORMAL]",
    ),
    ({"+message.type": "MIXED"}, "MIXED message type is not supported."),
    ({"-message.type": ""}, "only add attribute is supported while creating topic. key: message.type"),
    ({"+message.type": "FIFO", "message.type": "DELAY"}, "alter duplication key. key: message.type"),
    ({"+": "1"}, "kv string format wrong."),
    ({"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
    ({"+reserve.time": "soon"}, 'For input string: "soon"'),
    (
        {"+queue.type": "BatchCQ"},
        "topic attribute queue.type=BatchCQ is not supported by this broker: leave it out",
    ),
    (
        {"+cleanup.policy": "COMPACTION"},
        "topic attribute cleanup.policy=COMPACTION is not supported by this broker: leave it out",
    ),
]


@pytest.mark.parametrize(("attributes", "remark"), ATTRIBUTES_REFUSED)
def test_invalid_attribute_is_refused(clock, attributes: dict[str, str], remark: str) -> None:
    topics, changed = topics_of(clock)
    assert refusal_of(lambda: topics.update(TopicConfig("T", attributes=attributes))).remark == remark
    assert changed == []


def test_attributes_are_changed_individually(clock) -> None:
    topics, _ = topics_of(clock)
    topics.update(TopicConfig("T", attributes={"+message.type": "FIFO", "+cleanup.policy": "DELETE"}))
    topics.update(TopicConfig("T", attributes={"-message.type": "", "+reserve.time": "5"}))
    assert topics.get("T").attributes == {"cleanup.policy": "DELETE", "reserve.time": "5"}
    for change, remark in (
        ({"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({"+cleanup.policy": "DELETE"}, "attempt to update an unchangeable attribute. key: cleanup.policy"),
    ):
        wrong = TopicConfig("T", attributes=change)
        assert refusal_of(lambda wrong=wrong: topics.update(wrong)).remark == remark


def test_retry_topics_are_created_automatically(clock) -> None:
    topics, _ = topics_of(clock, auto_create_topics=False)
    assert topics.for_sending("%RETRY%G", DEFAULT_TOPIC, 4).write_queue_nums == 1


def test_update_keeps_attributes_and_delete_removes_the_topic(clock) -> None:
    topics, changed = topics_of(clock)
    topics.update(TopicConfig("T", attributes={"+message.type": "FIFO"}))
    topics.update(TopicConfig("T", read_queue_nums=2, write_queue_nums=2))
    assert topics.get("T").attributes == {"message.type": "FIFO"}
    topics.delete("T")
    topics.delete("T")
    assert changed == ["T", "T", "T"]
    assert refusal_of(lambda: topics.get("T")).code == ResponseCode.TOPIC_NOT_EXIST
    assert refusal_of(lambda: topics.delete(" ")).remark == "The specified topic is blank."
