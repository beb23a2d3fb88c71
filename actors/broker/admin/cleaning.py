"""Cleaning by hand: what RocketMQ's cleanExpiredCQ, deleteExpiredCommitLog, cleanUnusedTopic and deleteTopic
ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from actors.broker.loop.reads import Reads
from actors.broker.metadata.tables import BrokerTables
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext, RequestRow
from actors.remoting.targets import Action, on_cluster
from store.commitlog.positions import Callback
from store.disk.files import explain
from store.logs import get_logger
from store.message_store import MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

QUEUES_A_TURN = 32
REMOVE_TIMEOUT_MS = 60_000


class Cleaning:
    """Cleans one broker's store."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        request_tick: Callable[[], None],
    ) -> None:
        """`request_tick` requests another end of a turn, at which the store makes progress."""
        self._store = store
        self._reads = reads
        self._tables = tables
        self._request_tick = request_tick

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, delete = RequestCode, on_cluster(Action.DELETE)
        return (
            RequestRow(code.DELETE_EXPIRED_COMMITLOG, self.delete_expired, None, delete),
            RequestRow(code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired, None, delete),
            RequestRow(code.CLEAN_UNUSED_TOPIC, self.clean_unused, None, delete),
        )

    def delete_expired_commit_log(self) -> None:
        """Delete the log files whose time is over, from now on and whatever the hour; in the background."""
        self._store.retention.delete_expired()

    async def clean_expired_consume_queues(self) -> list[tuple[str, int]]:
        """Remove the queues whose messages are all gone, with what groups have committed of them.

        A queue that is removed begins at 0 again: an offset that stayed would have its group pass over what
        comes. Those of system topics stay. Raises OSError.
        """
        tables = self._tables
        all_removed: list[tuple[str, int]] = []
        while True:
            removed = self._store.retention.clean_expired_queues(tables.topics.is_system, QUEUES_A_TURN)
            for topic, queue_id in removed:
                tables.offsets.remove_queue(topic, queue_id)
            all_removed += removed
            if len(removed) < QUEUES_A_TURN:
                return all_removed
            await asyncio.sleep(0)  # others have their turn

    async def clean_unused_topics(self) -> list[str]:
        """Remove the queues of topics that do not exist, but never a system topic's.

        Raises as `remove_queues`.
        """
        topics = self._tables.topics
        unused = {
            topic
            for topic, _ in self._store.queues()
            if topics.find(topic) is None and not topics.is_system(topic)
        }
        for topic in unused:
            if topics.find(topic) is not None:
                continue  # it has been made while the others went
            await self.remove_queues(topic)
            _log.info("unused_topic_cleaned", topic=topic)
        return sorted(unused)

    def remove_queues(self, topic: str) -> Coroutine[Any, Any, None]:
        """Remove the queues of a topic: it cannot be made anew until the work that is given back has ended.
        That returns when it is durable, and never holds the loop for the disk. Raises Refused.
        """
        self._tables.topics.begin_removal(topic)
        return self._remove_queues(topic)

    async def _remove_queues(self, topic: str) -> None:
        try:
            await self._remove_all_of(topic)
        finally:
            self._tables.topics.end_removal(topic)

    async def _remove_all_of(self, topic: str) -> None:
        """What is on its way to the queues is let in first: it would make them anew."""
        store = self._store
        written = store.positions.written
        await self._told(topic, lambda told: store.on_confirmed(written, told))
        await self._reads.caught_up()
        try:
            await self._told(topic, lambda told: store.forget_topic(topic, told))
        except OSError as error:
            raise _not_removed(topic, explain(error)) from error

    async def _told(self, topic: str, ask: Callable[[Callback], object]) -> None:
        """Ask the store, and wait for its answer. Raises what `ask` does, and Refused when the answer is an
        error, or does not come.
        """
        answer: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        ask(lambda error: None if answer.done() else answer.set_result(error))
        self._request_tick()
        try:
            error = await asyncio.wait_for(answer, REMOVE_TIMEOUT_MS / 1000)
        except TimeoutError as late:
            reason = f"the disk has not done it within {REMOVE_TIMEOUT_MS} ms"
            raise _not_removed(topic, reason) from late
        if error is not None:
            raise _not_removed(topic, error)

    # ---- requests ------------------------------------------------------------------------------------------

    def delete_expired(self, context: RequestContext) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG."""
        self.delete_expired_commit_log()
        return RemotingCommand.response()

    def clean_expired(self, context: RequestContext) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE."""
        context.spawn(_answered(self.clean_expired_consume_queues()))

    def clean_unused(self, context: RequestContext) -> None:
        """CLEAN_UNUSED_TOPIC."""
        context.spawn(_answered(self.clean_unused_topics()))


def _not_removed(topic: str, reason: object) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"the queues of {topic} could not be removed: {reason}")


async def _answered(work: Coroutine[Any, Any, object]) -> RemotingCommand:
    try:
        await work
    except OSError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"a queue could not be removed: {error}") from error
    return RemotingCommand.response()
