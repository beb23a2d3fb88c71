"""Cleaning on request: mqadmin deleteExpiredCommitLog, cleanExpiredCQ and cleanUnusedTopic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from actors.broker.metadata.tables import BrokerTables
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext, RequestRow
from actors.remoting.targets import Action, on_cluster
from store.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

QUEUES_A_TURN = 32


class Cleaning:
    """Handles DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE and CLEAN_UNUSED_TOPIC."""

    def __init__(
        self, store: MessageStore, tables: BrokerTables, remove_queues: Callable[[str], Awaitable[None]]
    ) -> None:
        """`remove_queues` removes the queues of a topic; it raises Refused."""
        self._store = store
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._remove_queues = remove_queues

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, delete = RequestCode, on_cluster(Action.DELETE)
        return (
            RequestRow(code.DELETE_EXPIRED_COMMITLOG, self.delete_expired, None, delete),
            RequestRow(code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired, None, delete),
            RequestRow(code.CLEAN_UNUSED_TOPIC, self.clean_unused, None, delete),
        )

    def delete_expired(self, context: RequestContext) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG: delete expired log files, in the background and at any hour."""
        self._store.retention.delete_expired()
        return RemotingCommand.response()

    def clean_expired(self, context: RequestContext) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE: remove the queues all of whose messages have expired."""
        context.spawn(_respond(self._clean_expired_queues()))

    def clean_unused(self, context: RequestContext) -> None:
        """CLEAN_UNUSED_TOPIC: remove the queues of topics that do not exist."""
        context.spawn(_respond(self._clean_unused_topics()))

    async def _clean_expired_queues(self) -> None:
        """Remove the queues with their committed offsets; those of system topics stay. Raises OSError.

        A removed queue begins at 0 again: a group whose offset stayed would skip new messages.
        """
        removed: list[tuple[str, int]] | None = None
        while removed is None or len(removed) == QUEUES_A_TURN:
            removed = self._store.retention.clean_expired_queues(self._topics.is_system, QUEUES_A_TURN)
            for topic, queue_id in removed:
                self._offsets.remove_queue(topic, queue_id)
            await asyncio.sleep(0)

    async def _clean_unused_topics(self) -> None:
        """Remove the queues topic by topic; those of system topics stay. Raises Refused."""
        unused = {topic for topic, _ in self._store.queues() if self._is_unused(topic)}
        for topic in unused:
            if self._is_unused(topic):  # it may have been created meanwhile
                await self._remove_queues(topic)
                _log.info("unused_topic_cleaned", topic=topic)

    def _is_unused(self, topic: str) -> bool:
        return self._topics.find(topic) is None and not self._topics.is_system(topic)


async def _respond(work: Awaitable[None]) -> RemotingCommand:
    try:
        await work
    except OSError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"a queue could not be removed: {error}") from error
    return RemotingCommand.response()
