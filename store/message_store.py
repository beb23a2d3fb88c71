"""MessageStore: the interface to one broker's store. One thread, the owner, uses it."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from store.commitlog.flush import FlushJob, LogFlush
from store.commitlog.holes import Hole
from store.commitlog.positions import Callback, ConfirmPolicy
from store.common.background import Executors, thread_pool
from store.common.clock import Clock
from store.common.logs import get_logger
from store.disk.disk_use import DiskProbe, disk_use
from store.disk.files import explain, explained
from store.dispatch.live_dispatch import LiveDispatch
from store.dispatch.queue_sink import Arrival
from store.dispatch.sink import DispatchSink
from store.message.buffers import Buffer
from store.message.hosts import Host
from store.message.record import RecordDraft
from store.message.runs import Runs
from store.ownership.identity import (
    Guards,
    StoreIdentity,
    StoreName,
    read_name,
    refuse_foreign_kinds,
    resolve_name,
    write_name,
)
from store.reading.message_reader import GetMessageResult, GetMessageStatus
from store.reading.readable_store import ReadableStore
from store.recovery.opening import Recovered, StoreParts, open_parts, recover
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.upkeep.log_repair import LogRepair
from store.upkeep.maintenance import Maintenance
from store.upkeep.queue_file_swap import QueueFileSwap
from store.upkeep.retention import Retention
from store.writing.appender import Appender, AppendResult
from store.writing.record_blocks import RecordBlocks
from store.writing.send_gate import FAILURE, SendGate
from store.writing.truncation import rewind_timer_of, truncation_refusal

_log = get_logger(__name__)


class MessageStore(ReadableStore):
    """A store for appending and reading messages.

    The thread that owns the store calls `advance` once per turn of its event loop.
    """

    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        name: StoreName,
        clock: Clock,
        guards: Guards,
        parts: StoreParts,
        recovered: Recovered,
        probe: DiskProbe,
    ) -> None:
        """Create the store from its parts. Only `open` calls this."""
        self._maintenance = Maintenance(root, settings, name.store_id, clock, parts, recovered)
        checkpoints = self._maintenance.checkpoints
        self.gate = SendGate(root)
        super().__init__(parts, Retention(settings, clock, parts, probe, checkpoints, self.gate), clock)
        self.queue_files = QueueFileSwap(parts)
        self.root = root
        self.settings = settings
        self.identity = name
        self.recovered = recovered
        """Result of the recovery when the store was opened."""
        self._clock = clock
        self._guards = guards
        self._dispatch = LiveDispatch(
            parts.dispatcher, parts.queue_sink, parts.positions, self.gate, clock, self._maintenance.on_step
        )
        self._appender = Appender(
            parts.log,
            parts.queues,
            settings,
            self.gate,
            clock,
            recovered.tail.last_timestamp,
            lambda: parts.dispatcher.next_offsets(parts.positions.dispatched, parts.positions.written),
        )
        self.blocks = RecordBlocks(self._appender, parts.queues)
        self._failure: StoreError | None = None
        self.log_repair = LogRepair(root, parts, recovered.holes, self.fail)
        self._flush = LogFlush(parts.log)
        self._is_closed = False
        self.is_superseded = False  # True if another writer opened the store: write nothing, no checkpoints

    @property
    def writer_epoch(self) -> int:
        """Epoch of this writer. Each process that opens the store for writing increases the epoch by one."""
        return self._guards.epoch.number

    @property
    def last_timestamp(self) -> int:
        """The latest store timestamp, in ms since the epoch; later records get no earlier one."""
        return self._appender.last_timestamp

    @classmethod
    def open(
        cls,
        root: Path,
        settings: StoreSettings,
        identity: StoreIdentity,
        clock: Clock,
        *,
        adopt: bool = False,
        store_host: Host | None = None,
        probe: DiskProbe = disk_use,
        sinks: Sequence[DispatchSink] = (),
        confirm: ConfirmPolicy | None = None,
        executors: Executors = thread_pool,
        max_open_files: int | None = None,
    ) -> "MessageStore":
        """Lock, load and recover the store at `root`; create it if it does not exist.

        Args:
            root: The directory of the store.
            settings: The settings of the store.
            identity: The broker that the store must belong to.
            clock: The time source.
            adopt: Open the store even if it belongs to another broker.
            store_host: The broker's address for records and message ids; see also `set_store_host`.
            probe: Returns the disk usage of a directory.
            sinks: They receive every dispatched record, in addition to index and consume queues.
            confirm: The confirm policy; None: that of the setting `flush`.
            executors: Return the executors of the background work.
            max_open_files: Limit of open files that is used instead of that of the settings.

        Raises:
            StoreError: The store belongs to another broker, is locked, or cannot be recovered.
        """
        with explained("cannot be opened", root):
            make_parts = partial(open_parts, root, settings, clock, sinks, confirm, executors, max_open_files)
            store = cls._open(root, settings, identity, clock, probe, make_parts, adopt=adopt)
        if store_host is not None:
            store.set_store_host(store_host)
        return store

    @classmethod
    def _open(
        cls,
        root: Path,
        settings: StoreSettings,
        identity: StoreIdentity,
        clock: Clock,
        probe: DiskProbe,
        make_parts: Callable[[], StoreParts],
        *,
        adopt: bool,
    ) -> "MessageStore":
        root.mkdir(parents=True, exist_ok=True)
        guards = Guards.take(root, settings.lock_timeout_ms)
        parts: StoreParts | None = None
        try:
            refuse_foreign_kinds(root)
            existing_name = read_name(root)
            is_ours = existing_name is not None
            name = resolve_name(root, identity, settings, adopt=adopt)
            closed_cleanly = not guards.abort.exists
            parts = make_parts()
            guards.epoch.raise_epoch()
            guards.abort.create()
            recovered = recover(
                root, settings, parts, name.store_id, closed_cleanly=closed_cleanly, is_ours=is_ours
            )
            if name != existing_name:
                write_name(root, name)
            store = cls(root, settings, name, clock, guards, parts, recovered, probe)
            store._maintenance.checkpoints.checkpoint_now()
        except BaseException:
            if parts is not None:
                parts.close()
            guards.release()
            raise
        return store

    def set_store_host(self, host: Host) -> None:
        """Set the broker's address that is written into all later records."""
        self._appender.store_host = host.packed

    @property
    def holes(self) -> Sequence[Hole]:
        """The damaged ranges of the CommitLog that recovery found."""
        return self.recovered.holes.all

    # ---- append --------------------------------------------------------------------------------------------

    @property
    def write_refusal(self) -> str | None:
        """The reason why nothing may be written to the store; None if it may."""
        return self.gate.write_refusal

    def append(self, draft: RecordDraft) -> AppendResult:
        """Append one message.

        Raises StoreError if appends are refused or fail, MessageInvalid if the message is too large.
        """
        return self._appender.append(draft)

    def append_batch(self, draft: RecordDraft, batch: Buffer) -> AppendResult:
        """Append all messages in the body of a RocketMQ batch request, or none.

        `draft` has the fields that the messages share. Raises the errors of `append`.
        """
        return self._appender.append_batch(draft, batch)

    def append_runs(self, topic: str, runs: Runs, born_host: bytes) -> AppendResult:
        """Append all records of queues of one topic that a client encoded, or none.

        A run is a sequence of records of one queue. Offsets, timestamps and hosts are written into the
        records in place. Raises the errors of `append`.
        """
        return self._appender.append_runs(topic, runs, born_host)

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of another replica's log; `offset` must be `positions.written`. Raises StoreError."""
        self.gate.check_writes()
        self._appender.append_raw(offset, data)

    def _refusal(self) -> StoreError:
        # A new exception each time: raising the same one repeatedly would grow its traceback without limit.
        assert self._failure is not None
        return StoreError(self._failure.reason, self._failure.path, self._failure.position)

    def is_at_end(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return True if it is certain that the log has no message of this queue at `offset` or later.

        Messages that are appended but not yet dispatched count too.
        """
        if not self._appender.assigned_is_known:
            return False
        queue = self._queues.find(topic, queue_id)
        return offset == 0 if queue is None else offset == queue.next_offset == queue.assigned_offset

    def await_messages(self, awaited: Collection[str | tuple[str, int]]) -> None:
        """Set for whose new messages the caller waits: queues, as (topic, queue id), and whole topics.

        An append to one of them updates `positions.awaited`, and `step` returns the queues that received
        messages.
        """
        self._appender.awaited = self._parts.queue_sink.awaited = awaited

    def truncate_to(self, offset: int, *, discard_confirmed: bool = False) -> None:
        """Drop all records from CommitLog offset `offset` on, and all data derived from them.

        A record must begin at `offset`, or the log end there. Confirmed records, which readers may have, are
        only dropped with `discard_confirmed`; the timer must be stopped then, and is rebuilt by its next
        start. Raises StoreError.
        """
        self.confirm()
        confirmed, holes = self.positions.confirmed, self.recovered.holes
        refusal = truncation_refusal(
            self._log, self._appender.raw, holes, offset, discard_confirmed=discard_confirmed
        )
        if refusal is not None:
            raise StoreError(refusal, self.root)
        self._maintenance.finish()
        self._dispatch.rewind()
        self._flush.cancel()
        self._parts.allocator.discard()
        try:
            self._log.truncate_to(offset)
            reason = "the log was truncated: this append can no longer be confirmed"
            self.positions.truncate_to(offset, StoreError(reason, self.root))
            holes.truncate_to(offset)
            self._parts.rewind(self.root, self.identity.store_id, offset)
            self._appender.rewind()
            if offset < confirmed:
                rewind_timer_of(self.root, self._queues)
            self._maintenance.checkpoints.checkpoint_now()
        except OSError as error:  # what the disk holds is not known
            reason = f"truncation to {offset:,} failed: {explain(error)}; restart the broker to recover"
            self.fail(StoreError(reason, self.root))
            raise self._refusal() from error

    # ---- advance -------------------------------------------------------------------------------------------

    @property
    def dispatch_refusal(self) -> str | None:
        """The reason why confirmed records are not dispatched; None if they are."""
        return str(self._failure) if self.is_superseded else self._dispatch.fault

    @property
    def has_more_to_dispatch(self) -> bool:
        """True if another `step` would dispatch more confirmed records."""
        return not self.is_superseded and self._dispatch.has_more

    @property
    def has_more_to_do(self) -> bool:
        """True if the owner should do another `step` immediately, without waiting for an event."""
        if self._dispatch.is_under_way:
            return False  # the `on_work_ended` callback wakes the owner
        return self.has_more_to_dispatch or (
            not self.is_superseded and self._maintenance.checkpoints.has_more_snapshots
        )

    @property
    def is_upkeep_under_way(self) -> bool:
        """True if upkeep waits for further steps: a checkpoint, deletions, or the retry of a dispatch."""
        is_retried = self._dispatch.fault is not None
        return is_retried or self._maintenance.checkpoints.is_under_way or self.retention.is_under_way

    def on_work_ended(self, callback: Callable[[], None]) -> None:
        """Set a function that is called, on a background thread, each time background work has finished.

        The next `step` handles the result of the work.
        """
        self._parts.background.on_work_done(callback)

    def on_confirmed(self, offset: int, callback: Callback, messages: int = 1) -> None:
        """Register a callback that `confirm` calls after `positions.confirmed` has reached `offset`.

        `messages` is the number of messages that wait for it, for `positions.waiting`.
        If the store has failed, the callback is called immediately with the error.
        """
        if self._failure is not None:
            callback(self._failure)
        else:
            self.positions.on_confirmed(offset, callback, messages)

    def confirm(self) -> bool:
        """Advance `positions.confirmed`, and call the callbacks whose offset is confirmed.

        Returns False, and does neither, if another writer has opened the store.
        """
        if not self._check_epoch():
            return False
        self.positions.confirm()
        return True

    def abandon_unconfirmed(self, error: StoreError) -> None:
        """Call the callbacks of all offsets that are not confirmed with `error`; the store stays writable.

        For a replica that is no longer the master, because nothing confirms these appends any more.
        """
        if self.confirm():
            self.positions.fail(error, beyond=self.positions.confirmed)

    def advance(self) -> Sequence[Arrival]:
        """Confirm, then do a `step`, whose result is returned."""
        self.confirm()
        return self.step()

    def step(self) -> Sequence[Arrival]:
        """Dispatch one slice of the confirmed records, and handle finished background work.

        Returns the new messages of awaited queues (see `await_messages`). If another thread writes the
        consume queue units of a slice, a later `step`, after `on_work_ended`, returns its messages.
        """
        dispatch = self._dispatch
        if not self.is_superseded:
            if dispatch.can_finish:
                dispatch.finish()
                self._maintain()  # also here, because a step may be under way at every call
            if not dispatch.is_under_way:
                dispatch.advance()
            if not dispatch.is_under_way:
                self._maintain()
        return self._parts.queue_sink.take_arrivals()

    def dispatch_now(self) -> None:
        """Dispatch all confirmed records on this thread."""
        if self.confirm():
            self._dispatch.run()

    def finish_background(self) -> None:
        """Wait for all background work and handle its results."""
        self._parts.background.finish()

    def _maintain(self) -> None:
        self._parts.background.collect()
        self._maintenance.turn()
        self.retention.turn()

    def _check_epoch(self) -> bool:
        """Return True if no other writer has opened the store. Otherwise, make this store read-only."""
        if not self.is_superseded and not self._guards.epoch.is_ours():
            self.is_superseded = True
            reason = "another writer has opened this store: this writer is fenced and can no longer write"
            self.fail(StoreError(reason, self.root))
        return not self.is_superseded

    def fail(self, error: StoreError) -> None:
        """Make the store read-only until it is reopened, and pass the error to all waiting callers."""
        if self._failure is None:
            _log.error("store_failed", root=str(self.root), error=str(error))
            self._failure = error
            self.gate.close(FAILURE, error.reason, error.path, error.position)
        self.positions.fail(error)
        self._maintenance.fail(error)

    # ---- flush ---------------------------------------------------------------------------------------------

    def flush_job(self) -> FlushJob | None:
        """Return a job that flushes all written data to disk.

        Returns None if everything is flushed, if a flush is under way, or if the store has failed. After the
        caller has run the job, it must call `flush_done` or `flush_failed`.
        """
        return self._flush.begin(self._appender.last_timestamp) if self._failure is None else None

    def flush_done(self, job: FlushJob) -> None:
        """Record that `job.run` has succeeded. Ignored if the log was truncated since the job began."""
        if self._flush.end(job, is_flushed=True):
            self._maintenance.checkpoints.log_flushed(job.timestamp)

    def flush_failed(self, job: FlushJob, error: Exception) -> None:
        """Record that `job.run` has raised `error`, and make the store read-only."""
        self._flush.end(job, is_flushed=False)
        cause = explain(error) if isinstance(error, OSError) else repr(error)
        reason = f"flush to offset {job.target:,} failed: {cause}; restart the broker to recover"
        self.fail(StoreError(reason, self.root))

    def flush_now(self) -> None:
        """Flush all written data to disk on this thread. Raises StoreError if that fails."""
        job = self.flush_job()
        if job is None:
            return
        try:
            job.run()
        except Exception as error:
            self.flush_failed(job, error)
            raise self._refusal() from error
        self.flush_done(job)

    # ---- delete --------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic. Return how many queues were deleted.

        The records stay in the log until their log files are deleted.
        """
        self._maintenance.finish()
        self.flush_now()
        self.dispatch_now()  # records dispatched later would create the queues again
        removed, removal = self._maintenance.take_out_topic(topic)
        removal.run()
        self._maintenance.checkpoints.checkpoint_now()
        return removed

    def forget_topic(self, topic: str, callback: Callback) -> int:
        """Delete the queues of a topic without waiting for the disk. Return how many queues were deleted.

        `callback` is called when the deletion is durable. The caller should first dispatch all appended
        messages of the topic, because a later dispatch would create the queues again. Raises OSError.
        """
        if self._failure is not None:
            callback(self._refusal())
            return 0
        self._dispatch.finish()
        removed, removal = self._maintenance.take_out_topic(topic)
        self._maintenance.remove_soon(removal, callback)
        return removed

    # ---- close ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, dispatch all records, make a checkpoint, and release the lock of the store.

        Raises StoreError if any of this fails; the file `abort` then remains, so that the next start
        recovers.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with explained("was not closed cleanly", self.root):
                self._close_cleanly()
        finally:
            closed = StoreError("the store has been closed", self.root)
            self.positions.fail(closed)
            self._maintenance.fail(closed)
            self._maintenance.close()
            self.retention.finish()
            self._parts.close()
            self._guards.release()

    def _close_cleanly(self) -> None:
        if self._failure is not None or not self._check_epoch():
            return
        self._maintenance.finish()
        self.flush_now()
        self.dispatch_now()
        if self._dispatch.fault is None and self._check_epoch():
            self._maintenance.close_cleanly()
            self._guards.abort.remove()


__all__ = ["AppendResult", "Arrival", "GetMessageResult", "GetMessageStatus", "MessageStore"]
