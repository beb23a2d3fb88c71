"""What both faces of the push consumer share: queues come from the group, messages go to the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.groups import GrantedQueue
from actors.remoting.headers import ConsumerSendMsgBackHeader
from actors.remoting.table import RequestTable
from cluster.client.config import PushConfig
from cluster.client.core.chunk_reader import ChunkReader
from cluster.client.core.consuming import Consuming, Listener, QueueWork, Task
from cluster.client.core.fetcher import Chunk, Fetcher
from cluster.client.core.group_session import GroupSession, notified_by, tags_of
from cluster.client.core.instance import ClientInstance
from cluster.client.core.offsets import Commit, OffsetClient
from cluster.client.core.process_queue import ProcessQueue
from cluster.client.errors import ClientError, DataDamaged
from store.clock import Clock, SystemClock
from store.logs import get_logger
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

log = get_logger(__name__)

ALL = "*"
DEAD_LETTER_LEVEL = -1


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
        self._works: dict[MessageQueue, QueueWork] = {}
        self._pending: set[MessageQueue] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._is_suspended = False
        self._changed = asyncio.Event()

    def open(self) -> None:
        """Make the connections' home on the running loop; nothing is dialled yet."""
        table = RequestTable()
        self.instance = ClientInstance(self.config, clock=self.clock, table=table)
        self.offsets = OffsetClient(self.instance, self.config.group)
        self.session = GroupSession(self.instance, self.config, self)
        notified_by(table, self.session.wake)
        self._consuming = Consuming(
            self._listener, self.config, self._finished, self._dead_letter, self.instance.spawn
        )
        self.instance.start_route_refresh()
        self.instance.spawn(self._commit_now_and_then(), "commit")

    def subscribe(self, topics: Iterable[str], expression: str) -> None:
        """Share the topics' queues with the group's other members."""
        for topic in topics:
            self.session.subscribe(topic, expression)

    def assignment(self) -> list[MessageQueue]:
        """The queues held now."""
        return sorted(work.queue for work in list(self._works.values()) if not work.is_leaving)

    async def join(self) -> None:
        """Wait for the end. Raises the failure that brought it."""
        await self._ended.wait()
        if self.failure is not None:
            raise self.failure

    # ---- queues come
    # -------------------------------------------------------------------------------------------

    def granted(self, granted: GrantedQueue) -> None:
        """The group gives a queue."""
        self._pending.add(granted.queue)
        self.instance.spawn(self._begin(granted), f"begin {granted.queue}")

    async def _begin(self, granted: GrantedQueue) -> None:
        queue = granted.queue
        offset = await self.offsets.starting(queue, self.config.consume_from, granted.generation)
        if queue not in self._pending:
            return  # taken back meanwhile
        self._pending.discard(queue)
        work = QueueWork(queue, granted.generation, ProcessQueue(offset), committed=offset)
        self._works[queue] = work
        expression = self.session.subscriptions.get(queue.topic, ALL)
        work.fetcher = Fetcher(
            self.instance, queue, offset, expression, self.config, self._max_cached_bytes, self
        )
        work.fetcher.pause(paused=self._is_suspended)
        work.fetcher.start()

    def _max_cached_bytes(self) -> int:
        return self.config.max_cached_bytes

    def arrived(self, chunk: Chunk) -> None:
        """Cut what a fetcher brings into portions for the listener."""
        work = self._works.get(chunk.queue)
        if work is None or work.fetcher is not chunk.fetcher or work.is_leaving:
            return
        if chunk.next_offset < work.process_queue.next_offset:
            work.process_queue = ProcessQueue(chunk.next_offset)  # the queue ends before where we were
        tags = tags_of(self.session.subscriptions.get(chunk.queue.topic, ALL))
        reader = ChunkReader(chunk, frozenset(tags) if tags else None)
        unwanted_bytes = len(chunk.records)
        try:
            while not reader.is_exhausted:
                messages = reader.take_messages(self.config.consume_batch)
                if messages:
                    unwanted_bytes -= self._put(work, reader.next_offset, messages)
        except DataDamaged:
            # Never passed over in silence, never guessed at: the queue stops here until somebody looks.
            log.exception("queue_stopped_at_damage", queue=str(chunk.queue))
            chunk.fetcher.stop()
            return
        work.process_queue.skip_to(chunk.next_offset)
        chunk.fetcher.consumed(unwanted_bytes)
        self._control_flow(work)

    def _put(self, work: QueueWork, next_offset: int, messages: list[MessageExt]) -> int:
        size_bytes = sum(message.store_size for message in messages)
        process_queue = work.process_queue
        portion = process_queue.take(process_queue.next_offset, next_offset, len(messages), size_bytes)
        self._consuming.put(Task(work, process_queue, portion, messages))
        return size_bytes

    def _control_flow(self, work: QueueWork) -> None:
        fetcher = work.fetcher
        if fetcher is not None:
            is_full = work.process_queue.cached_messages >= self.config.max_cached_messages
            fetcher.pause(paused=is_full or self._is_suspended)

    def _finished(self, task: Task) -> None:
        work = task.work
        if task.portion.is_finished and work.fetcher is not None:
            work.fetcher.consumed(task.portion.size_bytes)
        if work.is_leaving:
            if not work.running:
                self._release(work)
        else:
            self._control_flow(work)

    # ---- queues go
    # ---------------------------------------------------------------------------------------------

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

    def _release(self, work: QueueWork) -> None:
        if self._works.get(work.queue) is work:
            del self._works[work.queue]
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

    def failed(self, error: ClientError) -> None:
        """The group refuses this member: whoever joins is told."""
        self.failure = error
        self._ended.set()

    # ---- offsets and dead letters
    # ------------------------------------------------------------------------------

    async def _commit(self, works: Sequence[QueueWork]) -> None:
        moved = [work for work in works if work.process_queue.commit_offset != work.committed]
        commits = {work.queue: Commit(work.process_queue.commit_offset, work.generation) for work in moved}
        try:
            refused = await self.offsets.commit(commits)
        except ClientError as error:
            log.warning("commit_failed", group=self.config.group, error=str(error))
            return
        for work in moved:
            if work.queue in refused:
                self._fenced(work)
            else:
                work.committed = commits[work.queue].offset

    def _fenced(self, work: QueueWork) -> None:
        log.warning(
            "commit_fenced", group=self.config.group, queue=str(work.queue), generation=work.generation
        )
        work.leave()
        if work.fetcher is not None:
            work.fetcher.stop()
        if self._works.get(work.queue) is work:
            del self._works[work.queue]
        self.session.membership.fenced(work.queue)

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self.config.commit_interval_ms / 1000)
            await self._commit(list(self._works.values()))

    async def _dead_letter(self, messages: Sequence[MessageExt]) -> bool:
        """Have the broker put `messages` among the group's dead letters; says whether it did."""
        for message in messages:
            header = ConsumerSendMsgBackHeader(
                message.commit_log_offset,
                self.config.group,
                DEAD_LETTER_LEVEL,
                message.msg_id,
                message.topic,
                max_reconsume_times=self.config.max_reconsume_times,
            )
            try:
                address = self.instance.master_of(message.topic, message.broker_name)
                command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
                await self.instance.invoke(address, command)
            except ClientError as error:
                log.warning(
                    "dead_letter_failed", group=self.config.group, msg_id=message.msg_id, error=str(error)
                )
                return False
        return True

    async def close(self) -> None:
        """Stop fetching, finish what runs (at most `close_timeout_ms`), commit, release, leave the group."""
        self.session.begin_to_leave()
        try:
            async with asyncio.timeout(self.config.close_timeout_ms / 1000):
                while self._works or self._releases:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            log.warning("closed_with_listeners_running", group=self.config.group, queues=len(self._works))
            await self._commit(list(self._works.values()))
        self._consuming.stop()
        await self.session.leave()
        await self.instance.close()
        self._ended.set()
