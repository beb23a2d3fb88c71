"""The producer: sends the flights in order, a piece at a time, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.client import ClientError, Producer, ProducerConfig

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 4_096


class Feed:
    """Sends a table; `acknowledged` and `error` may be looked at while it runs.

    All flights of an aircraft go to one queue by the hash of its key; while a queue's broker is away,
    the send waits for it.
    """

    def __init__(self, nameservers: Sequence[str], topic: str, messages: pa.Table) -> None:
        self.acknowledged = 0
        self.seconds = 0.0
        self.error: ClientError | None = None
        self._nameservers = list(nameservers)
        self._topic = topic
        self._messages = messages
        # A daemon: an interrupted demo does not wait for a send that waits for a broker.
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is more to send."""
        return self._thread.is_alive()

    def _run(self) -> None:
        started = time.perf_counter()
        config = ProducerConfig(group="demo-flights", nameservers=self._nameservers)
        try:
            with Producer(config=config) as producer:
                for first in range(0, self._messages.num_rows, PIECE_ROWS):
                    piece = self._messages.slice(first, PIECE_ROWS)
                    producer.send_table(self._topic, piece, tags="tags", keys="keys", sharding_key="keys")
                    self.acknowledged += piece.num_rows
                    self.seconds = time.perf_counter() - started
        except ClientError as error:
            self.error = error
