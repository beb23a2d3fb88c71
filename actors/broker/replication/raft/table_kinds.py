"""The tables of a broker that a Raft group replicates: their entries as JSON, by kind and name.

    definitions   topic, group, mode, user, policy            logged when they change
    requests      drain                                       logged when they change
    progress      offset, generation, reset, lock, delay,     logged once per second, if they have changed
                  order, acked, timer
    acks          offset, order, acked                        logged once per turn (`HeldAcks`)

Values have only what JSON has, so that an entry equals itself after it was logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from actors.broker.drain import BrokerDrain
from actors.broker.group.queue_locks import QueueLocks
from actors.broker.metadata.acked_offsets import AckedOffsets
from actors.broker.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.metadata.tables import BrokerTables
from actors.broker.replication.raft.meta_record import Key
from actors.raft.group_record import GROUP_TOPIC
from actors.remoting.bodies.locks import HeldLock
from store.dispatch.queue_changes import META_TOPIC
from store.message.group_config import SubscriptionGroupConfig
from store.message.json_fields import typed
from store.message.message_queue import MessageQueue
from store.message.topic_config import TopicConfig
from store.metadata import MessageRequestMode, OrderBatch
from store.timer.timer_checkpoint import TimerCheckpoint

TOPIC, GROUP, MODE, LOCK, OFFSET = "topic", "group", "mode", "lock", "offset"
ACKED = "acked"
GENERATION, ORDER, USER, POLICY, RESET, DRAIN = "generation", "order", "user", "policy", "reset", "drain"
DEFINITIONS: Final = frozenset({TOPIC, GROUP, MODE, USER, POLICY})
_OF_TOPICS: Final = frozenset({MODE, OFFSET, GENERATION, ORDER, RESET, ACKED})
"""Their names begin with that of a topic: `topic@group`."""
OWN_TOPICS: Final = frozenset({GROUP_TOPIC, META_TOPIC})
"""Each replica creates them from its log."""
LOCK_MS: Final = 60_000
"""A lock that is taken over gets its full time: renewals are not logged."""


def belongs_to(key: Key, topic: str) -> bool:
    """Return True if an entry is deleted together with the topic."""
    kind, name = key
    return kind in _OF_TOPICS and name.startswith(f"{topic}@")


class Kind(Protocol):
    """The entries of one table."""

    def all(self) -> dict[str, Any]:
        """Return all entries by name."""

    def get(self, name: str) -> Any:
        """Return the value of an entry; None if it does not exist."""

    def put(self, name: str, value: Any) -> None:
        """Create or replace an entry; with None, remove it. Raises ValueError if the value is invalid."""

    def version(self) -> object:
        """Return a value that differs after each change."""


class TopicKind:
    """Topics; the system topics, too, because their queues may have been changed."""

    def __init__(self, tables: BrokerTables) -> None:
        self._tables = tables

    def all(self) -> dict[str, Any]:
        """Return all topics."""
        table = self._tables.topics.table
        return {name: topic.to_json() for name, topic in table.topics.items() if name not in OWN_TOPICS}

    def get(self, name: str) -> Any:
        """Return the settings of a topic."""
        topic = None if name in OWN_TOPICS else self._tables.topics.table.topics.get(name)
        return None if topic is None else topic.to_json()

    def put(self, name: str, value: Any) -> None:
        """Create, change or remove a topic; its queues stay."""
        self._tables.restore_topic(name, None if value is None else TopicConfig.from_json(value))

    def version(self) -> object:
        """Return the data version."""
        return self._tables.topics.table.data_version


class GroupKind:
    """Subscription groups."""

    def __init__(self, tables: BrokerTables) -> None:
        self._tables = tables

    def all(self) -> dict[str, Any]:
        """Return all groups."""
        return {name: group.to_json() for name, group in self._tables.groups.table.groups.items()}

    def get(self, name: str) -> Any:
        """Return the settings of a group."""
        group = self._tables.groups.table.groups.get(name)
        return None if group is None else group.to_json()

    def put(self, name: str, value: Any) -> None:
        """Create, change or remove a group."""
        group = None if value is None else SubscriptionGroupConfig.from_json(value)
        self._tables.restore_group(name, group)

    def version(self) -> object:
        """Return the data version."""
        return self._tables.groups.table.data_version


class ModeKind:
    """Request modes, by `topic@group`."""

    def __init__(self, tables: BrokerTables) -> None:
        self._tables = tables

    def all(self) -> dict[str, Any]:
        """Return all modes."""
        modes = self._tables.request_modes.table.modes
        return {
            f"{topic}@{group}": mode.to_json()
            for topic, groups in modes.items()
            for group, mode in groups.items()
        }

    def get(self, name: str) -> Any:
        """Return the mode of a topic and group."""
        topic, _, group = name.partition("@")
        mode = self._tables.request_modes.table.modes.get(topic, {}).get(group)
        return None if mode is None else mode.to_json()

    def put(self, name: str, value: Any) -> None:
        """Set or remove a mode."""
        topic, _, group = name.partition("@")
        mode = None if value is None else MessageRequestMode.from_json(value)
        self._tables.request_modes.restore(topic, group, mode)

    def version(self) -> object:
        """Return the modes themselves: they are few."""
        return self.all()


class QueueKind:
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


class ResetKind:
    """Resets of offsets that wait for the group's next pull at the leader, by `topic@group`."""

    def __init__(self, offsets: ConsumerOffsets, leads: Callable[[], bool]) -> None:
        self._resets = offsets.resets
        self._leads = leads

    def all(self) -> dict[str, Any]:
        """Return all entries."""
        found: dict[str, Any] = {}
        for (topic, group, queue_id), offset in sorted(self._resets.items()):
            found.setdefault(f"{topic}@{group}", []).append([queue_id, offset])
        return found

    def get(self, name: str) -> Any:
        """Return rows (queue id, offset), sorted."""
        return self.all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Replace the resets of a group in a topic; a pull at another replica must not take them."""
        topic, _, group = name.partition("@")
        for key in [each for each in self._resets if each[:2] == (topic, group)]:
            del self._resets[key]
        rows = typed(value or [], list[tuple[int, int]], "resets")
        if self._leads():
            self._resets.update(((topic, group, queue_id), offset) for queue_id, offset in rows)

    def version(self) -> object:
        """Return the resets themselves: they are few."""
        return dict(self._resets)


class LockKind:
    """Queue locks, by group."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def all(self) -> dict[str, Any]:
        """Return the locks of all groups as rows (topic, broker, queue id, owner, generation)."""
        found: dict[str, Any] = {}
        for locks in self._locks.held():
            for lock in locks:
                found.setdefault(lock.group, []).append([*lock.queue, lock.owner, lock.generation])
        return {group: sorted(rows) for group, rows in found.items()}

    def get(self, name: str) -> Any:
        """Return the locks of a group."""
        return self.all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Replace the locks of a group; they expire after their full time."""
        rows = typed(value or [], list[tuple[str, str, int, str, int]], "locks")
        self._locks.replace_group(
            name,
            [
                HeldLock(name, owner, MessageQueue(topic, broker, queue_id), generation, LOCK_MS)
                for topic, broker, queue_id, owner, generation in rows
            ],
        )

    def version(self) -> object:
        """Return the number of changes, and of locks: an expired lock is not counted as a change."""
        return self._locks.changes, len(self._locks)


class DelayKind:
    """The delivered offset of each delay level, up to what cannot be lost."""

    def __init__(self, tables: BrokerTables) -> None:
        self._table = tables.delay_offsets

    def all(self) -> dict[str, Any]:
        """Return the offsets of all levels."""
        return {str(level): offset for level, offset in self._table.settled.items()}

    def get(self, name: str) -> Any:
        """Return the offset of a level."""
        return self._table.settled.get(int(name))

    def put(self, name: str, value: Any) -> None:
        """Set the offset of a level."""
        self._table.restore(int(name), typed(value or 0, int, "offset"))

    def version(self) -> object:
        """Return the offsets themselves: they are few."""
        return self.all()


class AckedKind:
    """Popped messages after the committed offsets that were acked, by `topic@group@queue id@chunk`."""

    def __init__(self, acked: AckedOffsets) -> None:
        self._acked = acked

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


class DrainKind:
    """Whether the group is being drained, without a lease: each next leader continues."""

    _NAME = "group"

    def __init__(self, drain: BrokerDrain) -> None:
        self._drain = drain

    def all(self) -> dict[str, Any]:
        """Return the entry, if the group is being drained."""
        return {self._NAME: True} if self._drain.is_held else {}

    def get(self, name: str) -> Any:
        """Return True during a drain."""
        return self.all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Begin or cancel the drain."""
        if value:
            self._drain.hold()
        else:
            self._drain.cancel()

    def version(self) -> object:
        """Return the state."""
        return self._drain.is_held


