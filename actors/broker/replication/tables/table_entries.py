"""The entries of the tables of a broker, as JSON values that the log of a Raft group can have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.parts import BrokerParts
from actors.broker.core.table_spec import Entries
from actors.raft.group_record import GROUP_TOPIC
from actors.wire.bodies.locks import HeldLock
from store.dispatch.queue_changes import META_TOPIC
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_fields import typed
from store.message.message_queue import MessageQueue
from store.message.topic_config import TopicConfig
from store.metadata import MessageRequestMode, OrderBatch
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint

OWN_TOPICS: Final = frozenset({GROUP_TOPIC, META_TOPIC})
"""Each replica creates them from its log."""
LOCK_MS: Final = 60_000
"""A lock that is taken over gets its full time: renewals are not logged."""


@dataclass(frozen=True, slots=True)
class _Entries:
    """A small table: all entries are compared to find one, or a change."""

    entries: Callable[[], dict[str, Any]]
    put: Callable[[str, Any], None]
    changes: Callable[[], object] | None = None

    def all(self) -> dict[str, Any]:
        """Return all entries by name."""
        return self.entries()

    def get(self, name: str) -> Any:
        """Return the value of an entry; None if it does not exist."""
        return self.entries().get(name)

    def version(self) -> object:
        """Return a value that differs after each change."""
        return self.entries() if self.changes is None else self.changes()


class _ObjectEntries:
    """A table of objects, which may be large."""

    def __init__(
        self,
        table: Callable[[], Mapping[str, Any]],
        put: Callable[[str, Any], None],
        version: Callable[[], object],
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self._table = table
        self.put = put
        self.version = version
        self._hidden = hidden

    def all(self) -> dict[str, Any]:
        """Return all entries by name."""
        return {name: value.to_json() for name, value in self._table().items() if name not in self._hidden}

    def get(self, name: str) -> Any:
        """Return the value of an entry; None if it does not exist."""
        found = None if name in self._hidden else self._table().get(name)
        return None if found is None else found.to_json()


def topic_entries(parts: BrokerParts) -> Entries:
    """Return the topics; the system topics, too, because their queues may have been changed."""
    topics = parts.tables.topics

    def put(name: str, value: Any) -> None:
        parts.tables.restore_topic(name, None if value is None else TopicConfig.from_json(value))

    return _ObjectEntries(lambda: topics.table.topics, put, lambda: topics.table.data_version, OWN_TOPICS)


def group_entries(parts: BrokerParts) -> Entries:
    """Return the subscription groups."""
    groups = parts.tables.groups

    def put(name: str, value: Any) -> None:
        group = None if value is None else SubscriptionGroupConfig.from_json(value)
        parts.tables.restore_group(name, group)

    return _ObjectEntries(lambda: groups.table.groups, put, lambda: groups.table.data_version)


def mode_entries(parts: BrokerParts) -> Entries:
    """Return the request modes, by `topic@group`."""
    modes = parts.tables.request_modes

    def entries() -> dict[str, Any]:
        return {
            f"{topic}@{group}": mode.to_json()
            for topic, groups in modes.table.modes.items()
            for group, mode in groups.items()
        }

    def put(name: str, value: Any) -> None:
        topic, _, group = name.partition("@")
        modes.restore(topic, group, None if value is None else MessageRequestMode.from_json(value))

    return _Entries(entries, put)


class _QueueEntries:
    """A table of numbers by `topic@group` and queue id: committed offsets or generations."""

    def __init__(
        self,
        table: Callable[[], dict[str, dict[int, Any]]],
        version: Callable[[], object],
        on_put: Callable[[], None],
        encode: Callable[[Any], Any] = lambda value: value,
        decode: Callable[[Any], Any] = lambda value: value,
        kind: type = int,
    ) -> None:
        self._table = table
        self._version = version
        self._on_put = on_put
        self._encode = encode
        self._decode = decode
        self._kind = kind

    def all(self) -> dict[str, Any]:
        """Return all entries."""
        return {name: self._rows(queues) for name, queues in self._table().items() if queues}

    def get(self, name: str) -> Any:
        """Return rows (queue id, value), sorted."""
        queues = self._table().get(name)
        return self._rows(queues) if queues else None

    def put(self, name: str, value: Any) -> None:
        """Replace the queues of an entry."""
        if value is None:
            self._table().pop(name, None)
        else:
            rows = typed(value, list[tuple[int, self._kind]], "queues")  # type: ignore[name-defined]
            self._table()[name] = {queue: self._decode(each) for queue, each in rows}
        self._on_put()

    def version(self) -> object:
        """Return the version of the table."""
        return self._version()

    def _rows(self, queues: Mapping[int, Any]) -> list[list[Any]]:
        return [[queue, self._encode(queues[queue])] for queue in sorted(queues)]


class _OffsetEntries:
    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets

    def all(self) -> dict[str, Any]:
        """Return all entries."""
        return {name: found for name in self._offsets.table if (found := self.get(name))}

    def get(self, name: str) -> Any:
        """Return rows (queue id, offset), sorted."""
        return [[*each] for each in sorted(self._offsets.table.get(name, {}).items())] or None

    def put(self, name: str, value: Any) -> None:
        """Replace the queues of an entry."""
        self._offsets.table.put(name, dict(typed(value or [], list[tuple[int, int]], "queues")))
        self._offsets.note_change()

    def version(self) -> object:
        """Return the number of changes."""
        return self._offsets.changes


def offset_entries(parts: BrokerParts) -> Entries:
    """Return the committed offsets, as rows (queue id, offset), sorted."""
    return _OffsetEntries(parts.tables.offsets)


def generation_entries(parts: BrokerParts) -> Entries:
    """Return the generations of the assignments of queues."""
    offsets = parts.tables.offsets
    return _QueueEntries(lambda: offsets.generations, lambda: offsets.changes, offsets.note_change)


def order_entries(parts: BrokerParts) -> Entries:
    """Return the last batches of ordered pops."""
    orders, changes = parts.tables.orders, parts.tables.order_changes
    return _QueueEntries(
        lambda: orders.batches, orders.to_json, changes.note, OrderBatch.to_json, OrderBatch.from_json, dict
    )


def reset_entries(parts: BrokerParts) -> Entries:
    """Return the resets of offsets that wait for the group's next pull at the leader, by `topic@group`."""
    resets = parts.tables.offsets.resets

    def entries() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for (topic, group, queue_id), offset in sorted(resets.items()):
            found.setdefault(f"{topic}@{group}", []).append([queue_id, offset])
        return found

    def put(name: str, value: Any) -> None:
        topic, _, group = name.partition("@")
        for key in [each for each in resets if each[:2] == (topic, group)]:
            del resets[key]
        rows = typed(value or [], list[tuple[int, int]], "resets")
        resets.update(((topic, group, queue_id), offset) for queue_id, offset in rows)

    return _Entries(entries, put)


