"""Cleaning by hand: what RocketMQ's cleanExpiredCQ, deleteExpiredCommitLog and cleanUnusedTopic ask for."""

from __future__ import annotations

from actors.broker.tables import BrokerTables
from actors.remoting.chain import RequestContext
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import Refused
from store.logs import get_logger
from store.message_store import MessageStore

_log = get_logger(__name__)


class Cleaning:
    """Cleans one broker's store."""

    def __init__(self, store: MessageStore, tables: BrokerTables) -> None:
        self._store = store
        self._tables = tables

    def delete_expired_commit_log(self) -> None:
        """Delete the log files whose time is over, from now on and whatever the hour; in the background."""
        self._store.retention.delete_expired()

    def clean_expired_consume_queues(self) -> list[tuple[str, int]]:
        """Remove the queues whose messages are all gone, with what groups have committed of them.

        A queue that is removed begins at 0 again: an offset that stayed would have its group pass over what
        comes. Those of system topics stay. Raises OSError.
        """
        removed = self._store.retention.clean_expired_queues(self._tables.topics.is_system)
        for topic, queue_id in removed:
            self._tables.offsets.remove_queue(topic, queue_id)
        return removed

    def clean_unused_topics(self) -> list[str]:
        """Remove the queues of topics that do not exist, but never a system topic's. Raises OSError."""
        topics = self._tables.topics
        unused = {
            topic
            for topic, _ in self._store.queues()
            if topics.find(topic) is None and not topics.is_system(topic)
        }
        for topic in unused:
            self._store.delete_topic(topic)
            _log.info("unused_topic_cleaned", topic=topic)
        return sorted(unused)

    # ---- requests ------------------------------------------------------------------------------------------

    def delete_expired(self, context: RequestContext) -> RemotingCommand:
        """DELETE_EXPIRED_COMMITLOG."""
        self.delete_expired_commit_log()
        return RemotingCommand.response()

    def clean_expired(self, context: RequestContext) -> RemotingCommand:
        """CLEAN_EXPIRED_CONSUMEQUEUE."""
        try:
            self.clean_expired_consume_queues()
        except OSError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"a queue could not be removed: {error}") from error
        return RemotingCommand.response()

    def clean_unused(self, context: RequestContext) -> RemotingCommand:
        """CLEAN_UNUSED_TOPIC."""
        try:
            self.clean_unused_topics()
        except OSError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"a queue could not be removed: {error}") from error
        return RemotingCommand.response()
