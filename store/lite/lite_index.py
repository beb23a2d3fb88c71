"""LiteIndex: finds the messages of lite topics; a dispatch sink with its own files in `<store>/lite`.

A lite message is one record in a queue of its topic. The properties INNER_MULTI_DISPATCH and
INNER_MULTI_QUEUE_OFFSET of the record say which lite topic it is in, and at which offset: the index never
numbers messages itself, so a rebuild finds what was there before.

    record ──► unit {physical offset, previous unit} ──► arrays by id: last unit, next offset, time

A lite topic has no Python object but its name. It is read backwards from its last unit. A record with an
offset that its lite topic has passed begins a new life of it: the earlier units are dropped.
See docs/store-format.md#lite-index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.common.logs import get_logger
from store.common.sized_cache import SizedCache
from store.dispatch.saved_sink import SavedSink
from store.dispatch.sink import RecordBatch
from store.kernels import units as kernel
from store.lite.names import DROPPED, LITE, SEPARATOR, LiteNames, NameEntry
from store.lite.units import UNITS_PER_FILE, LiteUnit, LiteUnits
from store.message.hosts import V4_BYTES, V6_BYTES
from store.message.lite_topics import is_valid_name
from store.message.properties import MessageConst
from store.message.record import STORE_TIMESTAMP, SYS_FLAG, body_of, record_properties
from store.message.sys_flag import BORN_HOST_V6
from store.message.validate import LMQ_TOPIC_PREFIX

_log = get_logger(__name__)

CHAIN_BYTES_MAX: Final = 16 << 20
"""Of the unit numbers of the lite topics that were read last."""
_CHAIN_BYTES: Final = 200
_TOPICS_MAX: Final = 100_000
_OFFSET_MAX: Final = DROPPED - 1
_DISPATCH: Final = f"\x02{MessageConst.INNER_MULTI_DISPATCH}\x01".encode()
_NUMBER: Final = f"\x02{MessageConst.INNER_MULTI_QUEUE_OFFSET}\x01".encode()
_LMQ: Final = f"{LMQ_TOPIC_PREFIX}{SEPARATOR}"
_I32, _I64 = Struct(">i"), Struct(">q")


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
        self._topics: dict[bytes, bool] = {}  # True: of lite messages
        self.arrived: Callable[[str, str], None] = _nothing
        """Called with topic and name of each lite topic that has got a message, except during recovery."""
        self._clear()

    # ---- reading -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._ids)

    def names(self, topic: str) -> Iterator[str]:
        """Yield the names of the lite topics of a topic, as they are now."""
        prefix = topic + SEPARATOR
        for name in list(self._ids):
            if name.startswith(prefix):
                yield name[len(prefix) :]

    def max_offset(self, topic: str, name: str) -> int:
        """Return the end offset of a lite topic; 0 if it is unknown."""
        id_ = self._ids.get(topic + SEPARATOR + name)
        return 0 if id_ is None else self._next[id_]

    def min_offset(self, topic: str, name: str) -> int:
        """Return the first offset of a lite topic that is still in the log; 0 if it is unknown."""
        id_ = self._ids.get(topic + SEPARATOR + name)
        if id_ is None:
            return 0
        chain = self._chain(id_)
        return self._units.get(chain[0]).offset if chain else self._next[id_]

    def read(self, topic: str, name: str, offset: int, count: int) -> Sequence[LiteMessage]:
        """Return up to `count` messages from an offset on, in their order."""
        id_ = self._ids.get(topic + SEPARATOR + name)
        chain = () if id_ is None else self._chain(id_)
        first = bisect_left(chain, offset, key=lambda number: self._units.get(number).offset)
        units = map(self._units.get, chain[first : first + count])
        return [
            LiteMessage(unit.offset, unit.physical_offset, unit.size, unit.stored_s * 1000) for unit in units
        ]

    def offset_at(self, topic: str, name: str, time_ms: int) -> int:
        """Return the offset of the first message stored at `time_ms` or later (to the second), or the end."""
        id_ = self._ids.get(topic + SEPARATOR + name)
        if id_ is None:
            return 0
        chain = self._chain(id_)
        first = bisect_left(chain, time_ms // 1000, key=lambda number: self._units.get(number).stored_s)
        return self._units.get(chain[first]).offset if first < len(chain) else self._next[id_]

    def last_store_time(self, topic: str, name: str) -> int | None:
        """Return when the last message was stored, in ms to the second; None if it is unknown."""
        id_ = self._ids.get(topic + SEPARATOR + name)
        return None if id_ is None or not self._stored_s[id_] else self._stored_s[id_] * 1000

    # ---- writing -------------------------------------------------------------------------------------------

    def next_offset(self, topic: str, name: str) -> int:
        """Return the offset for the next message, also if the ones before it are not dispatched yet."""
        key = topic + SEPARATOR + name
        return max(self._pending.get(key, 0), self.max_offset(topic, name))

    def appended(self, topic: str, name: str, offset: int) -> None:
        """Note that the message at `offset` was appended to the log."""
        self._topics[topic.encode()] = True
        self._pending[topic + SEPARATOR + name] = offset + 1

    def forget_appended(self) -> None:
        """Forget what was appended: another process has written to the log since."""
        self._pending.clear()

    def add_topic(self, topic: str) -> None:
        """Look for lite messages in all records of a topic from now on, as its type is LITE."""
        self._topics[topic.encode()] = True

    def expired(self, limits_ms: dict[str, int]) -> Sequence[str]:
        """Return the names, as `topic$name`, of lite topics whose last message was stored before a limit.

        Args:
            limits_ms: the limit of each topic, in ms since the epoch.
        """
        limits = np.zeros(len(self._parents), np.uint32)
        for parent, topic in enumerate(self._parents):
            limits[parent] = max(limits_ms.get(topic, 0) // 1000, 0)
        if not self._by_id:
            return ()
        times, parents = np.frombuffer(self._stored_s, np.uint32), np.frombuffer(self._parent, np.uint32)
        found = np.flatnonzero((times < limits[parents]) & (times > 0))
        return [name for id_ in found.tolist() if (name := self._by_id[id_])]

    def drop(self, key: str) -> None:
        """Forget a lite topic, named as `topic$name`: its next message begins a new life at offset 0.

        One with messages that are not dispatched yet is kept. Raises OSError.
        """
        id_ = None if key in self._pending else self._ids.pop(key, None)
        if id_ is not None:
            self._names.add(NameEntry(self._end, DROPPED, 0, key))
            self._by_id[id_] = ""
            self._last[id_], self._next[id_], self._stored_s[id_] = -1, 0, 0
            self._chains.put(id_, array("q"), _CHAIN_BYTES)
            self._free.append(id_)

    def _delete_old(self) -> None:
        """Remove the units of messages that are not in the log any more, file by file. Raises OSError."""
        for units in self._units.drop_before(self._log_min):
            for id_ in np.unique(units["id"]).tolist():
                if self._by_id[id_] and self._last[id_] < self._units.first:  # its offset must not be lost
                    self._names.add(NameEntry(self._end, id_, self._next[id_], self._by_id[id_]))

    # ---- dispatch ------------------------------------------------------------------------------------------

    def accept(self, batch: RecordBatch) -> None:
        """Add the lite messages of a batch. Raises OSError."""
        position, size = batch.rows[-1, : kernel.ROW_SIZE + 1].tolist()
        end = batch.file.base + position + size
        if end <= self._end or self._is_stale:
            return
        groups = self._lite_groups(batch)
        if groups:
            rows = batch.rows[np.isin(batch.rows[:, kernel.ROW_GROUP], groups), : kernel.ROW_SIZE + 1]
            for position, size in rows.tolist():
                offset = batch.file.base + position
                if offset >= self._end:
                    found = self._add(offset, batch.file.view[position : position + size])
                    self._end = offset + size
                    if found is not None and not batch.is_recovery:
                        self.arrived(*found)
        self._end = end

    def add(self, offset: int, record: memoryview) -> None:
        """Add the record at a CommitLog offset, if it is a lite message."""
        self._add(offset, record)

    def rewind(self, offset: int) -> None:
        """Drop the units of records that are truncated."""
        self._pending.clear()
        if offset >= self._end:
            return
        end = self._units.end
        while end > self._units.first and (unit := self._units.get(end - 1)).physical_offset >= offset:
            end -= 1
            if self._last[unit.id] == end:
                self._last[unit.id], self._next[unit.id] = unit.previous, unit.offset
                self._chains.put(unit.id, array("q"), _CHAIN_BYTES)
        self._units.truncate(end)
        self._end = offset

    def _lite_groups(self, batch: RecordBatch) -> Sequence[int]:
        """Return the numbers of the groups of queues whose topic has lite messages."""
        places = batch.groups[:, kernel.GROUP_TOPIC]
        lite = [at for at in set(places.tolist()) if self._is_lite(batch, at)]
        return np.flatnonzero(np.isin(places, lite)).tolist() if lite else ()

    def _is_lite(self, batch: RecordBatch, at: int) -> bool:
        """Return True if the topic whose name is at a position in the file has lite messages.

        A replica, or a store that is recovered, learns it from the first record of a topic.
        """
        group = batch.groups[np.argmax(batch.groups[:, kernel.GROUP_TOPIC] == at)]
        view = batch.file.view
        topic = bytes(view[at : at + int(group[kernel.GROUP_TOPIC_LENGTH])])
        is_lite = self._topics.get(topic)
        if is_lite is None:
            first = int(group[kernel.GROUP_FIRST_PHYSICAL_OFFSET]) - batch.file.base
            size = _I32.unpack_from(view, first)[0]
            is_lite = _DISPATCH in record_properties(view[first : first + size], b"\x02")
            if is_lite or len(self._topics) < _TOPICS_MAX:
                self._topics[topic] = is_lite
        return is_lite

    def _add(self, offset: int, record: memoryview) -> tuple[str, str] | None:
        """Add a record; return topic and name, or None if it is no lite message of its topic."""
        properties = record_properties(record, b"\x02")
        dispatch, number = _value(properties, _DISPATCH), _value(properties, _NUMBER)
        key = dispatch.removeprefix(_LMQ)
        topic, _, name = key.partition(SEPARATOR)
        topic_at = body_of(record).stop
        if (
            not (
                number.isdecimal() and number.isascii() and dispatch.startswith(_LMQ) and is_valid_name(name)
            )
            or (lite_offset := int(number[:11])) >= _OFFSET_MAX
            or topic.encode() != record[topic_at + 1 : topic_at + 1 + record[topic_at]]
        ):
            return None  # such as a dead letter of RocketMQ 5.5
        if self._dead and offset < self._dead.get(key, 0):
            return None
        id_ = self._id_of(key, offset)
        last, following = self._last[id_], self._next[id_]
        if lite_offset < following:  # a new life
            last = -1
            self._chains.put(id_, array("q"), _CHAIN_BYTES)
        elif lite_offset > following and last >= 0:
            _log.warning("lite_offset_gap", lite_topic=key, expected=following, found=lite_offset)
        sys_flag = _I32.unpack_from(record, SYS_FLAG)[0]
        at = STORE_TIMESTAMP + (V6_BYTES - V4_BYTES if sys_flag & BORN_HOST_V6 else 0)
        stored_s = _I64.unpack_from(record, at)[0] // 1000 & DROPPED
        unit = LiteUnit(offset, last, id_, lite_offset, len(record), stored_s)
        self._last[id_] = self._units.add(unit)
        self._next[id_], self._stored_s[id_] = lite_offset + 1, stored_s
        if self._pending.get(key, DROPPED) <= lite_offset + 1:
            del self._pending[key]
        return topic, name

    def _id_of(self, key: str, offset: int) -> int:
        id_ = self._ids.get(key)
        if id_ is None:
            id_ = self._free.pop() if self._free else len(self._by_id)
            self._names.add(NameEntry(offset, id_, 0, key))
            self._enter(key, id_, 0)
        return id_

    def _enter(self, key: str, id_: int, following: int) -> None:
        """Give a name an id."""
        if id_ >= len(self._by_id):
            self._add_ids(id_ + 1)
        topic = key.partition(SEPARATOR)[0]
        parent = self._parent_ids.get(topic)
        if parent is None:
            parent = self._parent_ids[topic] = len(self._parents)
            self._parents.append(topic)
            self._topics[topic.encode()] = True
        self._ids[key], self._by_id[id_] = id_, key
        self._parent[id_] = parent
        self._last[id_], self._next[id_], self._stored_s[id_] = -1, following, 0

    def _add_ids(self, count: int) -> None:
        """Make room for ids below `count`."""
        zeros = [0] * (count - len(self._by_id))
        self._by_id.extend([""] * len(zeros))
        for column in (self._last, self._next, self._stored_s, self._parent):
            column.extend(zeros)

    def _chain(self, id_: int) -> array[int]:
        """Return the numbers of the units of a lite topic whose messages are in the log, in their order."""
        chain = self._chains.get(id_) or array("q")
        known, number = chain[-1] if chain else -1, self._last[id_]
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

    def _physical_of(self, number: int) -> int:
        return self._units.get(number).physical_offset if number >= self._units.first else -1

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
        self._clear()
        if state is None:
            self._enter_all(self._names.load(None, 0))
            self._units.clear()
            return
        try:
            size_bytes, crc = state["names"]
            self._units.load(state["first"], state["end"], state["crcs"])
            born = self._enter_all(self._names.load(size_bytes, crc))
        except (KeyError, OSError) as error:
            raise ValueError(f"the files of lite topics cannot be read: {error!r}") from error
        self._dead.clear()
        number = self._units.first
        last, following = np.frombuffer(self._last, np.int64), np.frombuffer(self._next, np.int64)
        stored_s = np.frombuffer(self._stored_s, np.uint32)
        for units in self._units.arrays():
            ids = units["id"]
            alive = np.flatnonzero(
                (ids < len(born)) & (units["physical"] >= born[np.minimum(ids, len(born) - 1)])
            )
            ids = ids[alive]
            last[ids] = number + alive  # of equal ids, the last one counts
            following[ids], stored_s[ids] = units["offset"][alive] + 1, units["stored_s"][alive]
            number += len(units)

    def _enter_all(self, entries: Iterable[NameEntry]) -> NDArray[np.int64]:
        """Enter the names of the file; return the position from which each id is that of its name."""
        found: dict[str, NameEntry] = {}
        born: dict[str, int] = {}
        total = 0
        for entry in entries:
            total += 1
            old = found.get(entry.name)
            if entry.id == DROPPED or old is None or old.id != entry.id:
                born[entry.name] = entry.position
            if entry.id == DROPPED:
                self._dead[entry.name] = entry.position
            elif old is not None and old.id == entry.id:
                entry = entry._replace(next_offset=max(entry.next_offset, old.next_offset))
            found[entry.name] = entry
        for name in [name for name, at in self._dead.items() if at <= self._log_min]:
            del self._dead[name]
        alive = {name: entry for name, entry in found.items() if entry.id != DROPPED}
        positions = np.full(1 + max((entry.id for entry in alive.values()), default=0), 1 << 62, np.int64)
        self._add_ids(len(positions) if alive else 0)
        for name, entry in alive.items():
            self._enter(name, entry.id, entry.next_offset)
            positions[entry.id] = born[name]
        self._free.extend(id_ for id_, name in enumerate(self._by_id) if not name)
        if total > 2 * (len(alive) + len(self._dead)) + 1024:
            kept = (NameEntry(born[name], each.id, each.next_offset, name) for name, each in alive.items())
            graves = (NameEntry(at, DROPPED, 0, name) for name, at in self._dead.items())
            self._names.replace([*graves, *kept])
        return positions

    def _clear(self) -> None:
        self._ids: dict[str, int] = {}
        self._by_id: list[str] = []
        self._free = array("q")
        self._parents: list[str] = []
        self._parent_ids: dict[str, int] = {}
        self._parent, self._stored_s = array("I"), array("I")
        self._last, self._next = array("q"), array("q")
        self._pending: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._chains = SizedCache[int, "array[int]"](CHAIN_BYTES_MAX)


def _nothing(topic: str, name: str) -> None:
    """Default of `arrived`: report no arrival."""


def _value(properties: bytes, name: bytes) -> str:
    """Return the value of a property, whose name has its separators; an empty string if it is missing."""
    at = properties.find(name)
    if at < 0:
        return ""
    begin = at + len(name)
    end = properties.find(b"\x02", begin)
    return properties[begin : end if end >= 0 else None].decode("utf-8", "replace")
