"""Each request with a foreign topic or group is refused, in every header field and every place of a body."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from actors.transport.request import RequestRow
from actors.wire.admin_headers import (
    BrokerStatsHeader,
    ClientHeader,
    CloneGroupOffsetHeader,
    ConsumeStatsHeader,
    GroupHeader,
)
from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.headers import ConsumerGroupHeader, TopicHeader
from actors.wire.hot_headers import LONG_NAMES, SendMessageHeaderV1
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from tests.actors.broker.core.auth.access_peers import DENIED, Connect, SigningPeer, with_access
from tests.actors.broker.features.transactions.transactions import settled

MINE, SECRET = "mine", "secret"
QUEUE = {"brokerName": "broker-a", "queueId": 0}

# Fields with names that no permission is needed for.
FREE = {
    "default_topic",  # a new topic gets its permissions and its number of queues
    "default_topic_queue_nums",
    "topic_filter_type",
    "topic_sys_flag",
    "origin_topic",  # not used: the record has the topic
    "lite_topic",  # belongs to its topic
    "producer_group",  # as in RocketMQ, producer groups need no permission
}
MORE = {RequestCode.VIEW_BROKER_STATS_DATA: ["statsKey"]}
PRODUCER_GROUP_IS_READ = {RequestCode.GET_PRODUCER_CONNECTION_LIST}


def lock(topic: str, group: str) -> dict[str, Any]:
    return {"consumerGroup": group, "clientId": "c", "mqSet": [{**QUEUE, "topic": topic}]}


def heartbeat(topic: str, group: str) -> bytes:
    return HeartbeatData("c", [ConsumerData(group, subscriptions=[SubscriptionData(topic, "*")])]).encode()


def second_of_two(kind: str, key: str) -> Callable[[str, str], dict[str, Any]]:
    """Return a body with a list of two, of which the second has the given name."""

    def body(topic: str, group: str) -> dict[str, Any]:
        return {kind: [{key: MINE}, {key: topic if key == "topicName" else group}]}

    return body


def subscription(topic: str, group: str) -> dict[str, Any]:
    return {"action": "PARTIAL_ADD", "clientId": "c", "group": group, "topic": topic, "liteTopicSet": ["a"]}


# Bodies by request code, as functions of a topic and a group; None if the body has no such name.
BODIES: dict[int, tuple[Callable[[str, str], Any], ...]] = {
    RequestCode.HEART_BEAT: (heartbeat,),
    RequestCode.LOCK_BATCH_MQ: (lock,),
    RequestCode.UNLOCK_BATCH_MQ: (lock,),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (second_of_two("topicConfigList", "topicName"),),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (lambda topic, group: {"groupName": group},),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (second_of_two("groupConfigList", "groupName"),),
    RequestCode.QUERY_ASSIGNMENT: (
        lambda topic, group: {"topic": topic, "consumerGroup": group, "clientId": "c"},
    ),
    RequestCode.BATCH_ACK_MESSAGE: (
        lambda topic, group: {"acks": [{"c": MINE, "t": MINE}, {"c": group, "t": topic}]},
    ),
    RequestCode.LITE_SUBSCRIPTION_CTL: (
        lambda topic, group: {"subscriptionSet": [subscription(MINE, MINE), subscription(topic, group)]},
    ),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (
        lambda topic, group: {"topic": topic, "consumerGroup": group, "mode": "PULL"},
    ),
    RayMQRequestCode.SYNC_GROUP: (
        lambda topic, group: {"group": group, "clientId": "c", "subscriptions": {topic: "*"}},
        lambda topic, group: {"group": group, "clientId": "c", "owned": [[topic, "broker-a", 0, 1]]},
    ),
    RayMQRequestCode.COMMIT_OFFSETS: (
        lambda topic, group: CommitOffsetsBody(
            group, "c", [OffsetCommit(MINE, 0, 1, 1), OffsetCommit(topic, 0, 1, 1)]
        ).encode(),
    ),
    RayMQRequestCode.CHECK_USER: (
        lambda topic, group: [["topic", MINE, "pub"], ["topic", topic, "sub"], ["group", group, "sub"]],
    ),
}
NAMES_NOTHING = {
    RequestCode.CHECK_CLIENT_CONFIG,  # only compiles a filter
    RayMQRequestCode.PROVE_PEER,  # proves who responds
}


def named_fields(row: RequestRow) -> list[str]:
    """Return the header fields of a request that hold a topic or a group."""
    if row.header_type is None:
        return []
    fields = msgspec.structs.fields(row.header_type)
    free = FREE - ({"producer_group"} if row.code in PRODUCER_GROUP_IS_READ else set())
    names = [
        wire_name(row, each.encode_name)
        for each in fields
        if any(word in each.name for word in ("topic", "group")) and each.name not in free
    ]
    return names + MORE.get(row.code, [])


def wire_name(row: RequestRow, name: str) -> str:
    return LONG_NAMES[name] if row.header_type is SendMessageHeaderV1 else name


def own_header(row: RequestRow) -> dict[str, str]:
    """Return a complete header with own names only."""
    if row.header_type is None:
        return {}
    ext = {}
    for each in msgspec.structs.fields(row.header_type):
        is_text = "str" in str(each.type)
        ext[wire_name(row, each.encode_name)] = MINE if is_text else "0"
    if row.code == RequestCode.VIEW_BROKER_STATS_DATA:
        ext["statsName"] = "TOPIC_PUT_NUMS"
    return ext


def foreign_requests(row: RequestRow) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Yield a request for each place of a row that can hold a foreign name."""
    own = own_header(row)
    for name in named_fields(row):
        derived = (f"%RETRY%{SECRET}", f"%DLQ%{SECRET}", f"%LMQ%${SECRET}$a")
        for value in (SECRET, *derived, f"{MINE};{SECRET}", f"{MINE}@{SECRET}"):
            if value[0] == "%" and "opic" not in name:
                continue
            yield f"{name}={value}", {**own, name: value}, b"{}"
    for number, build in enumerate(BODIES.get(row.code, ())):
        for topic, group in ((SECRET, MINE), (MINE, SECRET), (f"%RETRY%{SECRET}", MINE)):
            body = build(topic, group)
            if body == build(MINE, MINE):
                continue
            yield (
                f"body {number} {topic} {group}",
                own,
                body if isinstance(body, bytes) else orjson.dumps(body),
            )


