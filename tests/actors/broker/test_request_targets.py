"""The rows of a broker's request table return the topics and groups of each request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from actors.wire.bodies.groups import ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from actors.wire.targets import Action, Resource, Target
from tests.actors.broker.brokers import Peer, settings_of, with_broker

TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
PUB, SUB = Action.PUB, Action.SUB


def request(header: Any = None, body: Any = None) -> Any:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return SimpleNamespace(header=header, command=SimpleNamespace(body=content))


def test_rows_name_the_targets_of_headers_and_bodies(tmp_path: Path) -> None:
    beat = HeartbeatData("c", [ConsumerData("CG", subscriptions=[SubscriptionData("T", "*")])], ["PG"])
    queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
    lock = {"consumerGroup": "CG", "clientId": "c", "mqSet": [queue]}
    pull = PullMessageHeader("CG", "T", 0, 0)
    send = SendMessageHeader("PG", "T", 0, "")
    expected = {
        RequestCode.SEND_MESSAGE_V2: (request(send), [Target(TOPIC, "T", PUB)]),
        RequestCode.PULL_MESSAGE: (request(pull), [Target(TOPIC, "T", SUB), Target(GROUP, "CG", SUB)]),
        RequestCode.LOCK_BATCH_MQ: (
            request(body=lock),
            [Target(GROUP, "CG", SUB), Target(TOPIC, "T", SUB)],
        ),
        RequestCode.HEART_BEAT: (
            request(body=beat.encode()),
            [Target(GROUP, "PG", PUB), Target(GROUP, "CG", SUB), Target(TOPIC, "T", SUB)],
        ),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
            request(body={"groupName": "CG"}),
            [Target(GROUP, "CG", Action.UPDATE)],
        ),
        RequestCode.GET_ALL_TOPIC_CONFIG: (request(), [Target(TOPIC, "*", Action.LIST)]),
        RayMQRequestCode.GET_TOPIC_COUNTERS: (request(), [Target(TOPIC, "*", Action.LIST)]),
        RequestCode.CLEAN_UNUSED_TOPIC: (request(), [Target(Resource.CLUSTER, "*", Action.DELETE)]),
    }

    async def story(peer: Peer) -> None:
        rows = peer.loop.requests.rows
        for code, (context, targets) in expected.items():
            assert list(rows[code].targets(context)) == targets, code.name
        unguarded = sorted(row.code for row in rows.values() if row.targets.__name__ == "no_targets")
        assert unguarded == [RequestCode.CHECK_CLIENT_CONFIG, RayMQRequestCode.PROVE_PEER]

    with_broker(story, settings_of(tmp_path))
