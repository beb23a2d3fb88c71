"""Fetch the queues and offsets of topics from their brokers."""

from __future__ import annotations

from cluster.client import Admin
from cluster.client.config import Nameservers
from cluster.client.transport.topic_route import Replica
from jobs.reading.splits import QueueState, StoreLocation
from store.message.message_queue import MessageQueue


def describe_topic(nameservers: Nameservers | None, topic: str) -> list[QueueState]:
    """Return the confirmed offsets and the store location of every queue of `topic`, sorted by queue.

    `nameservers` is "host:port;host:port", a list of addresses, or None for the addresses in the environment
    or the default address. Raises `cluster.client.ClientError`, for example TopicNotFound. The error is also
    raised if one of the topic's brokers does not respond, because a read would lack that broker's messages.
    """
    with Admin(nameservers) as admin:
        return states_of(admin, topic)


def states_of(admin: Admin, *topics: str, replica: Replica = "master") -> list[QueueState]:
    """Like `describe_topic`, for several topics, with a client that stays open and a choice of replicas.

    `replica` is that of `Admin.splits`.
    """
    states: list[QueueState] = []
    for topic in topics:
        for body in admin.splits(topic, replica=replica):
            location = StoreLocation(
                body.address,
                body.store_root,
                body.store_id,
                body.commit_log_file_bytes,
                body.consume_queue_file_units,
                body.node_ip,
                body.machine_id,
                body.history,
            )
            for each in body.queues:
                queue = MessageQueue(topic, body.broker_name, each.queue_id)
                states.append(QueueState(queue, each.min_offset, each.max_offset, location))
    return sorted(states, key=lambda state: state.queue)
