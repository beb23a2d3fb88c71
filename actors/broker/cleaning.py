"""Cleaning by hand: what RocketMQ's cleanExpiredCQ, deleteExpiredCommitLog and cleanUnusedTopic ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from actors.broker.tables import BrokerTables
from actors.remoting.chain import RequestContext
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import Refused
from store.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)

QUEUES_A_TURN = 32


class Cleaning:
    """Cleans one broker's store."""

    def __init__(self, store: MessageStore, tables: BrokerTables) -> None:
        self._store = store
        self._tables = tables

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
        """Remove the queues of topics that do not exist, but never a system topic's. Raises OSError."""
        topics = self._tables.topics
        unused = {
            topic
            for topic, _ in self._store.queues()
            if topics.find(topic) is None and not topics.is_system(topic)
        }
        for topic in unused:
            await asyncio.sleep(0)
            self._store.delete_topic(topic)
            _log.info("unused_topic_cleaned", topic=topic)
        return sorted(unused)

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


async def _answered(work: Coroutine[Any, Any, object]) -> RemotingCommand:
    try:
        await work
    except OSError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"a queue could not be removed: {error}") from error
    return RemotingCommand.response()
