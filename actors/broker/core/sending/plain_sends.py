"""PlainSends: appends the plain sends of a receive buffer with one call of `store.kernels.take_sends`.

A topic becomes known when `Sender` has appended a message to one of its queues, and all topics are forgotten
when a definition changes: so `Sender` decides which sends are permitted, and this object repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.bounds import AtLimit, Bound, Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.admission import Admission
from actors.broker.core.counters import RequestCounters
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.metadata.attributes import is_lite_topic
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.sending.acks import Acks, PendingAck
from actors.broker.core.sending.interceptors import SendInterceptor
from actors.broker.core.sending.responses import SendResponses
from actors.broker.core.stats import BrokerStats
from actors.transport.connection import Connection
from actors.wire.codes import FLAG_RESPONSE, ResponseCode, SerializeType
from actors.wire.command import PREFIX, RemotingCommand, encode_command
from actors.wire.frame import decode_frames
from store.common.clock import Clock
from store.kernels import take_sends as k
from store.kernels.send_frames import SCANNED
from store.kernels.send_responses import HOSTS
from store.lite.lite_table import Arrays, LiteTable
from store.message.hosts import V4_BYTES
from store.message.record import MAX_V1_TOPIC_BYTES
from store.message.topic_config import TopicConfig
from store.message_store import MessageStore
from store.store_errors import StoreError

FRAMES_MAX: Final = 128
"""Frames of one call: the event loop checks its time budget between two calls."""
BODY_BYTES_MAX: Final = 16 * 1024
"""Longer bodies of single messages gain nothing: copying them takes most of the time."""
BATCH_MESSAGES_MAX: Final = 1024
RECORDS_BYTES: Final = 256 * 1024
RESPONSES_BYTES: Final = 128 * 1024
TOPICS: Final = Bound(
    "plain_send_topics", 4096, AtLimit.EVICT, "Topics that the compiled path knows; all are forgotten."
)
QUEUES: Final = Bound(
    "plain_send_queues", 65_536, AtLimit.EVICT, "Queues that the compiled path knows; all are forgotten."
)
_SLOTS: Final = 2 * TOPICS.limit  # a power of two, as hashes are masked, and at least half of them free
_RESERVED_BYTES: Final = 4
"""Compared of a reserved name: a message with another name that begins alike is left to `Sender`, too."""
_QUEUES_OF_TOPIC: Final = 4096
_ARGUMENTS: Final = Struct(f"={k.ARGUMENTS}q")

NO_LITE_TOPICS: Final = LiteTable().arrays

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


class LiteOffsets(Protocol):
    """The offsets of lite messages."""

    def add_topic(self, topic: str) -> int:
        """Return the number of a topic of type LITE in the table."""

    def table(self) -> Arrays | None:
        """Return the table of lite topics, from which sends take offsets; None while they are unknown."""

    def recount(self) -> None:
        """Take the offsets from the log again, because some that were taken are not in it."""


class _Texts(NamedTuple):
    """The constant parts of records and responses, and start and length of each (see `send_responses`)."""

    texts: U8
    pieces: I64


class PlainSends:
    """The compiled path of one broker for SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        admission: Admission,
        responses: SendResponses,
        acks: Acks,
        stats: BrokerStats,
        counters: RequestCounters,
        clock: Clock,
        added: bytes,
        reserved: Iterable[str],
        lite: LiteOffsets | None = None,
    ) -> None:
        """Create the object.

        Args:
            store: appends the records.
            topics: the definitions of the topics.
            admission: limits the sends.
            responses: builds the responses of which the compiled ones are copies.
            acks: delays the responses until the append is confirmed.
            stats: counts the messages.
            counters: counts the responses.
            clock: measures the time of the requests.
            added: the encoded properties that every message gets.
            reserved: names of properties with which a send is not plain.
            lite: assigns the offsets of lite messages; without it, none is plain.
        """
        self._lite = lite
        self._blocks = store.blocks
        self._store_settings = store.settings
        self._topics = topics
        self._admission = admission
        self._acks = acks
        self._stats = stats
        self._counters = counters
        self._clock = clock
        self._texts = _texts(responses, added)
        hosts = int(self._texts.pieces[HOSTS, 0])
        self._born_host = self._texts.texts.data[hosts : hosts + V4_BYTES]
        words = {int.from_bytes(name.encode()[:_RESERVED_BYTES], "big") for name in reserved}
        self._reserved = np.array(sorted(words), np.int64)
        self._state = np.zeros(k.STATE_FIELDS, np.int64)
        self._records = np.zeros(RECORDS_BYTES, np.uint8)
        self._responses = np.zeros(RESPONSES_BYTES, np.uint8)
        self._sent = np.zeros(FRAMES_MAX, np.int64)
        self._counts = np.zeros((FRAMES_MAX, k.COUNT_FIELDS), np.int64)
        self._positions = np.zeros(BATCH_MESSAGES_MAX, np.int64)
        self._fields = np.zeros((SCANNED, 2), np.int64)
        self._names = np.zeros(TOPICS.limit * MAX_V1_TOPIC_BYTES, np.uint8)
        self._table = np.zeros((_SLOTS, k.TOPIC_FIELDS), np.int64)
        self._queues = np.zeros(QUEUES.limit, np.int64)
        self._buffer: tuple[bytearray, U8] = (bytearray(), np.zeros(0, np.uint8))
        self.taken = 0
        """Number of requests handled since the start."""
        self._forget()

    @staticmethod
    def may_be_used(
        settings: BrokerSettings, identity: BrokerIdentity, interceptors: Iterable[SendInterceptor]
    ) -> bool:
        """Return True if no send needs a decision that compiled code cannot make."""
        return (
            settings.compiled_turn
            and not settings.authentication_enabled
            and not settings.store.append_property_crc
            and len(identity.host.packed) == V4_BYTES
            and all(each.property_names is not None for each in interceptors)
        )

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (TOPICS.use(lambda: len(self._slot_of)), QUEUES.use(lambda: self._queues_end))

    def learn(self, topic: TopicConfig, queue_id: int) -> None:
        """Add a queue to which `Sender` has appended a message without changing its topic."""
        if self._is_outdated:
            self._forget()
        name, count = topic.topic_name, max(topic.write_queue_nums, topic.read_queue_nums)
        slot = self._slot_of.get(name)
        if slot is None:
            encoded, is_lite = name.encode(), is_lite_topic(topic)
            if (
                name.startswith("%")
                or topic.order
                or (is_lite and self._lite is None)
                or len(encoded) > MAX_V1_TOPIC_BYTES
                or count > _QUEUES_OF_TOPIC
            ):
                return
            if len(self._slot_of) >= TOPICS.limit or self._queues_end + count > QUEUES.limit:
                self._forget()
            parent = self._lite.add_topic(name) if is_lite and self._lite is not None else -1
            self._has_lite |= is_lite
            slot = self._slot_of[name] = self._add(encoded, count, parent)
            self._name_of[slot] = name
        index = self._blocks.index_of(name, queue_id)
        self._queues[self._table[slot, k.QUEUES_AT] + queue_id] = index
        self._queue_of[index] = (name, queue_id)

    def knows(self, topic: str, queue_id: int) -> bool:
        """Return True if messages to the queue may be plain, as far as `learn` was called for it."""
        slot = self._slot_of.get(topic)
        return slot is not None and self._queues[self._table[slot, k.QUEUES_AT] + queue_id] >= 0

    def take(self, connection: Connection, data: bytearray, at: int, end: int) -> int:
        """Handle the plain sends at the front of `data[at:end]`; return the position after the last one.

        The responses are sent when the messages are confirmed.
        """
        frames_max = min(self._admission.plain_sends_max(connection), FRAMES_MAX)
        if frames_max <= 0 or len(connection.peer_bytes) != V4_BYTES:
            return at
        if self._is_outdated:
            self._forget()
            return at  # `Sender` handles this send by the new definitions, and teaches its queue again
        room = self._blocks.begin()
        table = self._lite.table() if self._has_lite and self._lite is not None else NO_LITE_TOPICS
        if room is None or table is None:
            return at
        if self._buffer[0] is not data:
            self._buffer = (data, np.frombuffer(data, np.uint8))
        state, texts, responses = self._state, self._texts, self._responses
        self._born_host[:] = connection.peer_bytes
        max_message_bytes = self._store_settings.max_message_bytes
        _ARGUMENTS.pack_into(
            state.data, 0, at, end, frames_max, min(room.size_bytes, RECORDS_BYTES), RESPONSES_BYTES,
            room.position, room.timestamp_ms, min(BODY_BYTES_MAX, max_message_bytes), max_message_bytes,
            _SLOTS - 1,
        )  # fmt: skip
        began_ns = self._clock.monotonic_ns()
        count = k.take_sends(
            self._buffer[1], state, self._table, self._names, self._queues, self._blocks.assigned_offsets,
            table, texts.pieces, texts.texts, self._reserved, self._records, responses, self._sent,
            self._counts, self._positions, self._fields,
        )  # fmt: skip
        if not count:
            return at
        found = state.tolist()
        after, records_bytes, pending = found[k.AT], found[k.RECORDS_BYTES], count - found[k.ONEWAY]
        # A copy: further calls overwrite the array before these messages are confirmed.
        frames = responses.data[: found[k.RESPONSES_BYTES]].tobytes()
        block = _Block(self, connection, frames, found[k.CODE], count, pending, began_ns)
        self.taken += count
        connection.add_pending(pending)
        awaited = self._blocks.awaited
        is_awaited = bool(awaited) and any(
            queue in awaited or queue[0] in awaited
            for queue in (self._queue_of[index] for index in set(self._sent[:count].tolist()))
        )
        try:
            self._blocks.append(room.position, self._records[:records_bytes].data, is_awaited=is_awaited)
        except StoreError as error:
            if self._has_lite and self._lite is not None:
                self._lite.recount()
            block(error)
        else:
            self._count_messages(found[k.TOPICS])
            self._acks.when_confirmed(room.position + records_bytes, block, count)
        return after

    def _count_messages(self, topics: int) -> None:
        for slot, calls, messages, size_bytes, small, medium in self._counts[:topics].tolist():
            by_size = (small, medium, messages - small - medium)
            self._stats.put(self._name_of[slot], messages, size_bytes, calls, by_size=by_size)

    def answered(self, request_code: int, code: int, count: int, oneway: int, began_ns: int) -> None:
        """Count the responses of a block; `oneway` of its `count` requests got none."""
        duration_ns = self._clock.monotonic_ns() - began_ns
        for responses, is_oneway in ((count - oneway, False), (oneway, True)):
            if responses:
                self._counters.add((request_code, code, False, is_oneway), responses, duration_ns)

    @property
    def _is_outdated(self) -> bool:
        topics = self._topics
        return (
            self._version is not topics.table.data_version
            or topics.is_closed_to_senders
            or self._blocks_version != self._blocks.version
        )

    def _forget(self) -> None:
        """Forget all topics, because a definition has changed or the tables are full."""
        self._version = self._topics.table.data_version
        self._blocks_version = self._blocks.version
        self._table[:, k.NAME_BYTES] = -1
        self._names_end = self._queues_end = 0
        self._has_lite = False
        self._slot_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._queue_of: dict[int, tuple[str, int]] = {}

    def _add(self, name: bytes, queues: int, parent: int) -> int:
        at, self._names_end = self._names_end, self._names_end + len(name)
        self._names[at : self._names_end] = np.frombuffer(name, np.uint8)
        slot = k.hash_name(self._names, at, len(name)) & (_SLOTS - 1)
        while self._table[slot, k.NAME_BYTES] >= 0:
            slot = (slot + 1) & (_SLOTS - 1)
        self._table[slot] = (at, len(name), queues, self._queues_end, parent)
        self._queues[self._queues_end : self._queues_end + queues] = -1
        self._queues_end += queues
        return int(slot)


