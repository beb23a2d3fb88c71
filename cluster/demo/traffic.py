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
    """Sends a table of messages in a background thread, which the constructor starts.

    The aircraft is the sharding key, so that all its flights are sent to one queue. If the queue's broker is
    unavailable, sending waits until the broker has restarted.

    Attributes:
        acknowledged: Number of messages acknowledged so far.
        seconds: Time from the start to the last acknowledgement.
        error: The error that ended sending, or None.
    """

    def __init__(self, nameservers: Sequence[str], topic: str, messages: pa.Table) -> None:
        self.acknowledged = 0
        self.seconds = 0.0
        self.error: ClientError | None = None
        self._nameservers = list(nameservers)
        self._topic = topic
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
