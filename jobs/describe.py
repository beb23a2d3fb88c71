"""What a topic's brokers hold now, asked of each of them."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.client import Admin
from cluster.client.config import Nameservers
from jobs.splits import QueueState, StorePlace
from store.message.message_queue import MessageQueue


def describe_topic(nameservers: Nameservers | None, topic: str) -> list[QueueState]:
    """Give every queue of `topic` with its confirmed offsets and where it lies, ordered by queue.

    `nameservers` as for the clients: "host:port;host:port", a list, or None for the environment's or default.
    Raises `cluster.client.ClientError` (TopicNotFound among others), also when only one broker does not
    answer: a read that silently left out a broker would be wrong.
    """
    states: list[QueueState] = []
    with Admin(nameservers) as admin:
        for body in admin.splits(topic):
            place = StorePlace(
                body.address,
                body.store_root,
                body.store_id,
                body.commit_log_file_bytes,
                body.consume_queue_file_units,
            )
            for each in body.queues:
                queue = MessageQueue(topic, body.broker_name, each.queue_id)
                states.append(QueueState(queue, each.min_offset, each.max_offset, place))
    return sorted(states, key=lambda state: state.queue)


def find_offsets(
    nameservers: Nameservers | None, times_ms: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Give the offset of the first message that each queue stored at its time or later; its end if none."""
    if not times_ms:
        return {}
    with Admin(nameservers) as admin:
        return admin.offsets_for_times(times_ms)
