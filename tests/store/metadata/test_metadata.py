"""The tables in `config/*.json`: reading RocketMQ's files, and crash-safe saving of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.common.json_file import JsonConfigFile
from store.message.data_version import DataVersion
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_text import parse_rocketmq_json
from store.message.topic_config import TopicConfig
from store.metadata import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from store.metadata.pieces import content_pieces
from store.store_errors import StoreError
from tests.conftest import ClockAtRest

TABLES = {
    "topics.json": TopicConfigTable,
    "subscriptionGroup.json": SubscriptionGroupTable,
    "consumerOffset.json": ConsumerOffsetTable,
    "delayOffset.json": DelayOffsetTable,
}
# As RocketMQ 5.3.3 writes it for a group that filters by SQL92.
FILTERS = {
    "filterDataByTopic": {
        "T": {
            "groupFilterData": {
                "g": {
                    "bloomFilterData": {"bitNum": 480, "bitPos": [3, 90, 411]},
                    "bornTime": 1_700_000_000_000,
                    "clientVersion": 1_700_000_000_000,
                    "consumerGroup": "g",
                    "dead": False,
                    "deadTime": 0,
                    "expression": "a > 5",
                    "expressionType": "SQL92",
                    "topic": "T",
                }
            },
            "topic": "T",
            "newer": 1,
        }
    },
    "newer": {"x": 1},
}


@pytest.fixture
def config(tmp_path: Path) -> JsonConfigFile:
    return JsonConfigFile(tmp_path / "config" / "topics.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"offsetTable":{2:1,3:-1\n\t}}', {"offsetTable": {"2": 1, "3": -1}}),
        (b'{"a":{ -5 : [1,2,{7:8}]}}', {"a": {"-5": [1, 2, {"7": 8}]}}),
        (b'{1:"{2:3,4:5}\\",6:7"}', {"1": '{2:3,4:5}",6:7'}),
        (b"{}", {}),
        (
            b'{"t":{{"q":0,"x":"}:{\\""}:5, {}\n:[{"a":1},{"b":{7:8}}]}}',
            {"t": {'{"q":0,"x":"}:{\\""}': 5, "{}": [{"a": 1}, {"b": {"7": 8}}]}},
        ),
    ],
)
def test_keys_may_be_unquoted_numbers_and_objects(text: bytes, expected: dict[str, Any]) -> None:
    assert parse_rocketmq_json(text) == expected


@pytest.mark.parametrize("text", [b"", b"[1]", b"{1:", b"{a:1}", b"null"])
def test_text_that_is_not_a_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_rocketmq_json(text)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("ending", ["clean_store", "crashed_store"])
def test_rocketmq_tables_are_saved_without_loss(
    name: str, ending: str, clock: ClockAtRest, request: pytest.FixtureRequest
) -> None:
    unpack: Callable[[], Any] = request.getfixturevalue(ending)
    file = JsonConfigFile(unpack().root / "config" / name)
    content = file.load()
    assert content is not None

    file.save(TABLES[name].from_json(content, clock).to_json())

    content.pop("groupTopicMap", None)  # derived from the rest; RocketMQ does not read it
    assert file.load() == content == json.loads(file.path.read_bytes())


def test_unknown_fields_are_kept(clock: ClockAtRest) -> None:
    topic = {**TopicConfig("T").to_json(), "newerField": [1]}
    group = {**SubscriptionGroupConfig("g").to_json(), "newerField": {"a": 1}}
    topics = {"dataVersion": DataVersion().to_json(), "topicConfigTable": {"T": topic}, "newer": True}
    groups = {
        "dataVersion": DataVersion().to_json(),
        "forbiddenTable": {"g": {"T": 3}},
        "subscriptionGroupTable": {"g": group},
        "newer": 1,
    }

    assert TopicConfigTable.from_json(topics, clock).to_json() == topics
    assert SubscriptionGroupTable.from_json(groups, clock).to_json() == groups


@pytest.mark.parametrize(
    ("table", "content"),
    [
        (TopicConfigTable, {"topicConfigTable": []}),
        (TopicConfigTable, {"topicConfigTable": {"T": {"perm": "6"}}}),
        (TopicConfigTable, {"topicConfigTable": {"T": {"readQueueNums": True}}}),
        (TopicConfigTable, {"dataVersion": {"counter": "x"}}),
        (SubscriptionGroupTable, {"subscriptionGroupTable": {"g": {"consumeEnable": 1}}}),
        (ConsumerOffsetTable, {"offsetTable": {"T@g": {"zero": 1}}}),
        (ConsumerOffsetTable, {"offsetTable": {"T@g": {"0": None}}}),
        (DelayOffsetTable, {"offsetTable": {"one": 1}}),
        (DelayOffsetTable, {"offsetTable": [1]}),
        (DelayOffsetTable, {"offsetTable": {"1": "2"}}),
    ],
)
def test_table_with_wrong_type_is_refused_with_file_name(
    table: Any, content: dict[str, Any], clock: ClockAtRest
) -> None:
    with pytest.raises(StoreError, match=r"\.json: "):
        table.from_json(content, clock)


def test_every_change_increases_the_data_version(clock: ClockAtRest) -> None:
    table = TopicConfigTable(clock)
    table.put(TopicConfig("T", perm=4))
    clock.advance(5)

    assert table.remove("T")
    assert not table.remove("T")
    assert table.data_version == DataVersion(counter=2, timestamp_ms=clock.wall_ms())


def test_every_500th_commit_increases_the_data_version(clock: ClockAtRest) -> None:
    table = ConsumerOffsetTable(clock)
    for offset in range(1001):
        table.commit("g", "T", 3, offset)

    assert table.data_version.counter == 2
    assert table.to_json()["offsetTable"] == {"T@g": {"3": 1000}}


def test_every_200th_delivery_increases_the_data_version(clock: ClockAtRest) -> None:
    table = DelayOffsetTable(clock)
    for offset in range(401):
        table.move(3, offset)
        table.move(3, offset)  # the same offset again: not a change

    assert table.data_version.counter == 2
    table.settle(written=100, safe=100)
    assert table.to_json()["offsetTable"] == {"3": 400}


def test_delay_offsets_are_saved_when_their_deliveries_cannot_be_lost(clock: ClockAtRest) -> None:
    def settled(written: int, safe: int) -> object:
        table.settle(written, safe)
        return table.to_json()["offsetTable"]

    table = DelayOffsetTable(clock)
    table.move(3, 1)
    assert settled(written=100, safe=50) == {}
    table.move(3, 2)
    assert settled(written=200, safe=99) == {}
    assert settled(written=200, safe=100) == {"3": 1}
    assert settled(written=200, safe=200) == {"3": 2}


def test_filters_are_kept_until_group_or_topic_is_removed() -> None:
    table = ConsumerFilterTable.from_json(FILTERS)
    assert table.to_json() == FILTERS
    assert table.filters["T"]["g"].expression == "a > 5"

    assert table.remove_group("g")
    assert not table.remove_group("g")
    assert table.remove_topic("T")
    assert table.to_json() == {"filterDataByTopic": {}, "newer": {"x": 1}}


@pytest.mark.parametrize(
    "content", [{"filterDataByTopic": []}, {"filterDataByTopic": {"T": {"groupFilterData": 1}}}]
)
def test_filters_with_wrong_type_are_refused_with_file_name(content: dict[str, Any]) -> None:
    with pytest.raises(StoreError, match=r"consumerFilter\.json: "):
        ConsumerFilterTable.from_json(content)


def test_load_without_file_returns_none(config: JsonConfigFile) -> None:
    assert config.load() is None


def test_save_keeps_only_the_previous_content_as_backup(config: JsonConfigFile) -> None:
    config.save({"a": 1})
    config.save({"a": 2})

    assert config.load() == {"a": 2}
    assert JsonConfigFile(config.backup).load() == {"a": 1}
    assert sorted(path.name for path in config.path.parent.parent.rglob("*.*")) == [
        "topics.json",
        "topics.json.bak",
    ]


@pytest.mark.parametrize("damage", [b"", b'{"a": ', None])
def test_load_uses_backup_if_file_is_missing_or_damaged(config: JsonConfigFile, damage: bytes | None) -> None:
    config.save({"a": 1})
    config.save({"a": 2})
    config.path.unlink() if damage is None else config.path.write_bytes(damage)

    assert JsonConfigFile(config.path).load() == {"a": 1}


def test_damaged_file_does_not_overwrite_the_valid_backup(config: JsonConfigFile) -> None:
    config.save({"a": 1})
    config.save({"a": 2})
    config.path.write_bytes(b"{")
    again = JsonConfigFile(config.path)
    again.load()
    again.save({"a": 3})

    assert again.load() == {"a": 3}
    assert JsonConfigFile(config.backup).load() == {"a": 1}
    assert config.path.with_name("topics.json.damaged").read_bytes() == b"{"


def test_damaged_file_without_valid_backup_is_refused_with_path(config: JsonConfigFile) -> None:
    config.save({"a": 1})
    config.path.write_bytes(b"{")

    with pytest.raises(StoreError, match=f"{config.path}: the file is damaged"):
        config.load()


@pytest.mark.parametrize("topics", [3, 1_000, 2_500])
def test_large_table_is_encoded_in_pieces_of_the_same_json(clock: ClockAtRest, topics: int) -> None:
    table = TopicConfigTable(clock, unknown={"later": {"field": 1}})
    for number in range(topics):
        table.put(TopicConfig(topic_name=f"T{number}"))
    pieces = list(content_pieces(table.to_json()))
    assert len(pieces) == (5 if topics == 2_500 else 1)
    assert parse_rocketmq_json(b"".join(pieces)) == table.to_json()


def test_json_of_a_table_contains_every_change(clock: ClockAtRest) -> None:
    table = TopicConfigTable(clock)
    for number in range(3):
        table.put(TopicConfig(topic_name=f"T{number}"))
    before = table.to_json()["topicConfigTable"]
    table.put(TopicConfig(topic_name="T1", perm=4))
    table.remove("T2")
    after = table.to_json()["topicConfigTable"]
    assert {name: topic["perm"] for name, topic in before.items()} == {"T0": 6, "T1": 6, "T2": 6}
    assert {name: topic["perm"] for name, topic in after.items()} == {"T0": 6, "T1": 4}
