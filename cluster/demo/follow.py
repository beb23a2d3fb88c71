"""The demo's consumers: a group of two members, which consumes the topic while the producer is sending."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import orjson

from cluster.client import MessageExt, PushConfig, PushConsumer
from cluster.demo.tally import Delivery, Tally

GROUP = "demo-followers"
MEMBERS = 2


class Follower:
    """One member of the group. It records every delivery in `tally`, which all members share."""

    def __init__(self, number: int, nameservers: Sequence[str], topic: str, tally: Tally) -> None:
        self.deliveries = 0
        self._lock = Lock()
        self._tally = tally
        config = PushConfig(
            instance_name=f"demo-{number}",
            consume_batch=256,
            consume_threads=2,
            max_cached_messages=20_000,
            max_offset_span=20_000,
            commit_interval_ms=1_000,
        )
        self._consumer = PushConsumer(list(nameservers), GROUP, self._note, config=config).start()
        self._consumer.subscribe(topic)

    @property
    def queues(self) -> int:
        """Return the number of queues assigned to this member."""
        return len(self._consumer.assignment())

    def close(self) -> None:
        """Commit the offsets and leave the group."""
        self._consumer.close()

    def _note(self, messages: list[MessageExt]) -> None:
        for message in messages:
            self._tally.add(delivery_of(message))
        with self._lock:
            self.deliveries += len(messages)


def delivery_of(message: MessageExt) -> Delivery:
    """Return the delivery of the flight that `message` contains."""
    flight = orjson.loads(message.body)
    return Delivery(
        uniq_key=message.msg_id,
        row=flight["row"],
        aircraft=message.keys or "",
        carrier=message.tags or "",
        delay_minutes=flight["arr_delay"],
        queue=(message.broker_name, message.queue_id),
        queue_offset=message.queue_offset,
    )
