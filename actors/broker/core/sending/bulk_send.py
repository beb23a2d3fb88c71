"""BulkSender: RayMQ's requests to append many messages; see `actors.wire.raymq_requests`."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.topics import DEFAULT_TOPIC
from actors.broker.core.sending.responses import SendResponses, not_stored
from actors.broker.core.sending.send_checks import SendChecks
from actors.broker.core.stats import BrokerStats
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.wire.codes import RayMQRequestCode
from actors.wire.command import MAX_FRAME_BYTES
from actors.wire.headers import (
    AppendBatchHeader,
    AppendBatchResponse,
    SendRunsHeader,
    SendRunsResponse,
)
from actors.wire.targets import Action, on_topic
from store.common.clock import Clock
from store.message.record import RecordDraft
from store.message.runs import decode_runs, encode_offsets
from store.message_store import MessageStore
from store.store_errors import StoreError


class BulkSender:
    """Handles SEND_RUNS and APPEND_BATCH."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        checks: SendChecks,
        added_properties: bytes,
        responses: SendResponses,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        """Create the handler.

        Args:
            settings: for the number of queues of a new topic.
            store: appends the messages.
            checks: checks topics, queues and sizes.
            added_properties: encoded properties that every message of APPEND_BATCH gets.
            responses: sends the responses after confirmation.
            stats: counts the messages.
            clock: for the born timestamp of APPEND_BATCH.
        """
        self._settings = settings
        self._store = store
        self._checks = checks
        self._added_properties = added_properties
        self._responses = responses
        self._put = stats.put
        self._clock = clock

    def rows(self) -> Iterable[RequestRow]:
        """Return the rows of the request table that this object handles."""
        row = partial(RequestRow, on_slave=OnSlave.BUSY)
        code, pub = RayMQRequestCode, on_topic(Action.PUB)
        return (
            row(code.SEND_RUNS, self.send_runs, SendRunsHeader, pub, Cost.SEND, MAX_FRAME_BYTES),
            row(code.APPEND_BATCH, self.append_batch, AppendBatchHeader, pub, Cost.SEND, MAX_FRAME_BYTES),
        )

    def send_runs(self, context: RequestContext) -> None:
        """Handle SEND_RUNS: append encoded records of queues of one topic, all or none."""
        header: SendRunsHeader = context.header
        topic = self._checks.batch_topic(header.topic, header.default_topic, header.default_topic_queue_nums)
        runs = decode_runs(context.command.body)
        self._checks.queue(topic, runs.queue_ids[-1])  # ids ascend: if the last one exists, all do
        try:
            result = self._store.append_runs(topic.topic_name, runs, context.connection.peer_bytes)
        except StoreError as error:
            raise not_stored(error) from error
        self._put(topic.topic_name, result.count, result.size_bytes)
        response = SendRunsResponse(result.physical_offset, result.count, result.store_timestamp)
        offsets = encode_offsets(result.queue_offsets)
        self._responses.when_confirmed(context, result, response.to_ext(), offsets)

    def append_batch(self, context: RequestContext) -> None:
        """Handle APPEND_BATCH: append a batch in RocketMQ's encoding; the header has only topic and queue."""
        header: AppendBatchHeader = context.header
        topic = self._checks.batch_topic(header.topic, DEFAULT_TOPIC, self._settings.default_topic_queues)
        queue_id = self._checks.queue(topic, header.queue_id)
        draft = RecordDraft(
            topic.topic_name,
            queue_id,
            b"",
            self._added_properties,
            born_timestamp=self._clock.wall_ms(),
            born_host=context.connection.peer_bytes,
        )
        body = context.command.body
        self._checks.check_size(body)
        try:
            result = self._store.append_batch(draft, body)
        except (StoreError, struct.error) as error:
            raise not_stored(error) from error
        self._put(draft.topic, result.count, result.size_bytes)
        response = AppendBatchResponse(queue_id, result.queue_offset, result.count, result.store_timestamp)
        ids = self._responses.message_ids(result).encode()
        self._responses.when_confirmed(context, result, response.to_ext(), ids)
