"""Fetch the queues and offsets of a topic from its brokers."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.client import Admin
from cluster.client.config import Nameservers
from jobs.splits import QueueState, StoreLocation
from store.message.message_queue import MessageQueue


def describe_topic(nameservers: Nameservers | None, topic: str) -> list[QueueState]:
    """Return the confirmed offsets and the store location of every queue of `topic`, sorted by queue.

    `nameservers` is "host:port;host:port", a list of addresses, or None for the addresses in the environment
    or the default address. Raises `cluster.client.ClientError`, for example TopicNotFound. The error is also
    raised if one of the topic's brokers does not respond, because a read would lack that broker's messages.
    """
    states: list[QueueState] = []
    with Admin(nameservers) as admin:
        for body in admin.splits(topic):
            location = StoreLocation(
                body.address,
                body.store_root,
                body.store_id,
                body.commit_log_file_bytes,
                body.consume_queue_file_units,
            )
            for each in body.queues:
                queue = MessageQueue(topic, body.broker_name, each.queue_id)
                states.append(QueueState(queue, each.min_offset, each.max_offset, location))
    return sorted(states, key=lambda state: state.queue)


def find_offsets(
    nameservers: Nameservers | None, times_ms: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Look up, for each queue, the offset of the first message stored at the queue's time or later.

    `times_ms` maps queues to times in ms since the epoch. Returns a map from queues to offsets; a queue
    without such a message maps to its end offset. Raises `cluster.client.ClientError`.
    """
    if not times_ms:
        return {}
    with Admin(nameservers) as admin:
        return admin.offsets_for_times(times_ms)
