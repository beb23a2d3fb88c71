"""What both faces of the pull consumer share: which queues it holds, and how they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, starmap
from operator import attrgetter
from typing import TypeVar

from actors.remoting.bodies.groups import GrantedQueue
from actors.remoting.table import RequestTable
from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.consumer.arguments import (
    ALL,
    check_queue,
    expression_of,
    offset_of,
    offsets_of,
    queues_of,
    topics_of,
)
from cluster.client.consumer.deliveries import OFFSET_UNKNOWN, Deliveries, QueueState
from cluster.client.consumer.fetcher import Chunk, Fetcher, Puller
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
from cluster.client.group.group_session import GroupSession, notified_by, tags_of
from cluster.client.group.offset_client import Commit, OffsetClient
from cluster.client.transport.instance import ClientInstance
from store.clock import Clock
from store.logs import get_logger
from store.message.message_queue import MessageQueue
from store.message.validate import check_group
from store.store_errors import MessageInvalid

log = get_logger(__name__)

MIN_SHARE_BYTES = 64 * 1024
BEGIN_WITHIN_S = 30
GENERATION_FENCED = 7001


ConfigT = TypeVar("ConfigT", bound=ConsumerConfig)


def consumer_config(nameservers: Nameservers | None, group: str | None, config: ConfigT) -> ConfigT:
    """`config` with what was given beside it; raises ConfigInvalid early, before anything is opened."""
    if not isinstance(config, ConsumerConfig):
        raise ConfigInvalid(f"config is a {type(config).__name__}: a consumer needs a ConsumerConfig")
    if nameservers is not None:
        config = replace(config, nameservers=nameservers)
    if group is not None:
        config = replace(config, group=group)
    config.addresses()
    try:
        check_group(config.group)
    except MessageInvalid as error:
        raise ConfigInvalid(f"consumer group: {error}") from error
    return config


class PullCore:
    """One pull consumer. Make it on the loop on which it lives; nothing is dialled before it has a source.

    `deliveries` has the part that another thread may use.
    """

    def __init__(self, config: ConsumerConfig, clock: Clock | None = None) -> None:
        table = RequestTable()
        self.config = config
        self.instance = ClientInstance(config, clock=clock, table=table)
        self.session = GroupSession(self.instance, config, self)
        self.offsets = OffsetClient(self.instance, config.group, config.consume_timestamp_ms)
        self.deliveries = Deliveries(self._made_room)
        self._puller = Puller(self.instance, config)
        self._loop = asyncio.get_running_loop()
        self._expressions: dict[str, str] = {}
        self._is_assigned = False
        self._is_paused = False
        self._releases: set[asyncio.Task[None]] = set()
        notified_by(table, self.session.wake)
        respond_running_info(table, self.instance, self.session, self._queues, threads=1)
        respond_status(table, self._queues)
        self.instance.start_route_refresh()
        if config.auto_commit:
            supervisor = self.instance.supervisor
            supervisor.every("auto-commit", lambda: self.session.commit_interval_ms, self._commit_all)

    def _queues(self) -> dict[MessageQueue, QueueInfo]:
        """What is held, for administrators."""
        with self.deliveries.lock:
            return {
                state.queue: QueueInfo(
                    state.committed, state.consumed, state.position, is_dropped=state.is_leaving
                )
                for state in self.deliveries.states.values()
            }

    # ---- what to consume

    def check_source(self) -> None:
        """Raise ConfigInvalid unless it has been said what to consume: a poll would wait for nothing."""
        if not self._is_assigned and not self.session.subscriptions:
            raise ConfigInvalid("this consumer has no topic and no queue: subscribe, or assign, first")

    def subscribe(self, topics: str | Iterable[str], expression: str) -> None:
        """Share the topics' queues with the group's other members. Raises ConfigInvalid."""
        if self._is_assigned:
            raise ConfigInvalid("this consumer has assigned queues: it cannot subscribe as well")
        names, expression = topics_of(topics), expression_of(expression)
        for topic in names:
            self.session.subscribe(topic, expression)
        self._filter(names, expression)

    def _filter(self, topics: Iterable[str], expression: str) -> None:
        """From now on, have what `expression` says of these topics, also where it said otherwise before."""
        self._expressions.update(dict.fromkeys(topics, expression))
        tags = tags_of(expression)
        for state in self.deliveries.states.values():
            if state.queue.topic in topics:
                state.wanted_tags = frozenset(tags) if tags else None
                if state.fetcher is not None:
                    state.fetcher.filter_by(expression)

    async def assign(self, queues: Iterable[MessageQueue], expression: str) -> None:
        """Take exactly these queues, without a group's say; returns when each knows where it begins. Raises
        ConfigInvalid and DeadlineExceeded.
        """
        if self.session.subscriptions:
            raise ConfigInvalid("this consumer has subscribed: it cannot be assigned queues as well")
        wanted, expression = set(queues_of(queues)), expression_of(expression)
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
        self._filter({queue.topic for queue in wanted}, expression)
        begun = [self._add(queue, 0) for queue in sorted(wanted - states.keys())]
        try:
            async with asyncio.timeout(BEGIN_WITHIN_S):
                await asyncio.gather(*map(self._begin, begun))
        except TimeoutError:
            silent = [state for state in begun if state.position == OFFSET_UNKNOWN]
            with self.deliveries.lock:
                for state in silent:
                    self.deliveries.drop(state)
            names = ", ".join(str(state.queue) for state in silent)
            raise DeadlineExceeded(
                f"no broker has told within {BEGIN_WITHIN_S} s where to begin with {names}"
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
                f"{queue}: no route names that broker; the topic is on {', '.join(route.brokers())}"
            )
        raise ConfigInvalid(f"{queue} does not exist, or may not be read: see queues({queue.topic!r})")

    def granted(self, granted: GrantedQueue) -> None:
        """The group gives a queue."""
        state = self._add(granted.queue, granted.generation)
        begin = partial(self._begin, state, retry_refusals=True)
        self.instance.supervisor.start(f"begin {granted.queue}", begin)

    def _add(self, queue: MessageQueue, generation: int) -> QueueState:
        tags = tags_of(self._expressions.get(queue.topic, ALL))
        state = QueueState(queue, generation, frozenset(tags) if tags else None, is_paused=self._is_paused)
        self.deliveries.states[queue] = state
        return state

    async def _begin(self, state: QueueState, *, retry_refusals: bool = False) -> None:
        consume_from, generation = self.config.consume_from, state.generation
        offset = await self.offsets.starting(state.queue, consume_from, generation, retry_refusals=retry_refusals)
        if self.deliveries.states.get(state.queue) is state and not state.is_leaving:
            state.committed = offset
            self._fetch_from(state, offset)

    def _fetch_from(self, state: QueueState, offset: int) -> None:
        fetcher = Fetcher(
            self.instance,
            self._puller,
            state.queue,
            offset,
            self._expressions.get(state.queue.topic, ALL),
            self._share_bytes,
            self,
        )
        with self.deliveries.lock:
            self.deliveries.restart(state, fetcher, offset)
        fetcher.pause(paused=state.is_paused or self.deliveries.is_held_back)
        fetcher.start()

    def arrived(self, chunk: Chunk) -> None:
        """A fetcher brings something."""
        self.deliveries.arrived(chunk)

    def _share_bytes(self) -> int:
        share_bytes = self.config.prefetch_bytes // max(len(self.deliveries.states), 1)
        return max(share_bytes, MIN_SHARE_BYTES)

    def _made_room(self, fetcher: Fetcher, size_bytes: int) -> None:
        self._loop.call_soon_threadsafe(fetcher.consumed, size_bytes)

    # ---- giving queues back

    def revoked(self, queue: MessageQueue) -> None:
        """The group takes a queue back: at once when nothing of it is in work, else after the next poll."""
        state = self.deliveries.states.get(queue)
        if state is None:
            self.session.released(queue)
            return
        with self.deliveries.lock:
            state.is_leaving = True
            is_in_work = state.is_in_work
        if state.fetcher is not None:
            state.fetcher.stop()
        if is_in_work:
            self._loop.call_later(self.config.max_poll_interval_ms / 1000, self._release_overdue, state)
        else:
            self.release([state])

    def lost(self, queue: MessageQueue) -> None:
        """The lease was over and others may have the queue: hand out nothing more of it, from now on."""
        state = self.deliveries.states.get(queue)
        if state is None:
            return
        log.warning("queue_lost", queue=str(queue), consumed=state.consumed, to=state.position)
        with self.deliveries.lock:
            self.deliveries.drop(state)
        if self.config.auto_commit:
            # Where nobody has begun on it yet, this spares the next owner what is done; else it is refused.
            commit = partial(self.commit_states, [state], raising=False)
            self.instance.supervisor.start(f"last commit {queue}", commit)

    def _release_overdue(self, state: QueueState) -> None:
        if self.deliveries.states.get(state.queue) is state:
            log.warning(
                "queue_released_unfinished",
                queue=str(state.queue),
                consumed=state.consumed,
                to=state.position,
            )
            self.release([state])

    def release(self, states: Iterable[QueueState]) -> None:
        """Commit what is consumed of these queues, and let them go."""
        for state in states:
            if self.deliveries.states.get(state.queue) is state:
                with self.deliveries.lock:
                    self.deliveries.drop(state)
                release = partial(self._commit_and_release, state)
                task = self.instance.supervisor.start(f"release {state.queue}", release)
                self._releases.add(task)
                task.add_done_callback(self._releases.discard)

    async def _commit_and_release(self, state: QueueState) -> None:
        if self.config.auto_commit:
            await self.commit_states([state], raising=False)
        self.session.released(state.queue)

    def suspended(self, *, is_suspended: bool) -> None:
        """The lease is over, or runs again."""
        log.info("consumer_suspended" if is_suspended else "consumer_goes_on", group=self.config.group)
        self.deliveries.hold_back(held=is_suspended)
        for state in self.deliveries.states.values():
            if state.fetcher is not None:
                state.fetcher.pause(paused=is_suspended or state.is_paused)

    def failed(self, error: ClientError | None) -> None:
        """The group refuses this member, or it is closed: the next poll says so. None: it goes on."""
        self.deliveries.fail(error)

    # ---- moving about

    def state_of(self, queue: MessageQueue) -> QueueState:
        """The state of a queue that is held and has begun. Raises QueueNotAssigned."""
        state = self.deliveries.states.get(queue)
        if state is None or state.is_leaving or state.position == OFFSET_UNKNOWN:
            raise QueueNotAssigned(f"{queue} is not among the queues of this consumer now (see assignment())")
        return state

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`. Raises QueueNotAssigned, ConfigInvalid."""
        self._fetch_from(self.state_of(queue), offset_of("seek", queue, offset))

    def pause(self, queues: Sequence[MessageQueue], *, paused: bool) -> None:
        """Hand out nothing of these queues – without queues: of any – for a while, or go on. Raises
        QueueNotAssigned.
        """
        for queue in queues:
            check_queue(queue)
        if not queues:
            self._is_paused = paused
        for state in list(map(self.state_of, queues)) if queues else list(self.deliveries.states.values()):
            with self.deliveries.lock:
                state.is_paused = paused
                if not paused:
                    self.deliveries.resumed()
            if state.fetcher is not None:
                state.fetcher.pause(paused=paused or self.deliveries.is_held_back)
        self.deliveries.wake()

    # ---- committing

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> None:
        """Commit `offsets`, or all that has been handed out. Raises CommitFenced for queues that others hold
        now.
        """
        if offsets is None:
            self.release(self.deliveries.acknowledge())
            await self.commit_states(list(self.deliveries.states.values()))
            return
        commits = {
            queue: Commit(offset, self.state_of(queue).generation)
            for queue, offset in offsets_of(offsets).items()
        }
        outcome = await self.offsets.commit_with_retries(commits, self.config.commit_timeout_ms)
        for queue, commit in commits.items():
            if outcome.has(queue) and (state := self.deliveries.states.get(queue)) is not None:
                state.committed = commit.offset  # what is consumed may be further, or not as far
        self._fence(outcome.refused, raising=True)
        outcome.raise_unconfirmed()

    async def commit_states(self, states: Iterable[QueueState], *, raising: bool = True) -> None:
        """Commit what is consumed and not committed yet of these queues. Where `raising`, raises CommitFenced
        or why a broker could not be told.
        """
        moved = [state for state in states if OFFSET_UNKNOWN != state.consumed != state.committed]
        commits = {state.queue: Commit(state.consumed, state.generation) for state in moved}
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
            log.warning("commit_fenced", group=self.config.group, queue=str(queue))
            state = self.deliveries.states.get(queue)
            self.session.membership.fenced(queue)
            if state is not None:
                with self.deliveries.lock:
                    self.deliveries.drop(state)
        if refused and raising:
            names = ", ".join(map(str, refused))
            raise CommitFenced(GENERATION_FENCED, f"others hold these queues now: {names}")

    async def _commit_all(self) -> None:
        await self.commit_states(list(self.deliveries.states.values()), raising=False)

    async def close(self, *, committing: bool) -> None:
        """Give everything back: stop, commit (all handed out when `committing`), release, leave the group."""
        if committing:
            self.deliveries.acknowledge()
        self.failed(ClientClosed("the consumer is closed"))
        self.session.start_leaving()
        self.release(list(self.deliveries.states.values()))
        try:
            await asyncio.gather(*self._releases)
        finally:  # also where the wait was interrupted: nobody can ask a second time
            await self.session.leave()
            await self.instance.close()
