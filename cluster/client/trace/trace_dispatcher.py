"""TraceDispatcher: sends trace records to the trace topic, in batches and in the background.

    hook ─→ add ─→ bounded queue ─ every FLUSH_INTERVAL_MS ─→ messages of the trace topic
                      └ full: the record is dropped       └ failed: their records are dropped

Tracing never delays or fails a send or a listener call. Dropped records are counted and logged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.client.config import ClientConfig
from cluster.client.errors import ClientError
from cluster.client.trace.trace_records import TraceRecord
from cluster.client.trace.trace_sender import TraceSender
from cluster.client.transport.instance import ClientInstance
from store.common.logs import get_logger

_log = get_logger(__name__)

MAX_RECORDS = 10_000
"""Maximum number of records that wait to be sent."""
FLUSH_INTERVAL_MS = 200
CLOSE_TIMEOUT_S = 3.0
MESSAGE_RECORDS = 100
MESSAGE_CHARS = 64_000
KEYS_CHARS = 8_000
"""Limits of one trace message: its records, their size, and the size of the keys by which it is found."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """An encoded trace record, and the keys by which its message must be found."""

    text: str
    keys: tuple[str, ...]


class TraceDispatcher:
    """Sends the trace records of one client. `add` may be called in any thread."""

    def __init__(
        self, instance: ClientInstance, config: ClientConfig, topic: str, max_records: int = MAX_RECORDS
    ) -> None:
        """Start to send records in the background, until `instance` is closed.

        Args:
            instance: The client whose event loop and clock are used.
            config: Settings of the client: its nameservers, credentials and call hooks.
            topic: The trace topic.
            max_records: Maximum number of records that wait to be sent.
        """
        self.dropped = 0
        """Number of records that were dropped."""
        self._topic = topic
        self._max_records = max_records
        self._entries: deque[TraceEntry] = deque()
        self._sender = TraceSender(config, instance.clock, topic)
        self._is_failing = False
        self._flushing = asyncio.Lock()
        instance.supervisor.every("trace", lambda: FLUSH_INTERVAL_MS, self.flush)
        instance.before_close(self.close)

    def add(self, record: TraceRecord) -> None:
        """Queue a record, or drop it if too many are waiting."""
        if len(self._entries) >= self._max_records:
            self._drop(1, "more records are written than can be sent")
            return
        keys = (record.msg_id, *(record.keys.split() if record.keys else ()))
        self._entries.append(TraceEntry(record.encode(), keys))

    async def flush(self) -> None:
        """Send the waiting records. Those of a message that cannot be sent are dropped."""
        async with self._flushing:
            for entries in self._batches():
                body = "".join(entry.text for entry in entries).encode("utf-8", "replace")
                keys = sorted({key for entry in entries for key in entry.keys})
                try:
                    await self._sender.send(body, keys)
                except ClientError as error:
                    self._drop(len(entries), str(error))
                else:
                    self._is_failing = False

    async def close(self) -> None:
        """Send the waiting records, for at most CLOSE_TIMEOUT_S, and close the connections."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.flush()
        except TimeoutError:
            self._drop(len(self._entries), "the client was closed before the records were sent")
        finally:
            await self._sender.close()

    def _batches(self) -> Iterator[list[TraceEntry]]:
        """Take the waiting records from the queue, in lists of the size of one message."""
        batch: list[TraceEntry] = []
        chars = keys_chars = 0
        for _ in range(len(self._entries)):
            entry = self._entries.popleft()
            entry_keys_chars = sum(len(key) + 1 for key in entry.keys)
            if batch and (
                len(batch) == MESSAGE_RECORDS
                or chars + len(entry.text) > MESSAGE_CHARS
                or keys_chars + entry_keys_chars > KEYS_CHARS
            ):
                yield batch
                batch, chars, keys_chars = [], 0, 0
            batch.append(entry)
            chars += len(entry.text)
            keys_chars += entry_keys_chars
        if batch:
            yield batch

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        if not self._is_failing:  # log the first of several failures in a row
            self._is_failing = True
            _log.warning("trace_records_dropped", records=count, topic=self._topic, reason=reason)
