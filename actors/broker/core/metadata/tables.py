"""BrokerTables: a broker's topics, groups and offsets, loaded from and saved to RocketMQ's JSON files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from actors.bounds import AtLimit, Bound, Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.config_files import (
    DELAYS,
    FILTERS,
    GENERATIONS,
    GROUPS,
    LMQ_OFFSETS,
    OFFSETS,
    ORDERS,
    REQUEST_MODES,
    TOPICS,
    ConfigFiles,
)
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.metadata.groups import Groups
from actors.broker.core.metadata.request_modes import RequestModes
from actors.broker.core.metadata.topics import Topics
from actors.wire.bodies.routes import RegisterBrokerBody
from actors.wire.header import I32_MAX, Count
from store.common.clock import Clock
from store.message.data_version import DataVersion
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_fields import table_entries, typed
from store.message.topic_config import TopicConfig
from store.message_store import MessageStore
from store.metadata import (
    ConsumerFilterTable,
    ConsumerOffsetTable,
    ConsumerOrderTable,
    DelayOffsetTable,
    MessageRequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from store.metadata.pieces import table_pieces

SAVE_MS = 200
REGISTRATION_BYTES = 1 << 20
"""Size of one part of a registration: about 5,000 topics, encoded in 5 ms."""


class Changes:
    """Notes that a table has changed since it was saved."""

    def __init__(self) -> None:
        self._any = False

    def note(self) -> None:
        """Note a change."""
        self._any = True

    def take(self) -> bool:
        """Return True if there was a change since the last call."""
        had_any, self._any = self._any, False
        return had_any


MAX_TOPICS: Final = Bound("topics", 50_000, AtLimit.REFUSE, "Topics of the broker.")
MAX_GROUPS: Final = Bound("groups", 50_000, AtLimit.REFUSE, "Consumer groups of the broker.")


class BrokerTables:
    """All tables of one broker.

    Topics, groups, offsets, delay offsets, filters, request modes and the batches of ordered pops.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        clock: Clock,
        on_topics_changed: Callable[[str], None],
        on_topic_created: Callable[[str], None],
        state_version: Callable[[], int],
    ) -> None:
        """Load the tables that the broker saved last.

        Args:
            settings: the broker's settings.
            store: the broker's store. If another process has taken it over, no table is saved any more.
            clock: provides the timestamps of the tables' data versions.
            on_topics_changed: called with the name of a topic that was created or changed, and with an
                empty name after other changes of topics.
            on_topic_created: called with the name of a topic that a send created.
            state_version: returns RocketMQ's stateVersion: nameservers do not let a master of a lower one
                take the id of another; 0: none.

        Raises:
            StoreError: a file and its backup are damaged.
        """
        self._settings = settings
        self._store = store
        self._on_topics_changed = on_topics_changed
        self._state_version = state_version
        self._saved_offset_changes = 0
        self._subscribers: list[tuple[Callable[[str], None], Callable[[str], None]]] = []
        files = self._files = ConfigFiles(settings.store_root)
        topic_table = files.open(TOPICS, partial(TopicConfigTable.from_json, clock=clock))
        group_table = files.open(GROUPS, partial(SubscriptionGroupTable.from_json, clock=clock))
        offset_table, other = (
            files.load(name, partial(ConsumerOffsetTable.from_json, clock=clock))
            for name in (OFFSETS, LMQ_OFFSETS)
        )
        if other.data_version.is_after(offset_table.data_version):
            offset_table = other
        files.register_large(OFFSETS, offset_table.to_pieces)
        files.register_large(GENERATIONS, self.generation_pieces)
        recovered_to = 0 if store.recovered.was_clean else store.positions.written
        self.topics = Topics(
            settings, topic_table, self._topic_changed, on_topic_created, recovered_to=recovered_to
        )
        self.groups = Groups(settings, group_table, self._group_changed)
        generations = files.load(GENERATIONS, generations_from_json)
        self.offsets = ConsumerOffsets(offset_table, generations, is_replicated=settings.logs_progress)
        self.delay_offsets = files.open(DELAYS, partial(DelayOffsetTable.from_json, clock=clock))
        self._saved_delay_offsets = dict(self.delay_offsets.settled)
        self._filters = files.open(FILTERS, ConsumerFilterTable.from_json)
        mode_table = files.open(REQUEST_MODES, MessageRequestModeTable.from_json)
        self.request_modes = RequestModes(
            self.topics, self.groups, mode_table, lambda: files.mark_changed(REQUEST_MODES)
        )
        self.orders = files.open(ORDERS, ConsumerOrderTable.from_json)
        self.order_changes = Changes()
        files.mark_changed(TOPICS)
        files.mark_changed(GROUPS)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        settings = self._settings
        return (
            MAX_TOPICS.use(lambda: len(self.topics.table.topics), lambda: settings.max_topics),
            MAX_GROUPS.use(lambda: len(self.groups.table.groups), lambda: settings.max_groups),
            *self.offsets.bounds(),
        )

    def subscribe(self, on_change: Callable[[str], None], on_group_change: Callable[[str], None]) -> None:
        """Call these functions after a change, with the name of the topic or of the group."""
        self._subscribers.append((on_change, on_group_change))

    def restore_topic(self, name: str, topic: TopicConfig | None) -> None:
        """Set a topic as its Raft group has it; None removes it, and all that belongs to it except queues."""
        if topic is not None:
            self.topics.table.put(topic)
        if topic is not None or self.topics.table.remove(name):
            self._topic_changed(name)
        else:  # what belongs to it may have been saved later
            self._topic_deleted(name)

    def restore_group(self, name: str, group: SubscriptionGroupConfig | None) -> None:
        """Set a subscription group as its Raft group has it; None removes it."""
        if group is not None:
            self.groups.table.put(group)
        if group is not None or self.groups.table.remove(name):
            self._group_changed(name)

    def adopt_queues(self, store: MessageStore) -> None:
        """Create the topic of each queue that the store has but `topics.json` lacks.

        A new topic is saved shortly after its creation, possibly after its first message is acknowledged. A
        broker that is killed in between must still serve the acknowledged messages.
        """
        queues: dict[str, int] = {}
        for topic, queue_id in store.queues():
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        for topic, count in sorted(queues.items()):
            self.topics.recreate(topic, count)

    def register_body(self, names: Collection[str] | None) -> Iterator[bytes]:
        """Return the topics for the registration at nameservers, as RocketMQ's RegisterBrokerBody.

        These topics are returned in one part; all topics (None) in several: one body could exceed the largest
        frame.
        """
        version = self.topics.table.data_version
        if state_version := self._state_version():
            version = DataVersion(version.counter, version.timestamp_ms, state_version)
        body = RegisterBrokerBody(version, self.topics.to_register(names))
        return body.encode_parts(REGISTRATION_BYTES) if names is None else iter([body.encode()])

    async def save_definitions(self) -> None:
        """Save the topics, groups, filters and request modes that have changed."""
        await self._save_changed()

    async def keep_definitions_saved(self) -> None:
        """Save changed definitions within SAVE_MS, until the task is cancelled."""
        while True:
            await self._files.changed.wait()
            self._files.changed.clear()
            await asyncio.sleep(SAVE_MS / 1000)
            await self.save_definitions()

    async def save_offsets(self) -> None:
        """Save the offsets, generations, delay offsets and ordered batches, if they have changed."""
        positions = self._store.positions
        self.delay_offsets.settle(positions.written, min(positions.flushed, positions.confirmed))
        if self.delay_offsets.settled != self._saved_delay_offsets:
            self._saved_delay_offsets = dict(self.delay_offsets.settled)
            self._files.mark_changed(DELAYS)
        if self.order_changes.take():
            self._files.mark_changed(ORDERS)
        changes = self.offsets.changes
        if changes != self._saved_offset_changes:
            self._saved_offset_changes = changes
            self._files.mark_changed(OFFSETS)
            self._files.mark_changed(GENERATIONS)
        await self._save_changed()

    @property
    def files(self) -> ConfigFiles:
        """The files of the tables."""
        return self._files

    def changes(self, file: str) -> int:
        """Return how often the table in this file of `config` has changed."""
        return self._files.changes(file)

    def generation_pieces(self) -> Iterator[bytes]:
        """Yield the content of `raymqGenerations.json`, which may change between two pieces."""
        return table_pieces({}, "generations", self.offsets.generations)

    async def _save_changed(self) -> None:
        if not self._store.is_superseded:  # else the files belong to another process
            await self._files.save_changed()

    def _group_changed(self, group: str) -> None:
        self._files.mark_changed(GROUPS)
        for _, on_group_change in self._subscribers:
            on_group_change(group)
        if group in self.groups.table.groups:
            return
        self.request_modes.forget_group(group)
        if self._filters.remove_group(group):
            self._files.mark_changed(FILTERS)

    def _topic_changed(self, topic: str) -> None:
        self._files.mark_changed(TOPICS)
        for on_change, _ in self._subscribers:
            on_change(topic)
        if topic and self.topics.find(topic) is None:
            self._topic_deleted(topic)
            topic = ""
        self._on_topics_changed(topic)

    def _topic_deleted(self, topic: str) -> None:
        self.offsets.remove_topic(topic)
        self.request_modes.forget_topic(topic)
        for key in [key for key in self.orders.batches if key.startswith(f"{topic}@")]:
            del self.orders.batches[key]
            self.order_changes.note()
        if self._filters.remove_topic(topic):
            self._files.mark_changed(FILTERS)


def generations_from_json(content: dict[str, Any]) -> dict[str, dict[int, int]]:
    """Return the generations in `raymqGenerations.json`: by `topic@group`, then queue id.

    Raises ValueError if one is not a number of RocketMQ's range.
    """
    found = {
        key: {int(queue): typed(generation, Count, key) for queue, generation in queues.items()}
        for key, queues in table_entries(content, "generations").items()
    }
    for key, queues in found.items():
        if not all(0 <= queue <= I32_MAX for queue in queues):
            raise ValueError(f"generations.{key} has an invalid queue id")
    return found
