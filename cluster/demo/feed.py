"""The demo's producer: sends the flights in order, in a separate thread."""

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
    """Sends a table; `acknowledged` and `error` may be read while it runs.

    The sharding key sends all flights of an aircraft to one queue. While the queue's broker is unavailable,
    the send waits for it.
    """

    def __init__(self, nameservers: Sequence[str], topic: str, messages: pa.Table) -> None:
        self.acknowledged = 0
        self.seconds = 0.0
        self.error: ClientError | None = None
        self._nameservers = list(nameservers)
        self._topic = topic
        self._messages = messages
        # A daemon thread, because an interrupted demo must not wait for a blocked send.
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """True until all flights are sent or the send has failed."""
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
