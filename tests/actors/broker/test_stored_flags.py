"""Every stored setting of groups and topics has an effect, or is documented as one without."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import orjson
import pytest

from actors.wire.bodies.routes import QueueData
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.headers import CreateTopicHeader
from store.message.group_config import SubscriptionGroupConfig
from store.message.topic_config import TopicConfig
from tests.actors.broker.brokers import Peer, registered_broker, run, settings_of, with_broker
from tests.eventually import eventually_async
from tests.sources import parsed

ROOT = Path(__file__).parents[3]
ONLINE = "tests/actors/broker/core/group/test_groups_online.py"
GROUPS = "tests/actors/broker/core/metadata/test_groups.py"
PERMISSION = "tests/actors/broker/test_broker_permission.py"
REPLICA = "tests/actors/broker/core/reading/test_replica_choice.py"
HERE = "tests/actors/broker/test_stored_flags.py"

EFFECTIVE: dict[type[msgspec.Struct], dict[str, tuple[str, str]]] = {
    SubscriptionGroupConfig: {
        "groupName": (ONLINE, "test_refused_group_of_a_heartbeat_is_skipped_and_logged_once"),
        "consumeEnable": (GROUPS, "test_group_without_consume_permission_is_refused"),
        "consumeBroadcastEnable": (
            ONLINE,
            "test_group_without_broadcast_enable_refuses_pulls_of_broadcasters",
        ),
        "notifyConsumerIdsChangedEnable": (
            ONLINE,
            "test_group_without_notifications_sends_none_to_its_members",
        ),
        "retryQueueNums": (ONLINE, "test_retries_use_all_queues_of_the_retry_topic"),
        "brokerId": (REPLICA, "test_consumers_far_behind_are_sent_to_the_groups_slave_and_back"),
        "whichBrokerWhenConsumeSlowly": (
            REPLICA,
            "test_consumers_far_behind_are_sent_to_the_groups_slave_and_back",
        ),
        "retryMaxTimes": (ONLINE, "test_group_settings_limit_or_disable_retries"),
    },
    TopicConfig: {
        "topicName": (PERMISSION, "test_topic_permission_changes_its_route_and_refuses_no_send"),
        "perm": (PERMISSION, "test_topic_permission_changes_its_route_and_refuses_no_send"),
        "order": (PERMISSION, "test_ordered_topics_refuse_sends_to_a_broker_that_is_not_writable"),
        "readQueueNums": (HERE, "test_queue_numbers_and_flags_of_a_topic_apply"),
        "writeQueueNums": (HERE, "test_queue_numbers_and_flags_of_a_topic_apply"),
        "topicSysFlag": (HERE, "test_queue_numbers_and_flags_of_a_topic_apply"),
    },
}
"""For each stored setting the test of its effect."""


@pytest.mark.parametrize("config", EFFECTIVE)
def test_every_stored_setting_has_an_effect_or_is_documented(config: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs/coming-from.md").read_text()
    without_effect = page.partition("### Stored without effect")[2].partition("## From Kafka")[0]
    fields = set(config.__struct_encode_fields__) - {"?"}  # those that are kept undecoded
    documented = {name for name in fields if f"`{name}`" in without_effect}
    assert not documented & EFFECTIVE[config].keys()
    assert documented | EFFECTIVE[config].keys() == fields
    for path, test in EFFECTIVE[config].values():
        functions = {each.name for each in parsed(ROOT / path).body if isinstance(each, ast.FunctionDef)}
        assert test in functions, (path, test)


def test_queue_numbers_and_flags_of_a_topic_apply(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path) as (nameserver, peer):
            topic = CreateTopicHeader("T", read_queue_nums=1, write_queue_nums=2, perm=6, topic_sys_flag=1)
            assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic.to_ext())).code == 0
            chosen = {(await peer.send("T", queue_id=-1)).ext["queueId"] for _ in range(64)}
            assert chosen == {"0", "1"}
            codes = [(await peer.pull("T", queue_id=queue_id)).code for queue_id in (0, 1)]
            assert codes == [0, ResponseCode.INVALID_PARAMETER]

            def route() -> list[QueueData]:
                found = nameserver.routes.route("T")
                return [] if found is None else found.queue_datas

            await eventually_async(lambda: route() == [QueueData("broker-a", 1, 2, 6, topic_sys_flag=1)])

    run(story)


def test_forbidden_table_of_a_store_refuses_pulls(tmp_path: Path) -> None:
    """RocketMQ's tools write it (UPDATE_AND_GET_GROUP_FORBIDDEN); 4 is the bit of reads."""
    settings = settings_of(tmp_path)
    path = settings.store_root / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    table = {"subscriptionGroupTable": {}, "forbiddenTable": {"CG": {"T": 4, "W": 2}}}
    path.write_bytes(orjson.dumps(table))

    async def story(peer: Peer) -> None:
        for topic in ("T", "U", "W"):
            await peer.send(topic)
        refused = [await peer.pull("T"), await peer.pull_records("T")]
        assert [each.code for each in refused] == [ResponseCode.NO_PERMISSION] * 2
        assert "the consumer group[CG] is forbidden for topic[T]" in (refused[0].remark or "")
        assert [(await peer.pull(topic)).code for topic in ("U", "W")] == [0, 0]

    with_broker(story, settings)
