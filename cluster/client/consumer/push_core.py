"""PushCore: the implementation of the push consumer behind the blocking and the async API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from actors.transport.table import RequestTable
from actors.wire.bodies.groups import AssignedQueue
from cluster.client.config import PushConfig
from cluster.client.consumer.arguments import selector_of, topics_of
from cluster.client.consumer.consumer_stats import SNAPSHOT_INTERVAL_S, ConsumerStats
from cluster.client.consumer.consuming import Consuming
from cluster.client.consumer.fetcher import Chunk
from cluster.client.consumer.held_queues import HeldQueues
from cluster.client.consumer.listener import Listener, ListenerCall
from cluster.client.consumer.local_offsets import make_offset_store
from cluster.client.consumer.queue_opener import QueueOpener
from cluster.client.consumer.queue_work import QueueWork
from cluster.client.consumer.retries import make_retries
from cluster.client.consumer.running_info import QueueInfo, respond_running_info
from cluster.client.consumer.send_back import TIMED_OUT_LEVEL, make_send_back
from cluster.client.consumer.tool_responses import respond_consume_directly, respond_status
from cluster.client.errors import ClientError
from cluster.client.group.group_session import GroupSession, register_group_change
from cluster.client.group.offset_client import Commit
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from cluster.client.trace.trace_dispatcher import TraceDispatcher
from cluster.client.trace.trace_hooks import TraceConsumeHook
from cluster.client.transport.instance import ClientInstance
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue
from store.message.validate import RETRY_TOPIC_PREFIX

_log = get_logger(__name__)

TIMEOUT_CHECK_MAX_MS = 60_000


class PushCore:
    """One push consumer. Create it on the event loop that runs it. `subscribe` opens the connections."""

    def __init__(self, config: PushConfig, listener: Listener, clock: Clock | None = None) -> None:
        table = RequestTable()
        self.instance = ClientInstance(config, clock=clock, table=table)
        if config.trace:
            dispatcher = TraceDispatcher(self.instance, config, config.trace_topic)
            hook = TraceConsumeHook(dispatcher, self.instance.clock)
            config = replace(config, consume_hooks=(*config.consume_hooks, hook))
        self.session = GroupSession(self.instance, config, self, is_broadcasting=config.is_broadcasting)
        self.held = HeldQueues(config)
        self.failure: ClientError | None = None
        self._config = config
        self._offsets = make_offset_store(self.instance, config)
        self._send_back = make_send_back(self.instance, config)
        supervisor = self.instance.supervisor
        self._consuming = Consuming(
            ListenerCall(listener),
            config,
            self.instance.clock,
            supervisor,
            self._settled,
            make_retries(config, supervisor, self._send_back, self._settled),
            self.session.has_lease,
        )
        self._opener = QueueOpener(
            self.instance, config, self.session, self._offsets, self._consuming.offer, self
        )
        self._pending: dict[MessageQueue, AssignedQueue] = {}
        self._releases: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        stats = ConsumerStats(self.held.counts, self.instance.now_ms)
        self._respond_to_requests(table, stats)
        self.instance.start_route_refresh()
        supervisor.every("commit", lambda: self.session.commit_interval_ms, self._commit_all)
        check_ms = min(config.consume_timeout_ms // 2, TIMEOUT_CHECK_MAX_MS)
        if not config.is_broadcasting:
            supervisor.every("consume-timeout", lambda: check_ms, self._send_back_overdue)
        if self._opener.uses_locks:
            supervisor.every("lock", self._opener.renewal_ms, self._renew_locks)
        supervisor.every("stats", lambda: SNAPSHOT_INTERVAL_S * 1000, stats.take_snapshot)

    def _respond_to_requests(self, table: RequestTable, stats: ConsumerStats) -> None:
        instance, session, threads = self.instance, self.session, self._config.consume_threads
        register_group_change(table, session.wake)
        ordered = self._config.ordered
        respond_running_info(table, instance, session, self._infos, threads, stats.status, ordered=ordered)
        respond_status(table, self._infos)
        respond_consume_directly(
            table, self._consuming.listener.call_directly, instance.now_ms, self.held.names
        )

    def _infos(self) -> Mapping[MessageQueue, QueueInfo]:
        return self.held.infos(self.instance.clock.wall_ms() - self.instance.now_ms())

    def subscribe(self, topics: str | Iterable[str], expression: str | MessageSelector) -> None:
        """Subscribe to `topics`, and to the retry topic if the group has one. Raises ConfigInvalid."""
        names, selector = list(map(self.held.names.wrap, topics_of(topics))), selector_of(expression)
        for topic in names:
            self.session.subscribe(topic, selector)
        for work in self.held.all():
            if work.queue.topic in names:
                work.fetcher.filter_by(selector)
        if not self._config.is_broadcasting:
            self.session.subscribe(f"{RETRY_TOPIC_PREFIX}{self._config.group}", ALL_MESSAGES)

    async def join(self) -> None:
        """Wait until the consumer is closed. Raises the error if the group refused this member."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    # ---- assignment

    def assigned(self, assigned: AssignedQueue) -> None:
        """Start to consume a queue that the group has assigned."""
        self._pending[assigned.queue] = assigned
        self.instance.supervisor.start(f"begin {assigned.queue}", partial(self._start_queue, assigned))

    async def _start_queue(self, assigned: AssignedQueue) -> None:
        queue = assigned.queue
        work = await self._opener.open(assigned, lambda: self._pending.get(queue) is assigned)
        if work is None:
            return  # the group has revoked the queue meanwhile
        work.is_paused = self._is_paused
        self.held.add(work)
        del self._pending[queue]
        self._control_flow(work)
        work.fetcher.start()

    def arrived(self, chunk: Chunk) -> None:
        """Add a fetched chunk to its queue and offer the queue to the listeners."""
        # The limits of the process queue replace the buffer limit of the fetcher.
        chunk.fetcher.consumed(len(chunk.records))
        work = self.held.get(chunk.queue)
        if work is None or work.fetcher is not chunk.fetcher or work.is_leaving:
            return
        tags = self.session.subscriptions.get(chunk.queue.topic, ALL_MESSAGES).tags
        if work.put(chunk, frozenset(tags) if tags else None):
            self._consuming.offer(work)
        self._control_flow(work)

    def _control_flow(self, work: QueueWork) -> None:
        work.fetcher.pause(paused=work.is_full or work.is_paused or self.session.is_suspended)

    def _settled(self, work: QueueWork) -> None:
        """Resume fetching of a queue that is no longer full, or release a queue without running listeners."""
        if not work.is_leaving:
            self._control_flow(work)
        elif not work.running:
            self._opener.returned(work)
            self._release(work)

    # ---- pause

    def pause(self, queues: Sequence[MessageQueue]) -> None:
        """Stop fetching and consuming `queues`, or all if `queues` is empty. Raises QueueNotAssigned."""
        for work in self.held.named(queues):
            work.pause()
            self._control_flow(work)
        self._is_paused = self._is_paused or not queues

    def resume(self, queues: Sequence[MessageQueue]) -> None:
        """End the pause of `queues`, or of all queues if `queues` is empty. Raises QueueNotAssigned."""
        self._is_paused = self._is_paused and bool(queues)
        for work in self.held.named(queues):
            is_due, tasks = work.resume()
            for task in tasks:
                self._consuming.offer(task)
            if is_due:
                self._consuming.offer(work)
            self._control_flow(work)

    # ---- release

    def revoked(self, queue: MessageQueue) -> None:
        """Release a queue: stop fetching, wait for its running listeners, commit, and report the release."""
        work = self.held.get(queue)
        if work is None:
            self._pending.pop(queue, None)
            self.session.released(queue)
            return
        self._leave(work)

    def _leave(self, work: QueueWork) -> None:
        work.fetcher.stop()
        if work.leave():
            self._release(work)

    async def _renew_locks(self) -> None:
        """Renew the queue locks of an ordered consumer, and release the queues that others have locked.

        The group then assigns such a queue again, and this member waits for its lock.
        """
        for work in await self._opener.renew(self.held.all()):
            _log.warning("queue_lock_lost", group=self._config.group, queue=str(work.queue))
            if work in self.held:
                self._leave(work)

    def lost(self, queue: MessageQueue) -> None:
        """Drop a queue immediately: the lease had expired, so another member may hold it."""
        self._pending.pop(queue, None)
        work = self.held.get(queue)
        if work is not None:
            _log.warning("queue_lost", queue=str(queue), consumed=work.process_queue.commit_offset)
            self._drop(work)
            # If no other member has the queue yet, this commit avoids duplicates. Otherwise it is refused.
            self.instance.supervisor.start(f"last commit {queue}", partial(self._commit, [work]))

    def _drop(self, work: QueueWork) -> None:
        if not work.leave():
            self._opener.dropped(work)
        work.fetcher.stop()
        if work in self.held:
            self.held.remove(work)
            self._changed.set()

    def _release(self, work: QueueWork) -> None:
        if work in self.held:
            self.held.remove(work)
            release = partial(self._commit_and_release, work)
            task = self.instance.supervisor.start(f"release {work.queue}", release)
            self._releases.add(task)
            task.add_done_callback(self._released)

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        self._changed.set()

    async def _commit_and_release(self, work: QueueWork) -> None:
        await self._commit([work])
        if not self._is_assigned_again(work.queue):
            await self._opener.close(work)
        if not self._is_assigned_again(work.queue):
            self.session.released(work.queue)

    def _is_assigned_again(self, queue: MessageQueue) -> bool:
        """Return True if a queue that is being released has meanwhile been lost and assigned again.

        The lock and the membership then belong to the later grant, and the release must not end them.
        """
        return queue in self._pending or self.held.get(queue) is not None

    def suspended(self, *, is_suspended: bool) -> None:
        """Stop fetching and consuming while the lease is expired, or resume them."""
        _log.info("consumer_suspended" if is_suspended else "consumer_resumed", group=self._config.group)
        self._consuming.suspend(suspended=is_suspended)
        for work in self.held.all():
            self._control_flow(work)

    def failed(self, error: ClientError | None) -> None:
        """Make `join` raise `error`, because the group refuses this member."""
        if error is not None:
            self.failure = error
            self._ended.set()

    # ---- offsets

    async def _commit(self, works: Sequence[QueueWork]) -> None:
        works = [work for work in works if work.may_commit]
        # A file keeps the epochs, too; it is only written if anything has changed.
        is_local = self._config.is_broadcasting
        moved = [work for work in works if is_local or work.process_queue.commit_offset != work.committed]
        commits = {
            work.queue: Commit(work.process_queue.commit_offset, work.generation, epoch.id, epoch.address)
            for work in moved
            for epoch in (work.fetcher.epoch,)
        }
        outcome = await self._offsets.commit_best_effort(commits)
        for work in moved:
            if work.queue in outcome.refused:
                self._fenced(work)
            elif outcome.has(work.queue):
                work.note_commit(commits[work.queue].offset)

    def _fenced(self, work: QueueWork) -> None:
        _log.warning(
            "commit_fenced", group=self._config.group, queue=str(work.queue), generation=work.generation
        )
        is_ours = work in self.held
        self._drop(work)
        if is_ours:
            self.session.membership.fenced(work.queue)

    async def _commit_all(self) -> None:
        await self._commit(self.held.all())

    async def _send_back_overdue(self) -> None:
        """Send messages back to the broker if their listener call exceeds `consume_timeout_ms`.

        The source of the behaviour is RocketMQ's ProcessQueue.cleanExpiredMsg.
        """
        started_before_ms = self.instance.now_ms() - self._config.consume_timeout_ms
        for work in self.held.all():
            for task in work.overdue(started_before_ms):
                unsent = await self._send_back.send(work.queue, task.messages, TIMED_OUT_LEVEL)
                if not unsent and work.abandon(task):
                    _log.warning(
                        "listener_timed_out",
                        group=self._config.group,
                        queue=str(work.queue),
                        offset=task.portion.begin,
                        messages=len(task.messages),
                    )
                    self._settled(work)

    async def close(self) -> None:
        """Stop fetching, wait for running listeners, commit, release the queues, and leave the group.

        The wait is limited to `close_timeout_ms`. If the listener itself is the caller, waiting for it would
        deadlock. The call then returns immediately, a separate task closes the consumer, and `join` returns
        when that is complete.
        """
        self.session.start_leaving()
        if self._consuming.listener.is_caller:
            # This must not be a task of the instance, because closing the instance cancels its tasks.
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close")
        else:
            await self._close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self._config.close_timeout_ms / 1000):
                while self.held or self._releases:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("close_timed_out", group=self._config.group, queues=len(self.held))
            await self._commit_all()
        finally:  # also if the wait was cancelled, because `close` cannot be called a second time
            self._consuming.stop()
            await self.session.leave()
            await self.instance.close()
            self._offsets.close()
            self._ended.set()