def lock_entries(parts: BrokerParts) -> Entries:
    """Return the queue locks of each group as rows (topic, broker, queue id, owner, generation)."""
    held = parts.groups.locks

    def entries() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for locks in held.held():
            for lock in locks:
                found.setdefault(lock.group, []).append([*lock.queue, lock.owner, lock.generation])
        return {group: sorted(rows) for group, rows in found.items()}

    def put(name: str, value: Any) -> None:
        rows = typed(value or [], list[tuple[str, str, int, str, int]], "locks")
        locks = [
            HeldLock(name, owner, MessageQueue(topic, broker, queue_id), generation, LOCK_MS)
            for topic, broker, queue_id, owner, generation in rows
        ]
        held.replace_group(name, locks)

    return _Entries(entries, put, lambda: (held.changes, len(held)))  # expiries are not counted as changes


def delay_entries(parts: BrokerParts) -> Entries:
    """Return the delivered offset of each delay level, up to what cannot be lost."""
    table = parts.tables.delay_offsets
    return _Entries(
        lambda: {str(level): offset for level, offset in table.settled.items()},
        lambda name, value: table.restore(int(name), typed(value or 0, int, "offset")),
    )


def drain_entries(parts: BrokerParts) -> Entries:
    """Return whether the group is being drained, without a lease: each next leader continues."""
    drain = parts.drain
    return _Entries(
        lambda: {"group": True} if drain.is_held else {},
        lambda name, value: drain.hold() if value else drain.cancel(),
    )


class AckedEntries:
    """Popped messages after the committed offsets that were acked, by `topic@group@queue id@chunk`."""

    def __init__(self, parts: BrokerParts) -> None:
        self._acked = parts.tables.offsets.acked

    def all(self) -> dict[str, Any]:
        """Return the bits of all chunks as hexadecimal numbers."""
        return dict(self._acked.entries())

    def get(self, name: str) -> Any:
        """Return the bits of a chunk."""
        return self._acked.entry(name)

    def put(self, name: str, value: Any) -> None:
        """Replace the bits of a chunk."""
        self._acked.restore(name, None if value is None else typed(value, str, "acked"))

    def version(self) -> object:
        """Return the number of changes."""
        return self._acked.changes


class TimerEntries:
    """The saved progress of the timer; `put` only notes it until the timer is started."""

    def __init__(self, parts: BrokerParts) -> None:
        self._path = parts.settings.store_root / "config" / "timercheck"
        self.followed: TimerCheckpoint | None = None
        """The progress of another replica's timer, from which this one's must resume."""

    def all(self) -> dict[str, Any]:
        """Return the progress, if there is any."""
        value = self.get("checkpoint")
        return {} if value is None else {"checkpoint": value}

    def get(self, name: str) -> Any:
        """Return the time and offset of the progress."""
        found = self.followed or self._saved()
        return [found.delivered_ms, found.master_queue_offset] if found.last_read_ms else None

    def put(self, name: str, value: Any) -> None:
        """Note the progress of another replica's timer."""
        if value is not None:
            last_read_ms, queue_offset = typed(value, tuple[int, int], "checkpoint")
            self.followed = TimerCheckpoint(
                last_read_ms, queue_offset=queue_offset, master_queue_offset=queue_offset
            )

    def version(self) -> object:
        """Return the progress."""
        return self.all()

    def _saved(self) -> TimerCheckpoint:
        try:
            return TimerCheckpoint.read(self._path) or TimerCheckpoint()
        except StoreError:  # the timer rebuilds its files
            return TimerCheckpoint()
