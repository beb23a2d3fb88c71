"""Inputs of the hostile benchmark, which a separate process sends.

    python -m benchmarks.internals.hostile_inputs ADDRESS TOPICS

Reads the name of an input from standard input, prepares the input and prints GO. After another line it sends
the input, reads all responses and prints one line of JSON. Repeats this until the end of standard input.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.headers import CreateTopicHeader, PullRecordsHeader, QueryMessageHeader
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from benchmarks.raw_peer import RawPeer
from cluster.lab.bench.options import BenchFailed
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.properties import encode_properties

EXPRESSION_BYTES = 8_000
CONTAINS = 64
GROUPS = 1_000
TOPICS_PER_LIST = 8_000
QUEUES = 16_000
BODY_BYTES = 4_000_000
HEARTBEAT_BYTES = 1_000_000
PROPERTY_BYTES = 30_000
FRAME_BYTES = 15 * 1024 * 1024
FILTERED = "hostile-filtered"
FILTERED_MESSAGES = 200
KEYED = "hostile-keyed"
QUOTED_CHARACTERS = 160
HALF_MESSAGES = 50
HOLD_AND_SUBSCRIPTION = 0x2 | 0x4


class Request(NamedTuple):
    """One request to send."""

    code: int
    ext: dict[str, str]
    body: bytes = b""


class Input(NamedTuple):
    """Requests of an input; `pipelined` of them are sent before their responses are read."""

    requests: Sequence[Request]
    pipelined: int = 1


Prepare = Callable[[RawPeer, int], Input]
"""Prepares the broker for an input, and returns it. The number is that of the topics to create."""


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _send(topic: str, properties: dict[str, str], body: bytes = b"x", sys_flag: int = 0) -> Request:
    header = SendMessageHeader("hostile", topic, 0, encode_properties(properties).decode(), sys_flag)
    return Request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)


def _create(topic: str, queues: int) -> Request:
    return Request(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, queues, queues, 6).to_ext())


def _subscription(topic: str, expression: str, kind: str = "TAG") -> dict[str, object]:
    return {"topic": topic, "subString": expression, "subVersion": 1, "expressionType": kind}


def _consumer(group: str, subscriptions: Sequence[dict[str, object]]) -> dict[str, object]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": subscriptions,
    }


def _heartbeat(client: str, consumers: Sequence[object] = (), producers: Sequence[str] = ()) -> Request:
    groups = [{"groupName": each} for each in producers]
    body = {"clientID": client, "consumerDataSet": consumers, "producerDataSet": groups}
    return Request(RequestCode.HEART_BEAT, {}, _json(body))


def _joined(part: Callable[[int], str], separator: str, size: int = EXPRESSION_BYTES) -> str:
    """Return parts 0, 1, … joined by `separator`, at most `size` characters."""
    parts: list[str] = []
    length = 0
    while (length := length + len(part(len(parts))) + len(separator)) <= size:
        parts.append(part(len(parts)))
    return separator.join(parts)


# ---- filters


def _fill_filtered(peer: RawPeer) -> None:
    request = _send(FILTERED, {"a": "0" * PROPERTY_BYTES})
    peer.call(*_create(FILTERED, 1))
    if int(peer.call(RequestCode.GET_MAX_OFFSET, {"topic": FILTERED, "queueId": "0"}).ext["offset"]):
        return
    for _ in range(FILTERED_MESSAGES):
        peer.call_checked(*request)


def _pull(expression: str, kind: str, offset: int, hold_ms: int = 0) -> Request:
    header = PullMessageHeader(
        "hostile",
        FILTERED,
        0,
        offset,
        sys_flag=HOLD_AND_SUBSCRIPTION if hold_ms else HOLD_AND_SUBSCRIPTION & 4,
        suspend_timeout_millis=hold_ms,
        subscription=expression,
        expression_type=kind,
    )
    return Request(RequestCode.PULL_MESSAGE, header.to_ext())


def _contains() -> str:
    return " OR ".join(f"a CONTAINS '{'0' * 50}{number}'" for number in range(10, 10 + CONTAINS))


def _pulls(part: Callable[[int], str], separator: str = " OR ", ends: tuple[str, str] = ("", "")) -> Prepare:
    def prepare(peer: RawPeer, _: int) -> Input:
        _fill_filtered(peer)
        return Input([_pull(_joined(part, separator).join(ends), "SQL92", 0)] * 5)

    return prepare


def _pulls_of_tags(peer: RawPeer, _: int) -> Input:
    _fill_filtered(peer)
    expressions = [_joined(lambda at: f"{number}t{at}", "||", FRAME_BYTES // 4) for number in range(5)]  # noqa: B023
    return Input([_pull(each, "TAG", 0) for each in expressions])


def _pulls_of_records(peer: RawPeer, _: int) -> Input:
    _fill_filtered(peer)
    header = PullRecordsHeader(
        FILTERED,
        0,
        0,
        "hostile",
        subscription=_contains(),
        expression_type="SQL92",
    )
    return Input([Request(RayMQRequestCode.PULL_RECORDS, header.to_ext())] * 5)


def _held_pulls(peer: RawPeer, _: int) -> Input:
    """A thousand held pulls whose filters are evaluated whenever a message arrives."""
    _fill_filtered(peer)
    expression = _contains()
    end = int(peer.call(RequestCode.GET_MAX_OFFSET, {"topic": FILTERED, "queueId": "0"}).ext["offset"])
    pulls = [_pull(expression, "SQL92", end, 5_000)] * 500
    requests = [*pulls, *[_send(FILTERED, {"a": "0" * PROPERTY_BYTES})] * 5]
    return Input(requests, len(requests))


def _compiled(body: Callable[[int], str], kind: str, count: int) -> Prepare:
    def prepare(_: RawPeer, __: int) -> Input:
        def check(number: int) -> Request:
            subscription = _subscription("T", body(number), kind)
            fields = {"clientId": "c", "group": "g", "subscriptionData": subscription}
            return Request(RequestCode.CHECK_CLIENT_CONFIG, {}, _json(fields))

        return Input([check(number) for number in range(count)])

    return prepare


# ---- clients and groups


def _groups(groups: int) -> Prepare:
    consumers = [_consumer(f"hostile-{each}", [_subscription("T", "*")]) for each in range(groups)]
    return lambda *_: Input([_heartbeat("hostile", consumers)])


def _subscriptions(topics: int) -> Prepare:
    subscriptions = [_subscription(f"T{each}", "*") for each in range(topics)]
    return lambda *_: Input([_heartbeat("hostile", [_consumer("many", subscriptions)])])


def _producers(groups: int) -> Prepare:
    return lambda *_: Input([_heartbeat("hostile", producers=[f"producer-{each}" for each in range(groups)])])


def _client_ids(peer: RawPeer, _: int) -> Input:
    return Input([_heartbeat(f"{each}" * FRAME_BYTES, producers=["hostile"]) for each in range(8)])


def _changing_subscriptions(peer: RawPeer, _: int) -> Input:
    """Two members whose long subscriptions differ; the broker compares and logs them."""
    texts = ["a" * 900_000, "b" * 900_000]
    return Input(
        [_heartbeat("hostile", [_consumer("two", [_subscription("T", texts[at % 2])])]) for at in range(20)]
    )


def _queues(topics: int, topic: str = FILTERED) -> list[dict[str, object]]:
    return [{"topic": topic, "brokerName": "broker-a", "queueId": each} for each in range(topics)]


def _locks(code: int, queues: int) -> Prepare:
    body = {"consumerGroup": "hostile", "clientId": "hostile", "mqSet": _queues(queues)}
    return lambda *_: Input([Request(code, {}, _json(body))])


def _commits(queues: int) -> Prepare:
    commits = [OffsetCommit(FILTERED, each, 1, 0) for each in range(queues)]
    body = CommitOffsetsBody("hostile", "hostile", commits)
    return lambda *_: Input([Request(RayMQRequestCode.COMMIT_OFFSETS, {}, body.encode())])


def _unclaimed(peer: RawPeer, _: int) -> Input:
    """Offset requests with long names under a generation that was never assigned."""
    ext = {"queueId": "0", "generation": "5", "clientId": "hostile"}
    names = [{"consumerGroup": f"{at}" * 1_000_000, "topic": f"{at}" * 500_000} for at in range(8)]
    return Input([Request(RequestCode.QUERY_CONSUMER_OFFSET, {**ext, **each}) for each in names])


# ---- topics and queries


def _new_topics(peer: RawPeer, topics: int) -> Input:
    return Input([_send(f"hostile-new-{each}", {}) for each in range(min(topics, 2_000))], 64)


def _new_queues(peer: RawPeer, _: int) -> Input:
    return Input([_create("hostile-queues", queues) for queues in (65_535, 100_000)])


def _topic_list(peer: RawPeer, topics: int) -> Input:
    def config(at: int) -> dict[str, object]:
        return {"topicName": f"hostile-{at}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}

    def request(at: int) -> Request:
        body = {"topicConfigList": [config(each) for each in range(at, min(at + TOPICS_PER_LIST, topics))]}
        return Request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json(body))

    return Input([request(at) for at in range(0, topics, TOPICS_PER_LIST)])


def _many_topics(*codes: int, **ext: str) -> Prepare:
    """Return requests whose responses grow with the number of topics and groups."""

    def prepare(peer: RawPeer, topics: int) -> Input:
        for request in _topic_list(peer, topics).requests:
            peer.call(*request)
        return Input([Request(code, ext) for code in codes])

    return prepare


def _many_queues(code: int, **ext: str) -> Prepare:
    """Return a request about a topic with thousands of queues that have messages and offsets."""

    def prepare(peer: RawPeer, topics: int) -> Input:
        topic, queues = "hostile-wide", min(topics, 10_000)
        peer.call(*_create(topic, queues))
        commits = [OffsetCommit(topic, each, 0, 0) for each in range(queues)]
        for at in range(0, queues, 500):
            body = CommitOffsetsBody("hostile", "", commits[at : at + 500]).encode()
            peer.call(RayMQRequestCode.COMMIT_OFFSETS, {}, body)
        return Input([Request(code, ext)])

    return prepare


def _keyed(peer: RawPeer, _: int) -> Input:
    peer.call(*_create(KEYED, 1))
    message = Message(KEYED, b"x", properties={"KEYS": "k", "TAGS": "t"})
    batch = encode_batch([message] * 5_000)
    header = SendMessageHeader("hostile", KEYED, 0, "", batch=True)
    for _ in range(8):
        peer.call(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), batch)
    query = QueryMessageHeader(KEYED, "k", 2**31 - 1, 0, 2**62)
    return Input([Request(RequestCode.QUERY_MESSAGE, query.to_ext())] * 3)


def _consume_queue(peer: RawPeer, topics: int) -> Input:
    _keyed(peer, topics)
    ext = {"topic": KEYED, "queueId": "0", "index": "0", "count": str(2**31 - 1)}
    return Input([Request(RequestCode.QUERY_CONSUME_QUEUE, ext)] * 3)


# ---- bodies


def _tiny_messages(peer: RawPeer, _: int) -> Input:
    peer.call(*_create("hostile-batch", 1))
    batch = encode_batch([Message("hostile-batch", b"x")] * 100_000)
    header = SendMessageHeader("hostile", "hostile-batch", 0, "", batch=True)
    return Input([Request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), batch)] * 3)


def _bodies(code: int, body: Callable[[], bytes], count: int = 3, **ext: str) -> Prepare:
    return lambda peer, topics: Input([Request(code, ext, body())] * count)


def _large_messages(peer: RawPeer, _: int) -> Input:
    peer.call(*_create("hostile-large", 1))
    return Input(
        [_send("hostile-large", {"TAGS": "t" * 30_000}, bytes(4_000_000), at % 2) for at in range(20)]
    )


def _half_messages(peer: RawPeer, _: int) -> Input:
    peer.call(*_create("hostile-half", 1))
    properties = {"TRAN_MSG": "true", "PGROUP": "hostile", "CHECK_IMMUNITY_TIME_IN_SECONDS": "259200"}
    return Input([_send("hostile-half", properties, bytes(1_000_000), 0x4)] * HALF_MESSAGES)


def _fields(count: int) -> Prepare:
    return lambda *_: Input([Request(RequestCode.GET_MAX_OFFSET, {f"k{at}": "v" for at in range(count)})])


def _array(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


def _numbers(size: int) -> bytes:
    return b'{"mqSet":[' + b"1," * (size // 2) + b"1]}"


def _unquoted(size: int) -> bytes:
    """Return JSON with keys that only RocketMQ's library accepts."""
    return b'{"mqSet":{' + b"1:1," * (size // 4) + b"1:1}}"


INPUTS: dict[str, Prepare] = {
    "heartbeat-groups": _groups(GROUPS),
    "heartbeat-groups-many": _groups(20 * GROUPS),
    "heartbeat-subscriptions": _subscriptions(GROUPS),
    "heartbeat-subscriptions-many": _subscriptions(20 * GROUPS),
    "heartbeat-producers": _producers(GROUPS),
    "heartbeat-producers-many": _producers(20 * GROUPS),
    "heartbeat-client-ids": _client_ids,
    "heartbeat-changing": _changing_subscriptions,
    "check-tags": _compiled(lambda at: _joined(lambda tag: f"{at}t{tag}", "||"), "TAG", 20),
    "check-tags-many": _compiled(lambda at: _joined(lambda tag: f"{at}t{tag}", "||", FRAME_BYTES), "TAG", 4),
    "check-one-tag": _compiled(lambda at: f"{at}" * EXPRESSION_BYTES, "TAG", 20),
    "check-sql-or": _compiled(lambda at: _joined(lambda part: f"a{at}={part}", " OR "), "SQL92", 20),
    "check-sql-not": _compiled(lambda at: f"a{at}" + " IS NULL AND a" * 500 + "=1", "SQL92", 20),
    "check-sql-deep": _compiled(lambda at: "(" * 4_000 + f"a{at}=1" + ")" * 4_000, "SQL92", 20),
    "check-sql-in": _compiled(
        lambda at: f"a{at} IN (" + _joined(lambda part: f"'{part}'", ",", 7_900) + ")", "SQL92", 20
    ),
    "check-sql-long": _compiled(lambda at: f"a{at}" * (FRAME_BYTES // 2), "SQL92", 2),
    "pull-contains": _pulls(lambda _: _contains(), ""),
    "pull-contains-many": _pulls(lambda at: f"a CONTAINS '{at}y'"),
    "pull-contains-long": _pulls(lambda _: "a CONTAINS '" + "0" * 200 + "y'"),
    "pull-compare": _pulls(lambda at: f"a > {at}"),
    "pull-between": _pulls(lambda at: f"b IS NULL AND a BETWEEN 0.1 AND {at}.5"),
    "pull-missing": _pulls(lambda at: f"p{at} IS NOT NULL"),
    "pull-in": _pulls(lambda at: f"'{at}'", ",", ("a IN (", ")")),
    "pull-tags": _pulls_of_tags,
    "pull-records": _pulls_of_records,
    "held-pulls": _held_pulls,
    "new-topics": _new_topics,
    "new-queues": _new_queues,
    "topic-list": _topic_list,
    "all-topics": _many_topics(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_ALL_PRODUCER_INFO,
        RequestCode.GET_TIMER_METRICS,
    ),
    "topic-stats": _many_queues(RequestCode.GET_TOPIC_STATS_INFO, topic="hostile-wide"),
    "consume-stats": _many_queues(RequestCode.GET_CONSUME_STATS, consumerGroup="hostile"),
    "broker-consume-stats": _many_queues(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"),
    "consumed-by": _many_queues(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="hostile-wide"),
    "time-span": _many_queues(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="hostile-wide", group="hostile"),
    "reset-offsets": _many_queues(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        topic="hostile-wide",
        group="hostile",
        timestamp="0",
        isForce="true",
    ),
    "clone-offsets": _many_queues(
        RequestCode.CLONE_GROUP_OFFSET,
        srcGroup="hostile",
        destGroup="hostile-clone",
        topic="hostile-wide",
        offline="false",
    ),
    "splits": _many_queues(RayMQRequestCode.DESCRIBE_SPLITS, topic="hostile-wide"),
    "delete-topic": _many_queues(RequestCode.DELETE_TOPIC_IN_BROKER, topic="hostile-wide"),
    "delete-group": _many_queues(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="hostile", cleanOffset="true"
    ),
    "clean-unused": _many_topics(RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    "lock-queues": _locks(RequestCode.LOCK_BATCH_MQ, QUEUES),
    "lock-queues-many": _locks(RequestCode.LOCK_BATCH_MQ, 6 * QUEUES),
    "unlock-queues": _locks(RequestCode.UNLOCK_BATCH_MQ, QUEUES),
    "commit-offsets": _commits(QUEUES),
    "commit-offsets-many": _commits(6 * QUEUES),
    "offset-claims": _unclaimed,
    "query-key": _keyed,
    "query-consume-queue": _consume_queue,
    "batch-of-tiny": _tiny_messages,
    "large-messages": _large_messages,
    "half-messages": _half_messages,
    "header-fields": _fields(16_000),
    "header-fields-many": _fields(500_000),
    "heartbeat-nested": _bodies(RequestCode.HEART_BEAT, lambda: _array(HEARTBEAT_BYTES)),
    "heartbeat-unquoted": _bodies(RequestCode.HEART_BEAT, lambda: _unquoted(HEARTBEAT_BYTES)),
    "lock-nested": _bodies(RequestCode.LOCK_BATCH_MQ, lambda: _array(BODY_BYTES)),
    "lock-numbers": _bodies(RequestCode.LOCK_BATCH_MQ, lambda: _numbers(BODY_BYTES)),
    "lock-unquoted": _bodies(RequestCode.LOCK_BATCH_MQ, lambda: _unquoted(BODY_BYTES)),
    "commit-numbers": _bodies(RayMQRequestCode.COMMIT_OFFSETS, lambda: _numbers(BODY_BYTES)),
    "topics-numbers": _bodies(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, lambda: _numbers(BODY_BYTES)),
    "acl-numbers": _bodies(RequestCode.AUTH_CREATE_ACL, lambda: _numbers(BODY_BYTES), subject="User:a"),
    "unknown-code": _bodies(99_999, lambda: bytes(FRAME_BYTES)),
    "settings": _bodies(RequestCode.UPDATE_BROKER_CONFIG, lambda: b"a=b\n" * 16_000),
    "settings-many": _bodies(RequestCode.UPDATE_BROKER_CONFIG, lambda: b"a=b\n" * (BODY_BYTES // 4)),
}
"""Each input by name: one for each kind of request, expression, name, list or body that could be costly."""


def _attack(peer: RawPeer, given: Input) -> dict[str, object]:
    """Send an input; return the number and bytes of its requests, and what the broker responded."""
    frames = [peer.request(*each) for each in given.requests]
    print("GO", flush=True)
    sys.stdin.readline()
    answers = Counter[int]()
    remark = ""
    started = time.perf_counter()
    for at in range(0, len(frames), given.pipelined):
        some = frames[at : at + given.pipelined]
        peer.socket.sendall(b"".join(some))
        for _ in some:
            response = peer.read()
            answers[response.code] += 1
            remark = response.remark or remark
    return {
        "requests": len(frames),
        "bytes": sum(map(len, frames)),
        "seconds": time.perf_counter() - started,
        "answer": ", ".join(f"{count} × {code}" for code, count in sorted(answers.items())),
        "remark": remark[:QUOTED_CHARACTERS],
    }


def main() -> None:
    """Run with the arguments of the command line."""
    address, topics = sys.argv[1:]
    for line in sys.stdin:
        with RawPeer(address) as peer:
            given = INPUTS[line.strip()](peer, int(topics))
        with RawPeer(address) as peer:
            try:
                outcome = _attack(peer, given)
            except (OSError, BenchFailed) as error:
                outcome = {"requests": len(given.requests), "bytes": 1, "seconds": 1.0, "answer": str(error)}
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
