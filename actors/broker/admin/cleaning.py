"""Cleaning on request: mqadmin deleteExpiredCommitLog, cleanExpiredCQ and cleanUnusedTopic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.role import Role
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.common.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

QUEUES_PER_TURN = 32
"""Limit of queues that one turn of the event loop removes."""


class Cleaning:
    """Request handler for DELETE_EXPIRED_COMMITLOG, CLEAN_EXPIRED_CONSUMEQUEUE and CLEAN_UNUSED_TOPIC."""

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        remove_queues: Callable[[str], Awaitable[None]],
        caught_up: Callable[[], Awaitable[None]],
        role: Callable[[], Role],
        *,
        keeps_queues: bool = False,
    ) -> None:
        """Create the handler.

        Args:
            store: the broker's store.
            tables: the broker's topics and committed offsets.
            remove_queues: removes all queues of a topic, or raises Refused.
            caught_up: waits until all messages can be read, or raises Refused.
            role: returns the broker's role.
            keeps_queues: True for a replica of a Raft group, which has no expired queue of its own to remove:
                the queue would begin at offset 0 again on this replica only.
        """
        self._store = store
        self._topics = tables.topics
        self._offsets = tables.offsets
        self._remove_queues = remove_queues
        self._caught_up = caught_up
        self._role = role
        self._keeps_queues = keeps_queues

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, delete = RequestCode, on_cluster(Action.DELETE)
        return (
            RequestRow(
                code.DELETE_EXPIRED_COMMITLOG, self.delete_expired, None, delete, on_slave=OnSlave.SERVED
            ),
            RequestRow(
                code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired, None, delete, on_slave=OnSlave.SERVED
            ),
            RequestRow(code.CLEAN_UNUSED_TOPIC, self.clean_unused, None, delete, on_slave=OnSlave.SERVED),
        )

    def delete_expired(self, context: RequestContext) -> RemotingCommand:
        """Handle DELETE_EXPIRED_COMMITLOG: start to delete expired CommitLog files.

        The response does not wait for the deletion, and the broker's deletion hour does not apply.
        """
        self._store.retention.delete_expired()
        return RemotingCommand.response()

    def clean_expired(self, context: RequestContext) -> None:
        """Handle CLEAN_EXPIRED_CONSUMEQUEUE: remove each queue that holds only expired messages.

        In a Raft group nothing is left to do: files of queues without messages are deleted with the log's.
        """
        context.spawn(_respond(self._clean_expired_queues()))

    def clean_unused(self, context: RequestContext) -> RemotingCommand | None:
        """Handle CLEAN_UNUSED_TOPIC: remove the queues of topics that do not exist.

        mqadmin sends it to slaves, too (`-c`). A slave may not know a new topic yet, and removes the queues
        of a topic when its master deletes it, so it does nothing.
        """
        role = self._role()
        if role is Role.SLAVE:
            return RemotingCommand.response(remark="a slave removes queues when its master deletes a topic")
        if role is Role.FENCED:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "a fenced broker removes no queues")
        context.spawn(_respond(self._clean_unused_topics()))
        return None

    async def _clean_expired_queues(self) -> None:
        """Remove expired queues, except those of system topics, and their committed offsets. Raises OSError.

        A removed queue starts again at offset 0. A group that kept its old offset would skip new messages.
        Raises Refused if the broker does not know all messages yet.
        """
        if not self._keeps_queues:
            await self._caught_up()
        removed: list[tuple[str, int]] | None = [] if self._keeps_queues else None
        while removed is None or len(removed) == QUEUES_PER_TURN:
            removed = self._store.retention.clean_expired_queues(self._topics.is_system, QUEUES_PER_TURN)
            for topic, queue_id in removed:
                self._offsets.remove_queue(topic, queue_id)
            await asyncio.sleep(0)

    async def _clean_unused_topics(self) -> None:
        """Remove the queues of one unknown topic after the other, except system topics.

        Raises Refused if the queues of a topic cannot be removed.
        """
        unused = {topic for topic, _ in self._store.queues() if self._is_unused(topic)}
        for topic in unused:
            if self._is_unused(topic):  # a client may have created the topic meanwhile
                await self._remove_queues(topic)
                _log.info("unused_topic_cleaned", topic=topic)

    def _is_unused(self, topic: str) -> bool:
        return self._topics.find(topic) is None and not self._topics.is_system(topic)


async def _respond(work: Awaitable[None]) -> RemotingCommand:
    try:
        await work
    except OSError as error:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"an expired consume queue could not be removed: {error}; check the disk and repeat the request",
        ) from error
    return RemotingCommand.response()
