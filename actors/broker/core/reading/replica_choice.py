"""ReplicaChoice: which replica a consumer should read next (RocketMQ's suggestWhichBrokerId).

A consumer that is so far behind that its messages are no longer in the master's memory is sent to a slave,
and back to the master when it has caught up. A slave moves no offsets: after a pull of an offset outside of
the slave's queue the consumer pulls from the master, because the slave may lack the newest messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.groups import Groups
from actors.broker.core.reading.queue_ends import NEXT_BEGIN_OFFSET, SUGGESTED_BROKER
from actors.broker.core.role import Role
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from store.message.group_config import SubscriptionGroupConfig
from store.message_store import GetMessageResult, MessageStore

_NO_GROUP = SubscriptionGroupConfig(group_name="none")


class ReplicaChoice:
    """Chooses the replica that the responses to pulls suggest."""

    def __init__(
        self, settings: BrokerSettings, store: MessageStore, groups: Groups, role: Callable[[], Role]
    ) -> None:
        """Create the choice.

        Args:
            settings: `slave_read_enable` and `access_message_in_memory_max_ratio`.
            store: the broker's store.
            groups: their settings name the replicas to read from.
            role: returns the current role of the broker.
        """
        self._settings = settings
        self._store = store
        self._groups = groups
        self._role = role
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def advise(self, response: RemotingCommand, found: GetMessageResult, group: str, offset: int) -> None:
        """Write the suggested replica into the response to a pull of `group` at `offset`."""
        config = self._groups.table.groups.get(group, _NO_GROUP)
        suggested = config.broker_id
        if response.code == ResponseCode.PULL_OFFSET_MOVED and self._role() is Role.SLAVE:
            response.code = ResponseCode.PULL_RETRY_IMMEDIATELY
            response.ext[NEXT_BEGIN_OFFSET] = str(offset)
        elif self._is_far_behind(found):
            suggested = config.which_broker_when_consume_slowly
        response.ext[SUGGESTED_BROKER] = str(suggested)

    def _is_far_behind(self, found: GetMessageResult) -> bool:
        """Return True if more bytes follow the messages than a master is expected to have in memory."""
        if not found.message_count:
            return False
        behind_bytes = self._store.positions.written - found.log_end
        return behind_bytes > self._memory_bytes * self._settings.access_message_in_memory_max_ratio // 100
