"""Retries of groups with Java members and Python members that use `retry="broker"`."""

from __future__ import annotations

import pytest

from cluster.client import Admin, MessageExt, PushConfig, PushConsumer, reconsume_later
from cluster.client.results import ReconsumeLater
from tests.compat.agent import Agent
from tests.compat.conftest import Names
from tests.compat.peers import Peer
from tests.eventually import eventually

pytestmark = pytest.mark.java


def test_java_and_python_members_continue_each_others_retries(
    peer: Peer, topic: str, names: Names, each_client: Agent
) -> None:
    nameserver, group = peer.nameserver_address, names.group()
    each_client.call("push_start", name="fails", group=group, topic=topic, failures=99)
    each_client.send([{"topic": topic, "body": "bad", "tags": "tag", "keys": "key"}])
    [first] = each_client.received("fails", 1)
    assert first["reconsumeTimes"] == 0
    each_client.call("push_stop", name="fails")

    times: list[int] = []

    def listen(messages: list[MessageExt]) -> ReconsumeLater:
        [message] = messages
        assert (message.topic, message.body, message.tags) == (topic, b"bad", "tag")
        times.append(message.reconsume_times)
        return reconsume_later(1 if message.reconsume_times == 1 else -1)

    config = PushConfig(nameservers=nameserver, group=group, retry="broker")
    with PushConsumer(None, None, listen, config=config) as consumer, Admin(nameserver) as admin:
        consumer.subscribe(topic)
        [letter] = eventually(lambda: admin.dead_letters(group), "the dead letter", within_s=120)
    assert times == [1, 2]
    assert (letter.properties["RETRY_TOPIC"], letter.properties["KEYS"]) == (topic, "key")

    with Admin(nameserver) as admin:
        assert admin.resend_dead_letters(group) == 1
        assert admin.dead_letters(group) == []
    each_client.call("push_start", name="succeeds", group=group, topic=topic)
    [again] = each_client.received("succeeds", 1)
    assert (again["topic"], again["body"], again["reconsumeTimes"]) == (topic, "bad", 0)
    each_client.call("push_stop", name="succeeds")
