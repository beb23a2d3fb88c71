"""What both faces of the push consumer share: queues come from the group, messages go to the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from actors.remoting.bodies.groups import GrantedQueue
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import ConsumerSendMsgBackHeader
from actors.remoting.table import RequestTable
from cluster.client.config import PushConfig
from cluster.client.consumer.arguments import ALL, check_queue, expression_of, topics_of
from cluster.client.consumer.consumer_stats import NOTE_S, ConsumeCounts, ConsumerStats
from cluster.client.consumer.consuming import Consuming, Listener
from cluster.client.consumer.fetcher import Chunk, Fetcher
from cluster.client.consumer.process_queue import ProcessQueue
from cluster.client.consumer.queue_work import Limits, QueueWork
from cluster.client.consumer.running_info import QueueInfo, answer_running_info
from cluster.client.consumer.tool_answers import answer_directly, answer_status
from cluster.client.errors import ClientError, QueueNotAssigned
from cluster.client.group.group_session import GroupSession, notified_by, tags_of
from cluster.client.group.offset_client import Commit, OffsetClient
from cluster.client.transport.instance import ClientInstance
from store.clock import Clock, SystemClock
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.validate import RETRY_TOPIC_PREFIX

log = get_logger(__name__)

DEAD_LETTER_LEVEL = -1
TIMED_OUT_LEVEL = 3  # ten seconds, as RocketMQ's consumers ask for
TIMEOUT_CHECK_MAX_MS = 60_000


class PushCore:
    """One push consumer. Lives on its loop."""

    def __init__(self, config: PushConfig, listener: Listener, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.failure: ClientError | None = None
        self._ended = asyncio.Event()
        self.instance: ClientInstance
        self.session: GroupSession
        self.offsets: OffsetClient
        self._listener = listener
        self._consuming: Consuming
        self._stats: ConsumerStats
        self._works: dict[MessageQueue, QueueWork] = {}
        self._counts_of_others: dict[str, ConsumeCounts] = {}
        self._pending: set[MessageQueue] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._is_suspended = False
        self._is_paused = False
        self._changed = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make the connections' home on the running loop; nothing is dialled yet."""
        table = RequestTable()
        self.instance = ClientInstance(self.config, clock=self.clock, table=table)
        self.offsets = OffsetClient(self.instance, self.config.group, self.config.consume_timestamp_ms)
        self.session = GroupSession(self.instance, self.config, self)
        notified_by(table, self.session.wake)
        self._stats = ConsumerStats(self._counts, self.instance.now_ms)
        self._consuming = Consuming(
            self._listener, self.config, self.clock, self._settled, self._dead_letter, self.instance.spawn
        )
        self._answer_tools(table)
        self.instance.start_route_refresh()
        self.instance.supervisor.every("commit", lambda: self.session.commit_interval_ms, self._commit_all)
        self.instance.supervisor.start("consume-timeout", self._watch_listeners)
        self.instance.supervisor.start("stats", self._note_stats)

    def _answer_tools(self, table: RequestTable) -> None:
        instance, session, threads = self.instance, self.session, self.config.consume_threads
        answer_running_info(table, instance, session, self._queues, threads, self._stats.status)
        answer_status(table, self._queues)
        answer_directly(table, self._consuming.call_directly, instance.now_ms)

    def subscribe(self, topics: str | Iterable[str], expression: str) -> None:
        """Share the topics' queues with the group's other members, and those of its retry topic."""
        names, expression = topics_of(topics), expression_of(expression)
        for topic in names:
            self.session.subscribe(topic, expression)
        for work in self._works.values():
            if work.queue.topic in names and work.fetcher is not None:
                work.fetcher.filter_by(expression)
        self.session.subscribe(f"{RETRY_TOPIC_PREFIX}{self.config.group}", ALL)

    def assignment(self) -> list[MessageQueue]:
        """The queues held now."""
        works = list(self._works.values())
        return sorted(work.queue for work in works if not work.is_leaving and not work.is_of_retries)

    def _queues(self) -> dict[MessageQueue, QueueInfo]:
        """What is held, for administrators."""
        found = {}
        epoch_ms = self.clock.wall_ms() - self.instance.now_ms()  # of the monotonic clock's begin
        for work in self._works.values():
            queue = work.process_queue
            done, end = queue.commit_offset, queue.fetched_to
            asked_ms = work.fetcher.asked_ms if work.fetcher is not None else 0
            found[work.queue] = QueueInfo(
                done,
                done,
                end,
                queue.cached_messages,
                queue.cached_bytes,
                work.is_leaving,
                asked_ms and asked_ms + epoch_ms,
                work.taken_ms and work.taken_ms + epoch_ms,
            )
        return found

    def _counts(self) -> dict[str, ConsumeCounts]:
        """What has been pulled and consumed, by topic, of the queues held and of those given back."""
        counts = dict(self._counts_of_others)
        for work in self._works.values():
            topic = work.queue.topic
            counts[topic] = counts.get(topic, ConsumeCounts()).plus(work.counts)
        return counts

    def _forget(self, work: QueueWork) -> None:
        """The queue is no longer held; what was counted of it stays."""
        topic = work.queue.topic
        counted = self._counts_of_others.get(topic, ConsumeCounts())
        self._counts_of_others[topic] = counted.plus(work.counts)
        del self._works[work.queue]
        self._share_limits(topic)

    async def _note_stats(self) -> None:
        while True:
            await asyncio.sleep(NOTE_S)
            self._stats.note()

    async def join(self) -> None:
        """Wait for the end. Raises the failure that brought it."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    # ---- queues come

    def granted(self, granted: GrantedQueue) -> None:
        """The group gives a queue."""
        self._pending.add(granted.queue)
        self.instance.spawn(self._begin(granted), f"begin {granted.queue}")

    async def _begin(self, granted: GrantedQueue) -> None:
        queue = granted.queue
        is_of_retries = queue.topic.startswith(RETRY_TOPIC_PREFIX)
        consume_from = "earliest" if is_of_retries else self.config.consume_from
        offset = await self.offsets.starting(queue, consume_from, granted.generation, is_patient=True)
        if queue not in self._pending:
            return  # taken back meanwhile
        self._pending.discard(queue)
        limits = Limits.of(self.config, 1)
        work = QueueWork(queue, granted.generation, ProcessQueue(offset), limits, committed=offset)
        work.is_paused = self._is_paused
        self._works[queue] = work
        self._share_limits(queue.topic)
        work.fetcher = Fetcher(
            self.instance,
            queue,
            offset,
            self.session.subscriptions.get(queue.topic, ALL),
            self.config,
            lambda: self.config.fetch_bytes,
            self,
            max_messages=self.config.max_cached_messages,
        )
        self._control_flow(work)
        work.fetcher.start()

    def _share_limits(self, topic: str) -> None:
        """Queues of one topic share what the topic is allowed, where it is bounded."""
        config = self.config
        if config.max_cached_messages_for_topic is None and config.max_cached_bytes_for_topic is None:
            return
        works = [work for queue, work in self._works.items() if queue.topic == topic]
        limits = Limits.of(config, len(works))
        for work in works:
            work.limits = limits

    def arrived(self, chunk: Chunk) -> None:
        """Offer what a fetcher brings to the listeners."""
        chunk.fetcher.consumed(len(chunk.records))  # here the process queue bounds what lies fetched
        work = self._works.get(chunk.queue)
        if work is None or work.fetcher is not chunk.fetcher or work.is_leaving:
            return
        tags = tags_of(self.session.subscriptions.get(chunk.queue.topic, ALL))
        if work.put(chunk, frozenset(tags) if tags else None):
            self._consuming.offer(work)
        self._control_flow(work)

    def _control_flow(self, work: QueueWork) -> None:
        if work.fetcher is not None:
            work.fetcher.pause(paused=work.is_full or work.is_paused or self._is_suspended)

    def _settled(self, work: QueueWork) -> None:
        """Listeners have finished something of a queue that is full, or all of one that is leaving."""
        if not work.is_leaving:
            self._control_flow(work)
        elif not work.running:
            self._release(work)

    # ---- pausing

    def pause(self, queues: Sequence[MessageQueue]) -> None:
        """Hand nothing of these queues to the listener, and fetch none of it; without queues: of any."""
        for work in self._named(queues):
            work.pause()
            self._control_flow(work)
        self._is_paused = self._is_paused or not queues

    def resume(self, queues: Sequence[MessageQueue]) -> None:
        """End a pause of these queues, or of all."""
        self._is_paused = self._is_paused and bool(queues)
        for work in self._named(queues):
            is_due, tasks = work.resume()
            for task in tasks:
                self._consuming.offer(task)
            if is_due:
                self._consuming.offer(work)
            self._control_flow(work)

    def _named(self, queues: Sequence[MessageQueue]) -> list[QueueWork]:
        if not queues:
            return list(self._works.values())
        for queue in queues:
            check_queue(queue)
        works = [self._works.get(queue) for queue in queues]
        for queue, work in zip(queues, works, strict=True):
            if work is None or work.is_leaving:
                raise QueueNotAssigned(
                    f"{queue} is not among the queues of this consumer now (see assignment())"
                )
        return [work for work in works if work is not None]

    # ---- queues go

    def revoked(self, queue: MessageQueue) -> None:
        """The group takes a queue back: stop, finish what runs, commit, release."""
        work = self._works.get(queue)
        if work is None:
            self._pending.discard(queue)
            self.session.released(queue)
            return
        if work.fetcher is not None:
            work.fetcher.stop()
        if work.leave():
            self._release(work)

    def lost(self, queue: MessageQueue) -> None:
        """The lease was over and others may have the queue: let go of it at once."""
        self._pending.discard(queue)
        work = self._works.get(queue)
        if work is not None:
            log.warning("queue_lost", queue=str(queue), consumed=work.process_queue.commit_offset)
            self._drop(work)
            # Where nobody has begun on it yet, this spares the next owner what is done; else it is refused.
            self.instance.spawn(self._commit([work]), f"last commit {queue}")

    def _drop(self, work: QueueWork) -> None:
        work.leave()
        if work.fetcher is not None:
            work.fetcher.stop()
        if self._works.get(work.queue) is work:
            self._forget(work)
            self._changed.set()

    def _release(self, work: QueueWork) -> None:
        if self._works.get(work.queue) is work:
            self._forget(work)
            task = self.instance.spawn(self._commit_and_release(work), f"release {work.queue}")
            self._releases.add(task)
            task.add_done_callback(self._released)

    def _released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        self._changed.set()

    async def _commit_and_release(self, work: QueueWork) -> None:
        await self._commit([work])
        self.session.released(work.queue)

    def suspended(self, *, is_suspended: bool) -> None:
        """The lease is over, or runs again."""
        log.info("consumer_suspended" if is_suspended else "consumer_goes_on", group=self.config.group)
        self._is_suspended = is_suspended
        self._consuming.hold(held=is_suspended)
        for work in self._works.values():
            self._control_flow(work)

    def failed(self, error: ClientError | None) -> None:
        """The group refuses this member: whoever joins is told."""
        if error is not None:
            self.failure = error
            self._ended.set()

    def never_opened(self) -> None:
        """It was closed before anything was asked of it: whoever joins has nothing to wait for."""
        self._ended.set()

    # ---- offsets

    async def _commit(self, works: Sequence[QueueWork]) -> None:
        moved = [work for work in works if work.process_queue.commit_offset != work.committed]
        commits = {work.queue: Commit(work.process_queue.commit_offset, work.generation) for work in moved}
        outcome = await self.offsets.commit_quietly(commits)
        for work in moved:
            if work.queue in outcome.refused:
                self._fenced(work)
            elif outcome.has(work.queue):
                work.committed = commits[work.queue].offset

    def _fenced(self, work: QueueWork) -> None:
        log.warning(
            "commit_fenced", group=self.config.group, queue=str(work.queue), generation=work.generation
        )
        is_ours = self._works.get(work.queue) is work
        self._drop(work)
        if is_ours:
            self.session.membership.fenced(work.queue)

    async def _commit_all(self) -> None:
        await self._commit(list(self._works.values()))

    # ---- what listeners could not do

    async def _dead_letter(self, work: QueueWork, messages: Sequence[MessageExt]) -> bool:
        """Have the broker put `messages` among the group's dead letters; says whether it did."""
        return await self._send_back(work, messages, DEAD_LETTER_LEVEL)

    async def _send_back(self, work: QueueWork, messages: Sequence[MessageExt], delay_level: int) -> bool:
        for message in messages:
            header = ConsumerSendMsgBackHeader(
                message.commit_log_offset,
                self.config.group,
                delay_level,
                message.msg_id,
                message.topic,
                max_reconsume_times=self.config.max_reconsume_times,
            )
            try:
                address = self.instance.master_of(work.queue.topic, work.queue.broker_name)
                command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
                await self.instance.invoke(address, command)
            except ClientError as error:
                log.warning(
                    "send_back_failed", group=self.config.group, msg_id=message.msg_id, error=str(error)
                )
                return False
        return True

    async def _watch_listeners(self) -> None:
        """Send back what a listener has worked on for too long (RocketMQ ProcessQueue.cleanExpiredMsg)."""
        timeout_ms = self.config.consume_timeout_ms
        while True:
            await asyncio.sleep(min(timeout_ms / 2, TIMEOUT_CHECK_MAX_MS) / 1000)
            started_before_ms = self.instance.now_ms() - timeout_ms
            for work in list(self._works.values()):
                for task in work.overdue(started_before_ms):
                    is_sent_back = await self._send_back(work, task.messages, TIMED_OUT_LEVEL)
                    if is_sent_back and work.give_up(task):
                        log.warning(
                            "listener_timed_out",
                            group=self.config.group,
                            queue=str(work.queue),
                            offset=task.portion.begin,
                            messages=len(task.messages),
                        )
                        self._settled(work)

    async def close(self) -> None:
        """Stop fetching, finish what runs (at most `close_timeout_ms`), commit, release, leave the group.

        Where the listener asks, it would wait for itself: that goes on beside it then, and `join` tells the
        end.
        """
        self.session.begin_to_leave()
        if self._consuming.is_caller_listener:
            # Not one of the instance's tasks: closing ends those.
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="close")
        else:
            await self._close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(self.config.close_timeout_ms / 1000):
                while self._works or self._releases:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("closed_with_listeners_running", group=self.config.group, queues=len(self._works))
            await self._commit(list(self._works.values()))
        finally:  # also where the wait was interrupted: nobody can ask a second time
            self._consuming.stop()
            await self.session.leave()
            await self.instance.close()
            self._ended.set()
