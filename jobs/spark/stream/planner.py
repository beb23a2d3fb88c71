"""Planner: writes the manifests of a stream while its query is running, in a thread of the driver.

The planner writes a manifest after the previous batch was committed, so a batch contains all messages that
are stored when it starts. If `maxOffsetsPerTrigger` left messages for the next batch, the planner writes the
next manifest earlier, while the current batch is running. For the triggers availableNow and once, it writes
all manifests before the first batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from cluster.client import ClientError
from cluster.client.read_epoch import ReadEpoch
from jobs.job_errors import FetchFailed
from jobs.reading.log_epochs import Epochs, epochs_after
from jobs.reading.plan import ReadPlan
from jobs.reading.splits import QueueState
from jobs.reading.starting_offsets import Offsets
from jobs.spark.stream.manifest_directory import StreamManifestDirectory
from jobs.spark.stream.plan import (
    EMPTY,
    Limits,
    Positions,
    existing_positions,
    history_batches,
    initial_positions,
    next_batch,
)
from jobs.spark.stream.stream_errors import CheckpointMismatch
from jobs.spark.stream.stream_manifest import (
    encode_fault,
    encode_stream_batch,
    epochs_after_batch,
    positions_after,
)
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)


class Queues(Protocol):
    """The queues of the topic of a stream."""

    def states(self) -> list[QueueState]:
        """Return the current offsets of the queues. Raises ClientError."""

    def past_ends(self, states: Sequence[QueueState], positions: Positions, epochs: Epochs) -> Positions:
        """Return the queues whose log went back, as `gone_back` does. Raises FetchFailed."""

    def starting(self, states: Sequence[QueueState]) -> Offsets:
        """Return the offsets at which a new query starts. Raises ClientError and OffsetsInvalid."""

    def history(self) -> tuple[ReadPlan, list[QueueState]] | None:
        """Return where a new query starts that begins in tables, or None.

        Raises ClientError, OffsetsInvalid, DataLoss and the errors of tables.
        """

    def close(self) -> None:
        """Close the connections to the brokers and nameservers."""


@dataclass(frozen=True)
class PlanOptions:
    """The options of the planner.

    Attributes:
        topic: The topic of the stream.
        cluster: Name of the cluster of the topic.
        limits: Limits of a batch.
        fail_on_data_loss: End the query if offsets to read do not exist; otherwise log and skip them.
        poll_interval_s: Interval of requests for the queues' offsets while there are no new messages.
        retries: Maximum number of consecutive retries of a failed request for the queues' offsets.
        retry_interval_s: Interval between these retries.
        retained_manifests: Number of the latest manifests that are not deleted.
    """

    topic: str
    cluster: str
    limits: Limits
    fail_on_data_loss: bool
    poll_interval_s: float
    retries: int
    retry_interval_s: float
    retained_manifests: int


class Planner:
    """Plans the batches of one run of a query.

    The thread ends when `is_query_alive()` returns False. After that, it writes nothing.
    """

    def __init__(
        self,
        directory: StreamManifestDirectory,
        queues: Queues,
        options: PlanOptions,
        query_id: str,
        is_query_alive: Callable[[], bool],
    ) -> None:
        self._directory = directory
        self._queues = queues
        self._options = options
        self._query_id = query_id
        self._is_query_alive = is_query_alive
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._is_stopped = False
        self._positions: Positions = {}
        self._epochs: Epochs = {}
        self._written = self._committed = -1
        self._is_limited = False

    def plan_available(self, *, in_one_batch: bool) -> None:
        """Write manifests for all messages that are currently stored (triggers availableNow and once)."""
        limits = replace(self._options.limits, max_offsets=None) if in_one_batch else self._options.limits
        with self._faults_end_query():
            self._load(limits)
            states, past_ends = self._states()
            while self._write_next(states, past_ends, limits):
                past_ends = EMPTY
        self._queues.close()

    def start(self) -> None:
        """Determine the start positions, then write manifests in a thread until the query ends."""
        with self._faults_end_query():
            self._load(self._options.limits)
            name = f"raymq-stream-{self._options.topic}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current step."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait until the thread has ended, which a request for the queues' offsets can delay."""
        if self._thread is not None:
            self._thread.join()

    def committed(self, number: int) -> None:
        """Record that Spark has committed the batch of manifest `number`, and delete old manifests."""
        with self._changed:
            self._committed = max(self._committed, number)
            self._changed.notify_all()
        self._directory.remove_before(number + 1 - self._options.retained_manifests)

    def fail(self, reason: str) -> None:
        """End the query with the error text `reason`: write a manifest that contains it."""
        _log.error("stream_planner_failed", topic=self._options.topic, reason=reason)
        if self._written < 0:
            self._written = self._directory.load()[0]
        self._directory.write(self._written + 1, encode_fault(self._written + 1, self._query_id, reason))

    @contextmanager
    def _faults_end_query(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - reported as the error of the query
            if self._is_running():
                remedy = ""
                if isinstance(error, ClientError | FetchFailed):
                    remedy = (
                        f". Check topic {self._options.topic} and its brokers, then start the query again: it"
                        " resumes after its last batch"
                    )
                self.fail(f"{type(error).__name__}: {error}{remedy}")

    def _run(self) -> None:
        try:
            with self._faults_end_query():
                while self._wait_for_turn():
                    if not self._write_next(*self._states(), self._options.limits):
                        self._pause(self._options.poll_interval_s)
        finally:
            self._queues.close()

    def _wait_for_turn(self) -> bool:
        """Wait until the next manifest may be written. Return False if the query has stopped."""
        ahead = 1 if self._is_limited else 0
        with self._changed:
            while not self._is_stopped and self._written - self._committed > ahead:
                self._changed.wait(1.0)
                if not self._is_query_alive():
                    return False
        return self._is_running()

    def _is_running(self) -> bool:
        return not self._is_stopped and self._is_query_alive()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if not self._is_stopped:
                self._changed.wait(seconds)

    def _load(self, limits: Limits) -> None:
        """Set the positions: after the last manifest, or the starting positions if the query is new.

        The manifests of history are written before the file that marks the start, which no batch precedes.

        Raises `CheckpointMismatch` if the manifests belong to another query.
        """
        self._written, rows = self._directory.load()
        self._committed = self._written
        source = self._directory.source()
        if source is None:
            if rows:  # those of a start that was interrupted: no batch has read them
                self._directory.remove_before(self._written + 1)
            try:
                self._start_query(limits)
            except Exception:
                self._directory.remove_before(self._written + 1)
                raise
            return
        if source["queryId"] != self._query_id:
            raise CheckpointMismatch(
                f"{self._directory.manifests} belongs to query {source['queryId']}, not to query"
                f" {self._query_id}: give each query its own checkpointLocation"
            )
        if rows:
            self._positions, self._epochs = positions_after(rows), epochs_after_batch(rows)
        else:
            self._positions = {MessageQueue(*queue): position for *queue, position in source["positions"]}
            started = source.get("epochs", ())  # a checkpoint of an earlier version has none
            self._epochs = {MessageQueue(*row[:3]): ReadEpoch(*row[3:]) for row in started}

    def _start_query(self, limits: Limits) -> None:
        self._choose_start(limits)
        self._directory.write_source(
            {
                "version": 1,
                "topic": self._options.topic,
                "cluster": self._options.cluster,
                "queryId": self._query_id,
                "positions": self._directory.queue_positions(dict(self._positions)),
                "epochs": [[*queue, each.address, each.id] for queue, each in self._epochs.items()],
            }
        )

    def _choose_start(self, limits: Limits) -> None:
        if (found := self._queues.history()) is not None:
            self._begin_in_history(*found, limits)
            return
        states, _ = self._states()
        positions, missing = initial_positions(
            states, self._queues.starting(states), fail_on_data_loss=self._options.fail_on_data_loss
        )
        for each in missing:
            _log.warning("offset_range_missing", range=str(each))
        self._positions, self._epochs = positions, epochs_after(states, {})

    def _begin_in_history(self, plan: ReadPlan, states: Sequence[QueueState], limits: Limits) -> None:
        """Write the manifests of the tables, after which the stream is where these end."""
        begins = {each.queue: each.begin for each in plan.ranges}
        self._positions = {each.queue: begins.get(each.queue, each.max_offset) for each in states}
        self._epochs = epochs_after(states, {})
        for batch in history_batches(plan.tables, self._positions, limits):
            number = self._written + 1
            self._directory.write(number, encode_stream_batch(number, self._query_id, batch, self._epochs))
            self._written = number

    def _states(self) -> tuple[list[QueueState], Positions]:
        """Return the current offsets of the queues, and where logs end that went back.

        Raises ClientError or FetchFailed if all retries failed.
        """
        failures = 0
        while True:
            try:
                states = self._queues.states()
                return states, self._queues.past_ends(states, self._positions, self._epochs)
            except (ClientError, FetchFailed) as error:
                failures += 1
                if failures > self._options.retries or self._is_stopped:
                    raise
                _log.warning("stream_offsets_failed", topic=self._options.topic, error=str(error))
                self._pause(self._options.retry_interval_s)

    def _write_next(self, states: Sequence[QueueState], past_ends: Positions, limits: Limits) -> bool:
        """Write the next manifest and return True, or return False if there is nothing to write.

        A manifest without messages is written if missing offsets are skipped, to record the new positions.
        """
        positions, missing = existing_positions(
            states,
            self._positions,
            fail_on_data_loss=self._options.fail_on_data_loss,
            past_ends=past_ends,
        )
        for each in missing:
            _log.warning("offset_range_missing", range=str(each))
        number = self._written + 1
        batch = next_batch(states, positions, limits, number)
        self._positions, self._is_limited = batch.positions, batch.is_limited
        self._epochs = epochs_after(states, self._epochs)
        if (not batch.splits and not missing) or not self._is_running():
            return False
        self._directory.write(number, encode_stream_batch(number, self._query_id, batch, self._epochs))
        self._written = number
        return True
