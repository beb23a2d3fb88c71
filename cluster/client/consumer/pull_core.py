"""PullCore: the implementation of the pull consumer behind the blocking and the async API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, starmap
from operator import attrgetter

from actors.transport.table import RequestTable
from actors.wire.bodies.groups import AssignedQueue
from actors.wire.codes import ResponseCode
from cluster.client.config import ConsumerConfig
from cluster.client.consumer.arguments import (
    check_is_queue,
    offset_of,
    offsets_of,
    queues_of,
    selector_of,
    topics_of,
)
from cluster.client.consumer.deliveries import OFFSET_UNKNOWN, Deliveries, PulledQueue
from cluster.client.consumer.fetcher import Chunk, Fetcher, PullSender
from cluster.client.consumer.poll_watch import PollWatch
from cluster.client.consumer.running_info import QueueInfo, respond_running_info
from cluster.client.consumer.tool_responses import respond_status
from cluster.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    CommitFenced,
    ConfigInvalid,
    DeadlineExceeded,
    QueueNotAssigned,
)
from cluster.client.group.group_session import GroupSession, register_group_change
from cluster.client.group.offset_client import OffsetClient
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from cluster.client.namespaces import Namespace
from cluster.client.transport.instance import ClientInstance
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

MIN_SHARE_BYTES = 64 * 1024
START_TIMEOUT_S = 30


class PullCore:
    """One pull consumer. Create it on the event loop that runs it.

    It opens no connection before `subscribe` or `assign`. Only `deliveries` may be used by another thread.
    """

    def __init__(self, config: ConsumerConfig, clock: Clock | None = None) -> None:
        table = RequestTable()
        self.config = config
        self.instance = ClientInstance(config, clock=clock, table=table)
        self.session = GroupSession(self.instance, config, self)
        self.offsets = OffsetClient(self.instance, config.group, config.consume_timestamp_ms)
        self.names = Namespace(config.namespace)
        self.deliveries = Deliveries(self._on_taken, self.names)
        self._puller = PullSender(self.instance, config)
        self._loop = asyncio.get_running_loop()
        self._selectors: dict[str, MessageSelector] = {}
        self._is_assigned = False
        self._is_paused = False
        self._releases: set[asyncio.Task[None]] = set()
        self._forfeited: set[MessageQueue] = set()
        """Released queues whose last messages were returned by a poll and not acknowledged in time."""
        register_group_change(table, self.session.wake)
        respond_running_info(table, self.instance, self.session, self._queues, threads=1)
        respond_status(table, self._queues)
        self.instance.start_route_refresh()
        if config.auto_commit:
            supervisor = self.instance.supervisor
            supervisor.every("auto-commit", lambda: self.session.commit_interval_ms, self._commit_all)

    def _queues(self) -> dict[MessageQueue, QueueInfo]:
        """Return the state of the assigned queues for admin tools."""
        with self.deliveries.lock:
            return {
                state.queue: QueueInfo(
                    state.committed, state.consumed, state.position, is_dropped=state.is_leaving
                )
                for state in self.deliveries.states.values()
            }

    # ---- subscriptions and assignments

    def check_source(self) -> None:
        """Raise ConfigInvalid if neither `subscribe` nor `assign` was called: polls could return nothing."""
        if not self._is_assigned and not self.session.subscriptions:
            raise ConfigInvalid(
                "this consumer has no subscription and no assigned queue: subscribe, or assign, first"
            )

    def subscribe(self, topics: str | Iterable[str], expression: str | MessageSelector) -> None:
        """Subscribe to topics: the members of the group share their queues. Raises ConfigInvalid."""
        if self._is_assigned:
            raise ConfigInvalid("this consumer uses assign and cannot subscribe too: create another consumer")
        names, selector = list(map(self.names.wrap, topics_of(topics))), selector_of(expression)
        if not self.session.subscriptions:
            PollWatch(self.instance, self.config, self.session, self.deliveries, self.release)
        for topic in names:
            self.session.subscribe(topic, selector)
        self._filter(names, selector)

    def _filter(self, topics: Iterable[str], selector: MessageSelector) -> None:
        """Set the selector of `topics`, also for queues that are already being fetched."""
        self._selectors.update(dict.fromkeys(topics, selector))
        tags = selector.tags
        for state in self.deliveries.states.values():
            if state.queue.topic in topics:
                state.wanted_tags = frozenset(tags) if tags else None
                if state.fetcher is not None:
                    state.fetcher.filter_by(selector)

    async def assign(self, queues: Iterable[MessageQueue], expression: str | MessageSelector) -> None:
        """Read exactly these queues, without group assignment. Returns when their starting offsets are known.

        Raises ConfigInvalid, BrokerUnreachable and DeadlineExceeded.
        """
        if self.session.subscriptions:
            raise ConfigInvalid(
                "this consumer uses subscribe and cannot assign queues too: create another consumer"
            )
        wanted, selector = set(self.names.wrap_queues(queues_of(queues))), selector_of(expression)
        by_topic = [(topic, set(named)) for topic, named in groupby(sorted(wanted), attrgetter("topic"))]
        await asyncio.gather(*starmap(self._check_exist, by_topic))
        self._is_assigned = True
        states = self.deliveries.states
        dropped = [state for queue, state in states.items() if queue not in wanted]
        with self.deliveries.lock:
            for state in dropped:
                self.deliveries.drop(state)
        if self.config.auto_commit:
            await self.commit_states(dropped)
        self._filter({queue.topic for queue in wanted}, selector)
        added = [self._add(queue, 0) for queue in sorted(wanted - states.keys())]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.gather(*map(self._start_queue, added))
        except TimeoutError:
            unknown = [state for state in added if state.position == OFFSET_UNKNOWN]
            with self.deliveries.lock:
                for state in unknown:
                    self.deliveries.drop(state)
            names = ", ".join(str(state.queue) for state in unknown)
            raise DeadlineExceeded(
                f"no starting offset was received within {START_TIMEOUT_S} s for {names}: "
                "check that their brokers run"
            ) from None

    async def _check_exist(self, topic: str, queues: set[MessageQueue]) -> None:
        route = await self.instance.routes.get(topic)
        if queues.difference(route.readable):
            route = await self.instance.routes.refresh(topic)
        missing = queues.difference(route.readable)
        if not missing:
            return
        queue = min(missing)
        if queue.broker_name not in route.brokers():
            raise BrokerUnreachable(
                f"{queue} is not available: no route names that broker; "
                f"the topic is on {', '.join(route.brokers())}"
            )
        raise ConfigInvalid(
            f"{queue} does not exist or is not readable: queues({queue.topic!r}) returns the readable ones"
        )

    def assigned(self, assigned: AssignedQueue) -> None:
        """Start to consume a queue that the group has assigned."""
        state = self._add(assigned.queue, assigned.generation)
        begin = partial(self._start_queue, state, retry_refusals=True)
        self.instance.supervisor.start(f"begin {assigned.queue}", begin)

    def _add(self, queue: MessageQueue, generation: int) -> PulledQueue:
        tags = self._selectors.get(queue.topic, ALL_MESSAGES).tags
        state = PulledQueue(queue, generation, frozenset(tags) if tags else None, is_paused=self._is_paused)
        self.deliveries.states[queue] = state
        return state

    async def _start_queue(self, state: PulledQueue, *, retry_refusals: bool = False) -> None:
        consume_from, generation = self.config.start_from, state.generation
        offset = await self.offsets.starting(
            state.queue, consume_from, generation, retry_refusals=retry_refusals
        )
        if self.deliveries.states.get(state.queue) is state and not state.is_leaving:
            state.committed = offset
            self._fetch_from(state, offset)

    def _fetch_from(self, state: PulledQueue, offset: int) -> None:
        fetcher = Fetcher(
            self.instance,
            self._puller,
            state.queue,
            offset,
            self._selectors.get(state.queue.topic, ALL_MESSAGES),
            self._share_bytes,
            self,
        )
        with self.deliveries.lock:
            self.deliveries.restart(state, fetcher, offset)
        fetcher.pause(paused=state.is_paused or self.deliveries.is_suspended)
        fetcher.start()

    def arrived(self, chunk: Chunk) -> None:
        """Pass a fetched chunk to the deliveries; continue with a new fetcher if the log went back."""
        state = self.deliveries.states.get(chunk.queue)
        if not chunk.has_gone_back or state is None or state.fetcher is not chunk.fetcher:
            self.deliveries.arrived(chunk)
            return
        # The new fetcher drops what was fetched and is not delivered yet.
        consumed = chunk.next_offset if state.consumed == OFFSET_UNKNOWN else state.consumed
        self._fetch_from(state, min(chunk.next_offset, consumed))

    def _share_bytes(self) -> int:
        share_bytes = self.config.prefetch_bytes // max(len(self.deliveries.states), 1)
        return max(share_bytes, MIN_SHARE_BYTES)

    def _on_taken(self, fetcher: Fetcher, size_bytes: int) -> None:
        self._loop.call_soon_threadsafe(fetcher.consumed, size_bytes)

    # ---- release

    def revoked(self, queue: MessageQueue) -> None:
        """Release a queue that the group has revoked.

        If it has unacknowledged messages, wait for the next poll first, at most `max_poll_interval_ms`.
        """
        state = self.deliveries.states.get(queue)
        if state is None:
            self.session.released(queue)
            return
        with self.deliveries.lock:
            state.is_leaving = True
            has_unacknowledged = state.has_unacknowledged
        if state.fetcher is not None:
            state.fetcher.stop()
        if has_unacknowledged:
            self._loop.call_later(self.config.max_poll_interval_ms / 1000, self._release_overdue, state)
        else:
            self.release([state])

    def lost(self, queue: MessageQueue) -> None:
        """Drop a queue immediately: the lease had expired, so another member may hold it."""
        state = self.deliveries.states.get(queue)
        if state is None:
            return
        _log.warning("queue_lost", queue=str(queue), consumed=state.consumed, position=state.position)
        with self.deliveries.lock:
            self.deliveries.drop(state)
        if self.config.auto_commit:
            # If no other member has the queue yet, this commit avoids duplicates. Otherwise it is refused.
            commit = partial(self.commit_states, [state], raising=False)
            self.instance.supervisor.start(f"last commit {queue}", commit)

    def _release_overdue(self, state: PulledQueue) -> None:
        if self.deliveries.states.get(state.queue) is state:
            _log.warning(
                "queue_released_unfinished",
                queue=str(state.queue),
                consumed=state.consumed,
                position=state.position,
            )
            self.release([state])

    def release(self, states: Iterable[PulledQueue]) -> None:
        """Commit the consumed offsets of these queues (with `auto_commit`), and release them to the group."""
        for state in states:
            if self.deliveries.states.get(state.queue) is state:
                with self.deliveries.lock:
                    if state.has_unacknowledged:
                        self._forfeited.add(state.queue)
                    self.deliveries.drop(state)
                release = partial(self._commit_and_release, state)
                task = self.instance.supervisor.start(f"release {state.queue}", release)
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)

    async def _commit_and_release(self, state: PulledQueue) -> None:
        if self.config.auto_commit:
            await self.commit_states([state], raising=False)
        # If the queue has meanwhile been lost and assigned again, the membership belongs to the later grant.
        if state.queue not in self.deliveries.states:
            self.session.released(state.queue)

    def suspended(self, *, is_suspended: bool) -> None:
        """Stop fetching and delivery while the lease is expired, or resume them."""
        _log.info("consumer_suspended" if is_suspended else "consumer_resumed", group=self.config.group)
        self.deliveries.suspend(suspended=is_suspended)
        for state in self.deliveries.states.values():
            if state.fetcher is not None:
                state.fetcher.pause(paused=is_suspended or state.is_paused)

    def failed(self, error: ClientError | None) -> None:
        """Make polls raise `error`, or stop doing so if it is None."""
        self.deliveries.fail(error)

    # ---- seek and pause

    def state_of(self, queue: MessageQueue) -> PulledQueue:
        """Return the state of an assigned queue whose offset is known. Raises QueueNotAssigned."""
        state = self.deliveries.states.get(self.names.wrap_queue(queue))
        if state is None or state.is_leaving or state.position == OFFSET_UNKNOWN:
            raise QueueNotAssigned(
                f"{queue} is not assigned to this consumer: assignment() returns the assigned queues"
            )
        return state

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset`. Raises QueueNotAssigned, ConfigInvalid."""
        self._fetch_from(self.state_of(queue), offset_of("seek", queue, offset))

    def pause(self, queues: Sequence[MessageQueue], *, paused: bool) -> None:
        """Pause or resume the delivery of `queues`, or of all queues if `queues` is empty.

        Raises ConfigInvalid, QueueNotAssigned.
        """
        for queue in queues:
            check_is_queue(queue)
        if not queues:
            self._is_paused = paused
        for state in list(map(self.state_of, queues)) if queues else list(self.deliveries.states.values()):
            with self.deliveries.lock:
                state.is_paused = paused
                if not paused:
                    self.deliveries.resumed()
            if state.fetcher is not None:
                state.fetcher.pause(paused=paused or self.deliveries.is_suspended)
        self.deliveries.wake()

    # ---- commit and close

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """Commit `offsets`, or by default all delivered messages.

        Raises CommitFenced for queues that other members hold now, and ClientError if a broker did not
        acknowledge the commit.
        """
        if offsets is None:
            self.release(self.deliveries.acknowledge())
            await self.commit_states(list(self.deliveries.states.values()))
            self._check_forfeited()
            return
        commits = {
            self.names.wrap_queue(queue): self.state_of(queue).commit_of(offset)
            for queue, offset in offsets_of(offsets).items()
        }
        outcome = await self.offsets.commit_with_retries(commits, self.config.commit_timeout_ms)
        for queue, commit in commits.items():
            if outcome.has(queue) and (state := self.deliveries.states.get(queue)) is not None:
                state.committed = commit.offset  # `consumed` may be greater or less than this
        self._fence(outcome.refused, raising=True)
        outcome.raise_unconfirmed()

    def _check_forfeited(self) -> None:
        """Raise CommitFenced if messages that polls have returned belong to queues released meanwhile."""
        names = ", ".join(str(self.names.unwrap_queue(queue)) for queue in sorted(self._forfeited))
        self._forfeited.clear()
        if names:
            raise CommitFenced(
                ResponseCode.GENERATION_FENCED,
                "the application did not poll again or commit within max_poll_interval_ms "
                f"{self.config.max_poll_interval_ms}, so other members get the messages of these queues: "
                f"{names}; poll more often, process fewer messages per poll, or raise the setting",
            )

    async def commit_states(self, states: Iterable[PulledQueue], *, raising: bool = True) -> None:
        """Commit the consumed offsets of `states` that are not committed yet.

        With `raising`, the commit is retried for `commit_timeout_ms`, and then raises CommitFenced or the
        error of a broker. Without it, the commit is tried once and errors are only logged.
        """
        moved = [state for state in states if OFFSET_UNKNOWN != state.consumed != state.committed]
        commits = {state.queue: state.commit_of(state.consumed) for state in moved}
        if raising:
            outcome = await self.offsets.commit_with_retries(commits, self.config.commit_timeout_ms)
        else:
            outcome = await self.offsets.commit_best_effort(commits)
        for state in moved:
            if outcome.has(state.queue):
                state.committed = commits[state.queue].offset
        self._fence(outcome.refused, raising=raising)
        if raising:
            outcome.raise_unconfirmed()

    def _fence(self, refused: list[MessageQueue], *, raising: bool) -> None:
        for queue in refused:
            _log.warning("commit_fenced", group=self.config.group, queue=str(queue))
            state = self.deliveries.states.get(queue)
            self.session.membership.fenced(queue)
            if state is not None:
                with self.deliveries.lock:
                    self.deliveries.drop(state)
        if refused and raising:
            names = ", ".join(map(str, refused))
            raise CommitFenced(
                ResponseCode.GENERATION_FENCED,
                f"the commit was refused because other members hold these queues now: {names}",
            )

    async def _commit_all(self) -> None:
        await self.commit_states(list(self.deliveries.states.values()), raising=False)

    async def close(self, *, committing: bool = False) -> None:
        """Stop fetching, release all queues and leave the group.

        With `committing`, all delivered messages count as consumed.
        """
        if committing:
            self.deliveries.acknowledge()
            if not self.config.auto_commit:  # otherwise the release commits
                await self.commit_states(list(self.deliveries.states.values()), raising=False)
        self._forfeited.clear()
        self.failed(ClientClosed("the consumer is closed"))
        self.session.start_leaving()
        self.release(list(self.deliveries.states.values()))
        try:
            await asyncio.gather(*self._releases)
        finally:  # also if the wait was cancelled, because `close` cannot be called a second time
            await self.session.leave()
            await self.instance.close()
