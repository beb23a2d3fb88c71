"""The demo's producer, which sends the flights in order, and the consumers that receive them meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from cluster.client import ClientError, MessageExt, Producer, ProducerConfig, PushConfig, PushConsumer
from cluster.lab.demo.tally import FlightDelivery, FlightTally

if TYPE_CHECKING:
    import pyarrow as pa

TOPIC = "flights"
PIECE_ROWS = 4_096
GROUP = "demo-followers"


class Feed:
    """Sends a table of messages in a background thread, which the constructor starts.

    The aircraft is the sharding key, so that all its flights are sent to one queue. If the queue's broker is
    unavailable, sending waits until the broker has restarted.

    Attributes:
        acknowledged: Number of messages acknowledged so far.
        seconds: Time from the start to the last acknowledgement.
        error: The error that ended sending, or None.
    """

    def __init__(self, nameservers: Sequence[str], messages: pa.Table) -> None:
        self.acknowledged = 0
        self.seconds = 0.0
        self.error: ClientError | None = None
        self._config = ProducerConfig(group="demo-flights", nameservers=list(nameservers))
        self._messages = messages
        # A daemon thread, so that an interrupted demo can exit while a send is blocked.
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return True until all flights are acknowledged or sending has failed."""
        return self._thread.is_alive()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            with Producer(config=self._config) as producer:
                for first in range(0, self._messages.num_rows, PIECE_ROWS):
                    piece = self._messages.slice(first, PIECE_ROWS)
                    producer.send_table(TOPIC, piece, tags="tags", keys="keys", sharding_key="keys")
                    self.acknowledged += piece.num_rows
                    self.seconds = time.perf_counter() - started
        except ClientError as error:
            self.error = error


class Follower:
    """One member of the consumer group. It records every delivery in `tally`, which all members share."""

    def __init__(self, number: int, nameservers: Sequence[str], tally: FlightTally) -> None:
        self.deliveries = 0
        self._lock = threading.Lock()
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
        self._consumer.subscribe(TOPIC)

    @property
    def queues(self) -> int:
        """Return the number of queues assigned to this member."""
        return len(self._consumer.assignment())

    def close(self) -> None:
        """Commit the offsets and leave the group."""
        self._consumer.close()

    def _note(self, messages: list[MessageExt]) -> None:
        for message in messages:
            flight = orjson.loads(message.body)
            self._tally.add(
                FlightDelivery(
                    uniq_key=message.msg_id,
                    row=flight["row"],
                    aircraft=message.keys or "",
                    carrier=message.tags or "",
                    arr_delay=flight["arr_delay"],
                    queue=(message.broker_name, message.queue_id),
                    queue_offset=message.queue_offset,
                )
            )
        with self._lock:
            self.deliveries += len(messages)
