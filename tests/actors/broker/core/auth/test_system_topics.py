"""System topics with records of others are read only by a rule that names them; groups own their topics."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from actors.wire.admin_headers import ConsumeQueueHeader
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.headers import (
    PullRecordsHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicHeader,
    TopicQueueHeader,
    ViewMessageHeader,
)
from actors.wire.hot_headers import PullMessageHeader
from tests.actors.broker.brokers import Peer
from tests.actors.broker.core.auth.access_peers import DENIED, SECRETS, Connect, SigningPeer, with_access
from tests.actors.broker.core.sending.test_system_topics import BROKER_ONLY
from tests.actors.broker.features.transactions.transactions import begin, settled

OF_OTHERS = (*BROKER_ONLY, "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC")
WIDE = ("*", "Topic:*", "Topic:S*", "Topic:R*", "Topic:r*", "Topic:D*", "Topic:T*", "Topic:O*", "Topic:C*")


def reads(topic: str) -> dict[int, dict[str, str]]:
    """Return the header of each request that reads a topic."""
    queue = TopicQueueHeader(topic, 0).to_ext()
    return {
        RequestCode.PULL_MESSAGE: PullMessageHeader("CG", topic, 0, 0, subscription="*").to_ext(),
        RequestCode.LITE_PULL_MESSAGE: PullMessageHeader("CG", topic, 0, 0, subscription="*").to_ext(),
        RayMQRequestCode.PULL_RECORDS: PullRecordsHeader(topic, 0, 0, "CG").to_ext(),
        RayMQRequestCode.DESCRIBE_SPLITS: TopicHeader(topic).to_ext(),
        RequestCode.QUERY_MESSAGE: QueryMessageHeader(topic, "key", 32, 0, 2**62).to_ext(),
        RequestCode.VIEW_MESSAGE_BY_ID: ViewMessageHeader(0, topic).to_ext(),
        RequestCode.GET_MAX_OFFSET: queue,
        RequestCode.GET_MIN_OFFSET: queue,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetHeader(topic, 0, 0).to_ext(),
        RequestCode.GET_EARLIEST_MSG_STORETIME: queue,
        RequestCode.GET_TOPIC_STATS_INFO: TopicHeader(topic).to_ext(),
        RequestCode.GET_TOPIC_CONFIG: TopicHeader(topic).to_ext(),
        RequestCode.QUERY_CONSUME_QUEUE: ConsumeQueueHeader(topic, 0, 0, 32, "").to_ext(),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader(topic).to_ext(),
    }


@pytest.mark.parametrize("topic", OF_OTHERS)
def test_wide_rules_do_not_permit_to_read_a_system_topic(tmp_path: Path, topic: str) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("bob")
        bob = connect("bob")
        for resource in WIDE:
            assert (await inner.permit("bob", resource, "Pub", "Sub", "Get", "List")).code == 0
        for code, ext in reads(topic).items():
            assert (await bob.ask(code, ext)).code == DENIED, code
        heartbeat = await bob.heartbeat("c", "CG", **{topic: "*"})
        assert heartbeat.code == DENIED or await members(inner) == []
        request = {"v": 1, "topic": topic, "queue": 0, "offset": 0}
        keys = {"access_key": "bob", "secret_key": SECRETS["bob"]}
        for method in (inner.broker.handle.read, inner.broker.handle.offsets):
            fields = request if method == inner.broker.handle.read else {"v": 1, "topic": topic}
            assert msgpack.unpackb(await method(msgpack.packb(fields | keys)))["code"] == DENIED
        await inner.permit("bob", f"Topic:{topic}", "Sub")
        for code, ext in reads(topic).items():
            assert (await bob.ask(code, ext)).code != DENIED, code

    with_access(story, tmp_path)


async def members(peer: Peer) -> list[str]:
    group = peer.groups.clients.group("CG")
    return [] if group is None else list(group.members)


def test_wide_rule_shows_no_message_of_a_denied_topic(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await begin(inner, b"half", "secret")
        delayed = await inner.send("secret", b"delayed", properties="DELAY\x015\x02")
        await settled(inner)
        await inner.create_user("bob")
        bob = connect("bob")
        await inner.permit("bob", "*", "Pub", "Sub")
        await inner.permit("bob", "Topic:secret", "Pub", "Sub", decision="Deny")
        view = ViewMessageHeader(int(delayed.ext["msgId"][16:], 16), "T").to_ext()
        assert (await bob.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == DENIED
        assert (await bob.pull("SCHEDULE_TOPIC_XXXX", queue_id=4)).code == DENIED
        assert (await bob.pull("RMQ_SYS_TRANS_HALF_TOPIC")).code == DENIED
        assert (await inner.pull("SCHEDULE_TOPIC_XXXX", queue_id=4)).code == 0  # a super user

    with_access(story, tmp_path)


def test_denial_of_all_topics_precedes_a_default_rule_with_the_name(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("bob")
        bob = connect("bob")
        name = "Topic:RMQ_SYS_TRACE_TOPIC"
        entries = [{"resource": name, "actions": ["Get"], "decision": "Allow"}]
        await inner.set_acl("bob", entries, policyType="Default")
        get = TopicHeader("RMQ_SYS_TRACE_TOPIC").to_ext()
        assert (await bob.ask(RequestCode.GET_TOPIC_CONFIG, get)).code != DENIED
        await inner.permit("bob", "Topic:*", "Get", decision="Deny")
        assert (await bob.ask(RequestCode.GET_TOPIC_CONFIG, get)).code == DENIED

    with_access(story, tmp_path)


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_retry_and_dead_letter_topics_belong_to_the_group(tmp_path: Path, prefix: str) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        topic = f"{prefix}gs"
        await inner.send(topic, b"dead")
        await inner.create_user("bob")
        bob = connect("bob")
        await inner.permit("bob", "Topic:*", "Pub", "Sub", "Update", "Delete")
        await inner.permit("bob", "Group:CG", "Sub")
        assert (await bob.send(topic, b"forged")).code == DENIED
        for code, ext in reads(topic).items():
            assert (await bob.ask(code, ext)).code == DENIED, code
        assert (await bob.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code == DENIED
        await inner.permit("bob", "Group:gs", "Sub")
        assert [message.body for message in await bob.messages(topic)] == [b"dead"]
        # RocketMQ's clients send a retry themselves if CONSUMER_SEND_MSG_BACK fails.
        assert (await bob.send(topic, b"retry")).code == 0

    with_access(story, tmp_path)


def test_lite_topic_needs_the_permission_of_its_topic(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("bob")
        bob = connect("bob")
        await inner.permit("bob", "Topic:T", "Get")
        for topic, may in (("T", True), ("other", False)):
            fields = TopicQueueHeader(f"%LMQ%${topic}$a", 0).to_ext()
            assert ((await bob.ask(RequestCode.GET_MAX_OFFSET, fields)).code != DENIED) is may

    with_access(story, tmp_path)