class TimerKind:
    """The saved progress of the timer; `put` only notes it until the timer is started."""

    _NAME = "checkpoint"

    def __init__(self, checkpoint: Callable[[], TimerCheckpoint]) -> None:
        """Create the object; `checkpoint` returns the progress of this replica's timer."""
        self._checkpoint = checkpoint
        self.followed: TimerCheckpoint | None = None
        """The progress of another replica's timer, from which this one's must resume."""

    def all(self) -> dict[str, Any]:
        """Return the progress, if there is any."""
        value = self.get(self._NAME)
        return {} if value is None else {self._NAME: value}

    def get(self, name: str) -> Any:
        """Return the time and offset of the progress."""
        found = self.followed or self._checkpoint()
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


def progress_kinds(tables: BrokerTables) -> Mapping[str, Kind]:
    """Return the tables that are logged once per turn."""
    offsets = tables.offsets
    return {
        OFFSET: QueueKind(lambda: offsets.table.offsets, lambda: offsets.changes, offsets.note_change),
        ACKED: AckedKind(offsets.acked),
        ORDER: QueueKind(
            lambda: tables.orders.batches,
            lambda: tables.orders.to_json(),
            tables.order_changes.note,
            OrderBatch.to_json,
            OrderBatch.from_json,
            dict,
        ),
    }


def kinds_of(
    tables: BrokerTables, locks: QueueLocks, leads: Callable[[], bool]
) -> Iterator[tuple[str, Kind]]:
    """Yield the replicated tables, except the timer's, in the order in which a change of all is logged.

    `leads` returns True while this replica may append.
    """
    offsets = tables.offsets
    yield TOPIC, TopicKind(tables)
    yield GROUP, GroupKind(tables)
    yield MODE, ModeKind(tables)
    yield from progress_kinds(tables).items()
    yield GENERATION, QueueKind(lambda: offsets.generations, lambda: offsets.changes, offsets.note_change)
    yield RESET, ResetKind(offsets, leads)
    yield LOCK, LockKind(locks)
    yield "delay", DelayKind(tables)