async def a_user(inner: SigningPeer, connect: Connect) -> SigningPeer:
    """Return the client of a user that may do everything with its own topic and group."""
    await inner.send(MINE)
    await inner.send(SECRET)
    for group in (MINE, SECRET):
        await inner.commit(group, SECRET, 1)
        await inner.commit(group, MINE, 1)
    await inner.create_user("bob")
    for resource in (f"Topic:{MINE}", f"Group:{MINE}"):
        assert (await inner.permit("bob", resource, "All")).code == 0
    await inner.permit("bob", "Cluster:DefaultCluster", "Get", "List")
    return connect("bob")


def test_each_place_with_a_foreign_name_is_refused(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob, rows = await a_user(inner, connect), inner.loop.requests.rows
        walked = 0
        for row in rows.values():
            for place, ext, body in foreign_requests(row):
                response = await bob.ask(row.code, ext, body)
                assert response.code == DENIED, (row.code, place, response.remark)
                walked += 1
        assert walked > 150
        assert await offsets_of(inner, SECRET) == {f"{SECRET}@{SECRET}": 1, f"{MINE}@{SECRET}": 1}

    with_access(story, tmp_path)


async def offsets_of(inner: SigningPeer, group: str) -> dict[str, int]:
    table = orjson.loads((await inner.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)["offsetTable"]
    return {key: queues["0"] for key, queues in table.items() if key.endswith(f"@{group}")}


def test_own_names_are_permitted(tmp_path: Path) -> None:
    """The walk is refused because of the names, and not because of a missing permission of another kind."""

    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob, rows = await a_user(inner, connect), inner.loop.requests.rows
        changes = {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP}
        cluster = {
            RayMQRequestCode.REPLACE_QUEUE_FILE,
            RayMQRequestCode.GROUP_CHANGED,
            RayMQRequestCode.RAFT_MESSAGE,
        }
        for row in rows.values():
            if row.code in changes | cluster or not any(True for _ in foreign_requests(row)):
                continue
            bodies = [build(MINE, MINE) for build in BODIES.get(row.code, ())] or [b"{}"]
            for body in bodies:
                encoded = body if isinstance(body, bytes) else orjson.dumps(body)
                response = await bob.ask(row.code, own_header(row), encoded)
                assert response.code != DENIED, (row.code, response.remark)

    with_access(story, tmp_path)


@pytest.mark.parametrize("denied", ["Topic:secret", "Group:secret"])
def test_lists_of_everything_need_permission_for_everything(tmp_path: Path, denied: str) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await a_user(inner, connect)
        wide = connect("bob")
        await inner.permit("bob", "*", "Get", "List")
        kind = denied.partition(":")[0]
        lists = {"Topic": TOPIC_LISTS, "Group": GROUP_LISTS}[kind]
        for code in lists:
            assert (await wide.ask(code)).code == 0, code
        await inner.permit("bob", denied, "All", decision="Deny")
        for code in lists:
            response = await wide.ask(code)
            assert response.code == DENIED, code

    with_access(story, tmp_path)


TOPIC_LISTS = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
GROUP_LISTS = (
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)


def test_each_row_is_walked_or_names_nothing(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        for row in inner.loop.requests.rows.values():
            is_walked = any(True for _ in foreign_requests(row))
            if is_walked or row.code in NAMES_NOTHING:
                continue
            targets = list(row.targets(context_of(row)))
            assert targets, f"give the places of request {row.code} that can hold a topic or group in BODIES"
            assert all(each.name == "*" for each in targets), row.code

    with_access(story, tmp_path)


def context_of(row: RequestRow) -> Any:
    header = None if row.header_type is None else row.header_type.from_ext(own_header(row))
    command = msgspec.defstruct("Command", [("body", bytes), ("ext", dict)])(b"{}", {})
    return msgspec.defstruct("Context", [("header", Any), ("command", Any)])(header, command)


def test_responses_for_a_group_omit_foreign_topics(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob = await a_user(inner, connect)
        await inner.heartbeat("c", MINE, **{MINE: "*", SECRET: "*"})
        await inner.heartbeat("d", SECRET, **{MINE: "*", SECRET: "*"})
        await settled(inner)
        requests = {
            RequestCode.GET_CONSUME_STATS: ConsumeStatsHeader(MINE).to_ext(),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: GroupHeader(MINE).to_ext(),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerGroupHeader(MINE).to_ext(),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader(MINE).to_ext(),
        }
        for code, ext in requests.items():
            whole, seen = bytes((await inner.ask(code, ext)).body), bytes((await bob.ask(code, ext)).body)
            assert b"secret" in whole, code
            assert b"mine" in seen, code
            assert b"secret" not in seen, code

    with_access(story, tmp_path)


def test_offsets_of_foreign_topics_are_not_copied(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob = await a_user(inner, connect)
        await inner.permit("bob", "Group:copy", "All")
        clone = CloneGroupOffsetHeader(MINE, "copy", offline=True).to_ext()
        assert (await bob.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == DENIED
        assert await offsets_of(inner, "copy") == {}
        clone["topic"] = MINE
        assert (await bob.ask(RequestCode.CLONE_GROUP_OFFSET, clone)).code == 0
        assert await offsets_of(inner, "copy") == {f"{MINE}@copy": 1}

    with_access(story, tmp_path)


def test_record_of_a_foreign_topic_is_not_consumed_directly(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob = await a_user(inner, connect)
        await bob.heartbeat("c", MINE, **{MINE: "*"})
        for topic, refused in ((SECRET, True), (MINE, False)):
            sent = await inner.send(topic)
            await settled(inner)
            ext = ClientHeader(MINE, "c", msg_id=sent.ext["msgId"]).to_ext()
            response = await bob.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
            assert (response.code == DENIED) is refused, response.remark

    with_access(story, tmp_path)


def test_counters_of_a_foreign_topic_are_not_shown(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        bob = await a_user(inner, connect)
        for name, key, refused in (
            ("TOPIC_PUT_NUMS", SECRET, True),
            ("TOPIC_PUT_NUMS", MINE, False),
            ("GROUP_GET_NUMS", f"{MINE}@{SECRET}", True),
            ("GROUP_GET_SIZE", f"{SECRET}@{MINE}", True),
            ("SNDBCK_PUT_NUMS", f"{MINE}@{SECRET}", True),
            ("BROKER_PUT_NUMS", "DefaultCluster", False),
        ):
            response = await bob.ask(
                RequestCode.VIEW_BROKER_STATS_DATA, BrokerStatsHeader(name, key).to_ext()
            )
            assert (response.code == DENIED) is refused, (name, key, response.remark)

    with_access(story, tmp_path)
