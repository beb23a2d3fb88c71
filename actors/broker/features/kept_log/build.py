"""Builds the retention that waits for consumer groups (`retention_waits_for`), such as those of lakes.

A group needs the log from its first message on that it has not acknowledged: from its committed offset on,
else from the beginning of the queue. Offsets survive restarts and other replicas have them too, so that each
replica keeps the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.capability import Capability
from actors.broker.core.metadata.internal_topics import is_internal
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.parts import BrokerParts
from actors.host.figures import Figure, Kind
from store.message_store import MessageStore
from store.upkeep.retention import Need

NEED = "groups"


def build_kept_log(parts: BrokerParts) -> Capability:
    """Build the retention that waits for consumer groups."""
    store = parts.loop.store
    unread = UnreadLog(store, parts.tables, parts.settings)
    store.retention.keep_from(NEED, unread.need)
    return Capability(
        figures=(
            Figure(
                "needed_log_files_deleted", Kind.COUNTER, "", lambda: store.retention.needed_deleted,
                "Deleted log files that replicas or groups needed; the disk was too full to keep them.",
                metric="raymq_needed_log_files_deleted_total",
            ),
        ),
    )  # fmt: skip


class UnreadLog:
    """Finds the first message that a group of `retention_waits_for` has not acknowledged."""

    def __init__(self, store: MessageStore, tables: BrokerTables, settings: BrokerSettings) -> None:
        self._store = store
        self._tables = tables
        self._settings = settings

    def need(self) -> Need | None:
        """Return the lowest position that a group needs; None if the groups have acknowledged all messages.

        It reads a unit of each queue that is behind, and is called only if log files are to be deleted.
        """
        return min(self._needs(), default=None)

    def _needs(self) -> Iterator[Need]:
        waits = [entry.rsplit("@", 1) for entry in self._settings.retention_waits_for]
        for topic, queue_id in self._store.queues() if waits else ():
            config = self._tables.topics.find(topic)
            if config is None or queue_id >= config.read_queue_nums:
                continue  # no group can read it
            for group in {group for pattern, group in waits if self._is_matched(topic, pattern)}:
                committed = self._tables.offsets.query(group, topic, queue_id) or 0
                offset = max(committed, self._store.min_offset(topic, queue_id))
                for unit in self._store.units(topic, queue_id, offset, 1):
                    effect = f"messages of topic {topic} that group {group} has not read are lost to it"
                    yield Need(unit.physical_offset, NEED, effect)

    def _is_matched(self, topic: str, pattern: str) -> bool:
        is_own = is_internal(topic) or self._tables.topics.is_system(topic)
        return fnmatchcase(topic, pattern) and not is_own
