"""Clients used in a forked child or on another event loop reopen or raise ClientClosed; they never hang."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from cluster.client import PullConsumer, aio
from cluster.client.errors import ClientClosed
from tests.eventually import LIMIT_S

from .conftest import Cluster
from .test_pull_consumer import fill

PROGRAM = """
import os, sys
from cluster.client import Admin, ClientError, Producer, PullConsumer, PushConsumer
address, topic, group = sys.argv[1:]

def in_child(work):
    reading, writing = os.pipe()
    if not os.fork():
        try:
            outcome = str(work())
        except ClientError as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pipe.read()

ids = []
opened, unopened = Producer(address, group), Producer(address, group)
ids.append(opened.send(topic, b"parent").msg_id)
for _ in range(2):
    for producer in (opened, unopened):
        ids.append(in_child(lambda: producer.send(topic, b"child").msg_id))
        ids.append(in_child(lambda: producer.send_async(topic, b"child").result(600).msg_id))
for producer in (opened, unopened):
    assert in_child(lambda: len(producer.queues(topic))) == "2"
ids.append(opened.send(topic, b"parent").msg_id)
assert len(set(ids)) == len(ids) == 10, ids
assert in_child(opened.close) == "None"
opened.send(topic, b"parent")

consumer, fresh, admin = PullConsumer(address, group), PullConsumer(address, group), Admin(address)
consumer.assign(consumer.queues(topic))
assert len(consumer.poll(1, 600_000)) == 1
pushes = PushConsumer(address, group, print)
for call in (
    consumer.poll, consumer.commit, lambda: next(consumer), lambda: fresh.subscribe(topic), admin.topics,
    lambda: pushes.subscribe(topic),
):
    outcome = in_child(call)
    assert outcome.startswith("ClientClosed: this client was created before its process forked"), outcome
for client in (consumer, pushes):
    assert in_child(client.close) == "None"
assert in_child(lambda: len(PullConsumer(address, group).queues(topic))) == "2"
assert consumer.poll(1, 600_000)
"""


def test_forked_child_reopens_producers_and_refuses_consumers(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    fill(cluster, topic, 10)
    command = [sys.executable, "-c", PROGRAM, cluster.address, topic, group]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ})
    assert ended.returncode == 0, ended.stderr


def test_asyncio_client_refuses_another_loop_and_can_be_closed(cluster: Cluster, group: str) -> None:
    topic = cluster.topic(queues=1)
    producer = aio.Producer(cluster.address, group)
    consumer = aio.PullConsumer(cluster.address, group)

    async def use() -> None:
        await producer.send(topic, b"1")
        await consumer.assign(await consumer.queues(topic))
        await consumer.poll(1)

    async def close() -> None:
        await producer.close()
        await consumer.close()

    asyncio.run(use())
    for call in (lambda: producer.send(topic, b"2"), consumer.poll, consumer.lag):
        with pytest.raises(ClientClosed, match="another event loop"):
            asyncio.run(call())
    asyncio.run(close())
    with PullConsumer(cluster.address, f"{group}-other") as other:
        other.assign(other.queues(topic))
        assert len(other.poll(timeout_ms=60_000)) == 1
