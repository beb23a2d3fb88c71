"""LiteIndex: finds the messages of lite topics; a dispatch sink with its own files in `<store>/lite`.

A lite message is one record in a queue of its topic. The properties INNER_MULTI_DISPATCH and
INNER_MULTI_QUEUE_OFFSET of the record say which lite topic it is in, and at which offset: the index never
numbers messages itself, so a rebuild finds what was there before.

    record ──► unit {physical offset, previous unit} ──► table by id: last unit, next offset, time

A lite topic has no Python object (`LiteTable`). It is read backwards from its last unit. A record with an
offset that its lite topic has passed begins a new life of it: the earlier units are dropped.
See docs/store-format.md#lite-index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.common.logs import get_logger
from store.common.sized_cache import SizedCache
from store.dispatch.saved_sink import SavedSink
from store.dispatch.sink import RecordBatch
from store.kernels import lite as k
from store.kernels import units as kernel
from store.lite.lite_table import LiteTable
from store.lite.names import DROPPED, LITE, SEPARATOR, LiteNames, NameEntry
from store.lite.units import UNITS_PER_FILE, LiteUnits
from store.message.properties import MessageConst
from store.message.record import record_properties
from store.message.validate import LMQ_TOPIC_PREFIX

_log = get_logger(__name__)

CHAIN_BYTES_MAX: Final = 16 << 20
"""Of the unit numbers of the lite topics that were read last."""
_CHAIN_BYTES: Final = 200
_DISPATCH: Final = f"\x02{MessageConst.INNER_MULTI_DISPATCH}\x01".encode()


class LiteMessage(NamedTuple):
    """A message in a lite topic: its offset there, and where its record is."""

    offset: int
    physical_offset: int
    size: int
    stored_ms: int
    """When it was stored, to the second."""


def lmq_name(topic: str, name: str) -> str:
    """Return the name of RocketMQ's light message queue (LMQ) for a lite topic."""
    return f"{LMQ_TOPIC_PREFIX}{SEPARATOR}{topic}{SEPARATOR}{name}"


