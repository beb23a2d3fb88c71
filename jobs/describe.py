"""What a topic's brokers hold now: the nameserver is asked for the route, then each broker for its queues."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from actors.broker.wire import SplitsBody
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from cluster.client.config import ClientConfig, Nameservers
from jobs.connection import Connection, refusal
from jobs.errors import BrokerUnreachable, TopicNotFound
from jobs.splits import QueueState, StorePlace
from store.message.message_queue import MessageQueue


def describe_topic(nameservers: Nameservers | None, topic: str) -> list[QueueState]:
    """Give every queue of `topic` with its confirmed offsets and where it lies, ordered by queue.

    `nameservers` as for the clients: "host:port;host:port", a list, or None for the environment's or default.
    Raises `TopicNotFound`, or `BrokerUnreachable` when no nameserver or not every broker answers: a read that
    silently left out a broker would be wrong.
    """
    states: list[QueueState] = []
    for address in _broker_addresses(ClientConfig(nameservers=nameservers).addresses(), topic):
        states += _ask_broker(address, topic)
    return sorted(states, key=lambda state: state.queue)


def _broker_addresses(nameservers: Sequence[str], topic: str) -> list[str]:
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    failures: list[str] = []
    for nameserver in nameservers:
        try:
            with Connection(nameserver) as connection:
                answer = connection.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        except BrokerUnreachable as error:
            failures.append(str(error))
            continue
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise TopicNotFound(
                f"no broker serves topic {topic!r} (nameserver {nameserver}): {answer.remark}"
            )
        if answer.code != ResponseCode.SUCCESS:
            failures.append(str(refusal(nameserver, answer)))
            continue
        brokers = orjson.loads(bytes(answer.body))["brokerDatas"]
        # The master is id 0; where it is away, the replica that is next.
        return [min(broker["brokerAddrs"].items(), key=lambda item: int(item[0]))[1] for broker in brokers]
    raise BrokerUnreachable(f"no nameserver answered: {'; '.join(failures)}. Is the cluster up?")


def _ask_broker(address: str, topic: str) -> list[QueueState]:
    with Connection(address) as connection:
        answer = connection.call(RayMQRequestCode.DESCRIBE_SPLITS, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        # The route is older than the topic's deletion here; the other brokers may still have it.
        return []
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(address, answer)
    body = SplitsBody.decode(answer.body)
    place = StorePlace(
        body.broker_name,
        body.address,
        body.store_root,
        body.store_id,
        body.commit_log_file_bytes,
        body.consume_queue_file_units,
    )
    return [
        QueueState(
            MessageQueue(topic, body.broker_name, each.queue_id), each.min_offset, each.max_offset, place
        )
        for each in body.queues
    ]