class _Block(PendingAck):
    """The responses to the sends of one call, with the code SUCCESS."""

    __slots__ = ("_began_ns", "_connection", "_count", "_frames", "_pending", "_request_code", "_sends")

    def __init__(
        self,
        sends: PlainSends,
        connection: Connection,
        frames: bytes,
        request_code: int,
        count: int,
        pending: int,
        began_ns: int,
    ) -> None:
        super().__init__()
        self._sends = sends
        self._connection = connection
        self._frames = frames
        self._request_code = request_code
        self._count = count
        self._pending = pending
        self._began_ns = began_ns

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        """Send the responses; all get this code and remark."""
        connection, frames = self._connection, self._frames
        self._frames = b""
        if code == ResponseCode.SUCCESS:
            connection.send_frames(frames)
        else:
            for command in decode_frames(frames):
                command.code, command.remark, command.flag = code, remark, FLAG_RESPONSE
                connection.send(command)
        connection.add_pending(-self._pending)
        oneway = self._count - self._pending
        self._sends.answered(self._request_code, code, self._count, oneway, self._began_ns)


def _texts(responses: SendResponses, added: bytes) -> _Texts:
    """Cut the constant parts out of responses that the ordinary encoder makes."""
    opaque, marks = 1_234_567_890, ("<message-offset>", "<queue>", "<offset>", "<key>")
    ext = responses.fields(responses.id_prefix + marks[0], *marks[1:])
    command = RemotingCommand.response(ext=ext | responses.added_fields)
    command.opaque, command.flag = opaque, FLAG_RESPONSE
    values = [mark.encode() for mark in marks]
    json = _around(encode_command(command), (*values, str(opaque).encode()))
    command.serialize_type = SerializeType.ROCKETMQ
    binary = _around(encode_command(command), (opaque.to_bytes(4, "big"), *values))
    hosts = bytes(V4_BYTES) + bytes.fromhex(responses.id_prefix)
    parts = (added, hosts, *json, *binary)
    ends = np.cumsum([len(part) for part in parts])
    lengths = np.array([len(part) for part in parts])
    texts = np.frombuffer(bytearray().join(parts), np.uint8).copy()
    return _Texts(texts, np.ascontiguousarray(np.stack((ends - lengths, lengths), axis=1), np.int64))


def _around(frame: bytes, values: Sequence[bytes]) -> Iterable[bytes]:
    rest = frame[PREFIX.size :]
    for value in values:
        part, rest = rest.split(value, 1)
        yield part
    yield rest