class LiteIndex(SavedSink):
    """The lite topics of one store."""

    def __init__(self, root: Path, units_per_file: int = UNITS_PER_FILE) -> None:
        """Create the index of the store at `root`; it is loaded when the store is opened."""
        super().__init__(LITE)
        self._names = LiteNames(root / LITE / "names")
        self._units = LiteUnits(root / LITE / "units", units_per_file)
        self._topics: set[bytes] = set()
        self.is_sole_writer = False
        """True while all messages come from `appended`, so that `add_topic` was called for each lite one."""
        self.table = LiteTable()
        self.arrived: Callable[[Iterable[tuple[str, str]]], None] = _nothing
        """Called with topic and name of the lite topics that have got messages, except during recovery."""
        self._chains = SizedCache[int, "array[int]"](CHAIN_BYTES_MAX)

    # ---- reading -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.table)

    def names(self, topic: str) -> Iterator[str]:
        """Yield the names of the lite topics of a topic."""
        return self.table.names(topic)

    def max_offset(self, topic: str, name: str) -> int:
        """Return the end offset of a lite topic; 0 if it is unknown."""
        id_ = self.table.find(topic, name)
        return 0 if id_ < 0 else self._next(id_)

    def min_offset(self, topic: str, name: str) -> int:
        """Return the first offset of a lite topic that is still in the log; 0 if it is unknown."""
        id_ = self.table.find(topic, name)
        if id_ < 0:
            return 0
        chain = self._chain(id_)
        return self._units.get(chain[0]).offset if chain else self._next(id_)

    def read(self, topic: str, name: str, offset: int, count: int) -> Sequence[LiteMessage]:
        """Return up to `count` messages from an offset on, in their order."""
        id_ = self.table.find(topic, name)
        chain = () if id_ < 0 else self._chain(id_)
        first = bisect_left(chain, offset, key=lambda number: self._units.get(number).offset)
        units = map(self._units.get, chain[first : first + count])
        return [
            LiteMessage(unit.offset, unit.physical_offset, unit.size, unit.stored_s * 1000) for unit in units
        ]

    def offset_at(self, topic: str, name: str, time_ms: int) -> int:
        """Return the offset of the first message stored at `time_ms` or later (to the second), or the end."""
        id_ = self.table.find(topic, name)
        if id_ < 0:
            return 0
        chain = self._chain(id_)
        first = bisect_left(chain, time_ms // 1000, key=lambda number: self._units.get(number).stored_s)
        return self._units.get(chain[first]).offset if first < len(chain) else self._next(id_)

    def last_store_time(self, topic: str, name: str) -> int | None:
        """Return when the last message was stored, in ms to the second; None if it is unknown."""
        id_ = self.table.find(topic, name)
        return None if id_ < 0 else self.table.times.item(id_) * 1000 or None

    # ---- writing -------------------------------------------------------------------------------------------

    def next_offset(self, topic: str, name: str) -> int:
        """Return the offset for the next message, also if the ones before it are not dispatched yet."""
        id_ = self.table.find(topic, name)
        return 0 if id_ < 0 else self.table.numbers.item(id_, k.ASSIGNED)

    def appended(self, topic: str, name: str, offset: int) -> None:
        """Note that the message at `offset` was appended to the log."""
        self.add_topic(topic)
        id_ = self.table.enter(topic, name)
        self.table.numbers[id_, k.ASSIGNED] = offset + 1

    def forget_appended(self) -> None:
        """Forget what was appended: another process has written to the log since."""
        self.table.numbers[:, k.ASSIGNED] = self.table.numbers[:, k.NEXT]

    def add_topic(self, topic: str) -> int:
        """Look for lite messages in all records of a topic from now on, as its type is LITE.

        Returns its number in the table.
        """
        self._topics.add(topic.encode())
        return self.table.parent(topic)

    def expired(self, limits_ms: dict[str, int]) -> Iterator[str]:
        """Yield the names, as `topic$name`, of lite topics whose last message was stored before a limit.

        Messages may arrive and lite topics may be dropped meanwhile.

        Args:
            limits_ms: the limit of each topic, in ms since the epoch.
        """
        limits = [max(limits_ms.get(topic, 0) // 1000, 0) for topic in self.table.topics]
        if not any(limits):
            return
        limits_s = np.array(limits, np.uint32)
        for id_ in map(int, np.flatnonzero(self.table.times < limits_s[self.table.parents])):
            if 0 < self.table.times.item(id_) < limits[self.table.parents.item(id_)]:
                yield self.table.key(id_)

    def drop(self, key: str) -> None:
        """Forget a lite topic, named as `topic$name`: its next message begins a new life at offset 0.

        One with messages that are not dispatched yet is kept. Raises OSError.
        """
        topic, _, name = key.partition(SEPARATOR)
        id_ = self.table.find(topic, name)
        if id_ >= 0 and self.table.numbers.item(id_, k.ASSIGNED) <= self._next(id_):
            self._names.write_if_long()
            self._names.add(NameEntry(self._end, DROPPED, 0, key))
            self.table.remove(id_)
            self._forget_chain(id_)

    def _delete_old(self) -> None:
        """Remove the units of messages that are not in the log any more, file by file. Raises OSError."""
        for units in self._units.drop_before(self._log_min):
            for id_ in np.unique(units["id"]).tolist():
                key = self.table.key(id_)
                if key and self._last(id_) < self._units.first:  # its offset must not be lost
                    self._names.write_if_long()
                    self._names.add(NameEntry(self._end, id_, self._next(id_), key))

    # ---- dispatch ------------------------------------------------------------------------------------------

    def accept(self, batch: RecordBatch) -> None:
        """Add the lite messages of a batch. Raises OSError."""
        position, size = batch.rows[-1, : kernel.ROW_SIZE + 1].tolist()
        end = batch.file.base + position + size
        if end <= self._end or self._is_stale:
            return
        parents = self._parents_of(batch)
        if max(parents) >= 0:
            self._add_all(batch, np.array(parents, np.int64))
        self._end = end

    def add(self, offset: int, record: memoryview) -> None:
        """Do nothing: `accept` adds the records of a batch at once."""

    def rewind(self, offset: int) -> None:
        """Drop the units of records that are truncated."""
        numbers = self.table.numbers
        if offset < self._end:
            end = self._units.end
            while end > self._units.first and (unit := self._units.get(end - 1)).physical_offset >= offset:
                end -= 1
                if self._last(unit.id) == end:
                    numbers[unit.id, k.LAST], numbers[unit.id, k.NEXT] = unit.previous, unit.offset
                    self._forget_chain(unit.id)
            self._units.truncate(end)
            numbers[numbers[:, k.BORN] >= offset, k.BORN] = -1
            self._end = offset
        self.forget_appended()

    def _parents_of(self, batch: RecordBatch) -> Sequence[int]:
        """Return the number of the topic of each group of records; -1 if it has no lite messages.

        A replica, or a store in recovery, learns it from the first or last record of a queue in a batch.
        """
        view, last = batch.file.view, -1
        names: list[bytes] = []
        for group in batch.groups.tolist():
            at = group[kernel.GROUP_TOPIC]
            names.append(bytes(view[at : at + group[kernel.GROUP_TOPIC_LENGTH]]) if at != last else names[-1])
            last = at
        if (batch.is_recovery or not self.is_sole_writer) and _has_marks(batch):
            for number, topic in enumerate(names):
                if topic not in self._topics and _has_lite_messages(batch, number):
                    self._topics.add(topic)
        lite = self._topics.intersection(names)
        numbers = {topic: self.table.parent(topic.decode("utf-8", "replace")) for topic in lite}
        return [numbers.get(topic, -1) for topic in names]

    def _add_all(self, batch: RecordBatch, parents: NDArray[np.int64]) -> None:
        """Add the messages of topics with lite messages, in steps that end with a file or without room."""
        base, rows = batch.file.base, batch.rows
        at = int(np.searchsorted(rows[:, kernel.ROW_POSITION], self._end - base))
        while at < len(rows):
            self._names.write_if_long()
            room = min(self._units.room(), len(rows) - at)
            units = np.empty((room, k.UNIT_FIELDS), np.int64)
            entries = np.empty(room * k.ENTRY_BYTES_MAX, np.uint8)
            at, count, entries_bytes = k.add_messages(
                batch.file.array, base, rows, parents, at, self._units.end, self.table.arrays, units, entries
            )
            units = units[:count]
            self._units.add(units)
            self._names.add_encoded(entries[:entries_bytes].data)
            for unit in units[units[:, k.NEWS] > 0].tolist():
                self._note(unit)
            position, size = rows[at - 1, : kernel.ROW_SIZE + 1].tolist() if at else (0, 0)
            self._end = max(self._end, base + position + size)
            if count < room and at < len(rows):
                self.table.grow()
            if count and not batch.is_recovery:
                self.arrived(map(self.table.topic_and_name, _distinct(units[:, k.ID])))

    def _note(self, unit: Sequence[int]) -> None:
        """Note that a lite topic has a new life, or lacks messages."""
        if unit[k.NEWS] == k.NEW_LIFE:
            self._forget_chain(unit[k.ID])
        else:
            _log.warning("lite_offset_gap", lite_topic=self.table.key(unit[k.ID]), found=unit[k.OFFSET])

    def _chain(self, id_: int) -> array[int]:
        """Return the numbers of the units of a lite topic whose messages are in the log, in their order."""
        chain = self._chains.get(id_) or array("q")
        known, number = chain[-1] if chain else -1, self._last(id_)
        added = array("q")
        while number >= self._units.first and number > known:
            unit = self._units.get(number)
            if unit.physical_offset < self._log_min:
                break
            added.append(number)
            number = unit.previous
        added.reverse()
        chain = chain + added if added and chain else (added or chain)
        first = bisect_left(chain, self._log_min, key=self._physical_of)
        if first:
            chain = chain[first:]
        self._chains.put(id_, chain, _CHAIN_BYTES + 8 * len(chain))
        return chain

    def _forget_chain(self, id_: int) -> None:
        self._chains.put(id_, array("q"), _CHAIN_BYTES)

    def _physical_of(self, number: int) -> int:
        return self._units.get(number).physical_offset if number >= self._units.first else -1

    def _last(self, id_: int) -> int:
        return self.table.numbers.item(id_, k.LAST)

    def _next(self, id_: int) -> int:
        return self.table.numbers.item(id_, k.NEXT)

    # ---- state ---------------------------------------------------------------------------------------------

    def state(self) -> Any:
        """Write the files, and return what they have."""
        self._delete_old()
        first, end, crcs = self._units.state()
        size_bytes, crc = self._names.state()
        return {"first": first, "end": end, "crcs": crcs, "names": [size_bytes, crc]}

    def restore(self, state: Any) -> None:
        """Read the files; None: keep names and tombstones only, as the log is dispatched again.

        Raises ValueError if the files do not have what the state says.
        """
        self.table = LiteTable()
        self._chains = SizedCache[int, "array[int]"](CHAIN_BYTES_MAX)
        if state is None:
            self._units.clear()
            self._enter_all(self._names.load(None, 0), is_complete=False)
            return
        try:
            size_bytes, crc = state["names"]
            self._units.load(state["first"], state["end"], state["crcs"])
            self._enter_all(self._names.load(size_bytes, crc), is_complete=True)
        except (KeyError, OSError) as error:
            raise ValueError(f"the files of lite topics cannot be read: {error!r}") from error
        number = self._units.first
        numbers, times = self.table.numbers, self.table.arrays[5]
        for units in self._units.arrays():
            ids = np.minimum(units["id"], len(numbers) - 1)
            alive = np.flatnonzero((ids == units["id"]) & (units["physical"] >= numbers[ids, k.BORN]))
            ids = ids[alive]
            numbers[ids, k.LAST] = number + alive  # of equal ids, the last one counts
            numbers[ids, k.NEXT], times[ids] = units["offset"][alive] + np.int64(1), units["stored_s"][alive]
            number += len(units)
        self.forget_appended()

    def _enter_all(self, entries: Iterable[NameEntry], *, is_complete: bool) -> None:
        """Enter the names of the file; if it is not complete, the log says where their first records are."""
        found: dict[str, NameEntry] = {}
        dead: dict[str, int] = {}
        total = 0
        for entry in entries:
            total += 1
            old = found.get(entry.name)
            if entry.id == DROPPED:
                dead[entry.name] = entry.position
            elif old is not None and old.id == entry.id:
                born, following = min(entry.position, old.position), max(entry.next_offset, old.next_offset)
                entry = entry._replace(position=born, next_offset=following)
            found[entry.name] = entry
        dead = {name: at for name, at in dead.items() if at > self._log_min}
        alive = {entry.id: entry for entry in found.values() if entry.id != DROPPED}
        if total > 2 * (len(alive) + len(dead)) + 1024:
            graves = (NameEntry(at, DROPPED, 0, name) for name, at in dead.items())
            self._names.replace([*graves, *alive.values()])
        self.table.fill(list(alive.values()))
        for topic in self.table.topics:
            self.add_topic(topic)
        if not is_complete:
            self.table.numbers[: len(self.table.times), k.BORN] = -1
            for name, at in dead.items():
                topic, _, lite_topic = name.partition(SEPARATOR)
                id_ = self.table.enter(topic, lite_topic)
                self.table.numbers[id_, k.BORN] = -1 - at
            self.forget_appended()


def _has_marks(batch: RecordBatch) -> bool:
    """Return True if a record of the batch may be a lite message."""
    begin, (last, size) = batch.rows.item(0, 0), batch.rows[-1, : kernel.ROW_SIZE + 1].tolist()
    return _DISPATCH in bytes(batch.file.view[begin : last + size])


def _has_lite_messages(batch: RecordBatch, group: int) -> bool:
    """Return True if the first or the last record of a group is a lite message."""
    rows = np.flatnonzero(batch.rows[:, kernel.ROW_GROUP] == group)
    places = batch.rows[rows[[0, -1]], kernel.ROW_POSITION : kernel.ROW_SIZE + 1].tolist()
    records = (batch.file.view[at : at + size] for at, size in places)
    return any(_DISPATCH in record_properties(record, b"\x02") for record in records)


def _distinct(ids: NDArray[np.int64]) -> Iterator[int]:
    yield from dict.fromkeys(ids.tolist())


def _nothing(arrived: Iterable[tuple[str, str]]) -> None:
    """Default of `arrived`: report no arrival."""
