"""What another program on the same Ray cluster may ask of a broker, msgpack in and msgpack out (design §4,
actor handles).

Requests are maps with `v` = 1; replies are `{v: 1, code, remark, …}` with RocketMQ's response codes (0 is
success; the other fields stand only then). An unknown `v`, a key that does not belong or a value of another
type is INVALID_PARAMETER.

append    topic, batch; [queue = -1: the broker chooses, format = "rocketmq" | "arrow"]
          batch: RocketMQ's own batch encoding, or an Arrow IPC stream with a column `body` and, if wanted,
          `tags`, `keys` (strings) and `properties` (map of strings)
          → queue, offset (of the first), count, ids (offset message ids), store_timestamp
read      topic, queue, offset; [max_messages = 32, max_bytes = 256 KiB, wait_ms = 0, tags = "*"]
          → status (FOUND, NO_NEW_MESSAGE, NO_MATCHED_MESSAGE or OFFSET_MOVED), next_offset, min_offset,
            max_offset, count, records (back to back)
offsets   topic; [group] → queues: a list of [queue, min, max, committed by the group or -1]
describe  (nothing) → who and where the broker is, and how far its store has come
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from typing import Any

import msgpack

from actors.broker.group.offsets import NO_OFFSET
from actors.broker.group.subscriptions import tags_codes_of
from actors.broker.parts import BrokerParts
from actors.broker.reading.pull import Puller, PullOutcome, PullRequest
from actors.broker.reading.reads import TRIES_OF_A_PULL
from actors.broker.sending.acks import PendingAck
from actors.broker.sending.send import Sender
from actors.broker.wire import PULL_RECORDS_BYTES_MAX, SplitsBody
from actors.remoting.codes import ResponseCode
from actors.remoting.errors import Refused
from store.clock import NS_PER_MS
from store.errors import MessageIllegal, StoreError
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.properties import MessageConst

VERSION = 1
MAX_WAIT_MS = 20_000

_REQUIRED = object()
_APPEND: Mapping[str, tuple[type, object]] = {
    "topic": (str, _REQUIRED),
    "batch": (bytes, _REQUIRED),
    "queue": (int, -1),
    "format": (str, "rocketmq"),
}
_READ: Mapping[str, tuple[type, object]] = {
    "topic": (str, _REQUIRED),
    "queue": (int, _REQUIRED),
    "offset": (int, _REQUIRED),
    "max_messages": (int, 32),
    "max_bytes": (int, 256 * 1024),
    "wait_ms": (int, 0),
    "tags": (str, "*"),
}
_OFFSETS: Mapping[str, tuple[type, object]] = {"topic": (str, _REQUIRED), "group": (str, "")}

_STATUS = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MESSAGE",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MESSAGE",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_MOVED",
}


def parse(request: bytes, fields: Mapping[str, tuple[type, object]]) -> dict[str, Any]:
    """The fields of a request, defaults filled in. Raises `Refused` naming what is wrong."""
    try:
        given = msgpack.unpackb(request)
    except (ValueError, msgpack.UnpackException) as error:
        raise _invalid(f"the request is not msgpack: {error}") from error
    if not isinstance(given, dict):
        raise _invalid(f"the request is a {type(given).__name__}, not a map")
    version = given.pop("v", None)
    if version != VERSION or isinstance(version, bool):
        raise _invalid(f"v is {version!r}: this broker speaks v {VERSION}")
    unknown = [repr(key) for key in given if key not in fields]
    if unknown:
        raise _invalid(f"unknown key {', '.join(unknown)}: known are {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, (kind, default) in fields.items():
        value = given.get(name, default)
        if value is _REQUIRED:
            raise _invalid(f"{name} is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _invalid(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
        values[name] = value
    return values


def _invalid(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)


def reply(fields: Mapping[str, object]) -> bytes:
    """A successful reply."""
    return bytes(msgpack.packb({"v": VERSION, "code": 0, "remark": "", **fields}))


def refusal(error: Refused | MessageIllegal | StoreError) -> bytes:
    """A reply that says what went wrong."""
    if isinstance(error, Refused):
        code, remark = error.code, error.remark
    elif isinstance(error, MessageIllegal):
        code, remark = int(ResponseCode.MESSAGE_ILLEGAL), error.remark
    else:
        code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
    return bytes(msgpack.packb({"v": VERSION, "code": int(code), "remark": remark}))


class HandleApi:
    """The methods behind a broker's actor handle. Runs on the loop that owns the store."""

    def __init__(
        self,
        parts: BrokerParts,
        sender: Sender,
        puller: Puller,
        splits: Callable[[str], Awaitable[SplitsBody]],
        describe: Callable[[], Mapping[str, object]],
        next_uniq_key: Callable[[], str],
    ) -> None:
        self._sender = sender
        self._puller = puller
        self._reads = parts.reads
        self._held = parts.held
        self._offsets = parts.offsets
        self._splits = splits
        self._describe = describe
        self._next_uniq_key = next_uniq_key
        self._request_tick = parts.request_tick
        self._clock = parts.clock

    async def append(self, request: bytes) -> bytes:
        """Store a batch, all of it or nothing; answers when the store's promise covers it."""
        try:
            fields = parse(request, _APPEND)
            batch = fields["batch"]
            if fields["format"] == "arrow":
                # In a thread: the first one imports pyarrow, which takes a second.
                batch = await asyncio.to_thread(batch_of_arrow, fields["topic"], batch, self._next_uniq_key)
            elif fields["format"] != "rocketmq":
                raise _invalid(f"format is {fields['format']!r}: it may be rocketmq or arrow")
            stored = await self._append(fields["topic"], fields["queue"], batch)
        except (Refused, MessageIllegal, StoreError) as error:
            return refusal(error)
        return reply(stored)

    async def read(self, request: bytes) -> bytes:
        """Read a queue from an offset on; waits for the first new message if `wait_ms` allows it."""
        try:
            fields = parse(request, _READ)
            pull = PullRequest(
                fields["topic"],
                fields["queue"],
                fields["offset"],
                max(fields["max_messages"], 1),
                max(min(fields["max_bytes"], PULL_RECORDS_BYTES_MAX), 1),
                tags_codes_of(fields["tags"]),
                min(fields["wait_ms"], MAX_WAIT_MS),
            )
            outcome = await self._read_now(pull)
            if outcome.code == ResponseCode.PULL_NOT_FOUND and pull.wait_ms > 0:
                await self._wait(pull)
                outcome = await self._read_now(pull)
        except (Refused, MessageIllegal, StoreError) as error:
            return refusal(error)
        return reply(_read_reply(outcome))

    async def offsets(self, request: bytes) -> bytes:
        """The ends of a topic's queues, and what a group has committed."""
        try:
            fields = parse(request, _OFFSETS)
            rows = []
            for queue in (await self._splits(fields["topic"])).queues:
                committed = self._offsets.query(fields["group"], fields["topic"], queue.queue_id)
                rows.append(
                    [
                        queue.queue_id,
                        queue.min_offset,
                        queue.max_offset,
                        NO_OFFSET if committed is None else committed,
                    ]
                )
        except (Refused, StoreError) as error:
            return refusal(error)
        return reply({"queues": rows})

    def describe(self) -> bytes:
        """Who and where the broker is, and how far its store has come."""
        return reply(self._describe())

    async def _read_now(self, pull: PullRequest) -> PullOutcome:
        self._puller.catch_up()
        return await self._reads.settled(lambda: self._puller.read(pull), TRIES_OF_A_PULL)

    async def _append(self, topic: str, queue: int, batch: bytes) -> dict[str, object]:
        ack = _FutureAck()
        stored = self._sender.append_batch(topic, queue, batch, ack)
        self._request_tick()
        code, remark = await ack.settled
        if code != ResponseCode.SUCCESS:
            raise Refused(code, remark or "")
        return {
            "queue": stored.queue_id,
            "offset": stored.result.queue_offset,
            "count": stored.result.count,
            "ids": stored.message_ids,
            "store_timestamp": stored.result.store_timestamp,
        }

    async def _wait(self, pull: PullRequest) -> None:
        woken = asyncio.Event()
        pull.owner = owner = object()
        pull.deadline_ns = self._clock.monotonic_ns() + pull.wait_ms * NS_PER_MS
        pull.on_resume = lambda _: woken.set()
        self._held.hold(pull)
        try:
            await woken.wait()
        finally:
            self._held.forget(owner)


class _FutureAck(PendingAck):
    """The answer to an append, for a coroutine that waits for it."""

    __slots__ = ("settled",)

    def __init__(self) -> None:
        super().__init__()
        self.settled: asyncio.Future[tuple[ResponseCode, str | None]] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        if not self.settled.done():
            self.settled.set_result((code, remark))


def _read_reply(outcome: PullOutcome) -> dict[str, object]:
    found = outcome.found
    return {
        "status": _STATUS[outcome.code],
        "next_offset": outcome.next_offset,
        "min_offset": found.min_offset,
        "max_offset": found.max_offset,
        "count": found.message_count,
        "records": b"".join(found.slices),
    }


def batch_of_arrow(topic: str, stream: bytes, next_uniq_key: Callable[[], str]) -> bytes:
    """RocketMQ's batch encoding of an Arrow IPC stream. Raises `Refused` when it is none or lacks a body."""
    import pyarrow as pa  # only who sends Arrow pays for it

    try:
        table = pa.ipc.open_stream(BytesIO(stream)).read_all()
    except pa.ArrowInvalid as error:
        raise _invalid(f"the batch is no Arrow IPC stream: {error}") from error
    unknown = set(table.column_names) - {"body", "tags", "keys", "properties"}
    if unknown or "body" not in table.column_names:
        raise _invalid(
            f"columns {table.column_names}: `body` is needed; `tags`, `keys`, `properties` may be there"
        )
    messages = []
    for row in table.to_pylist():
        body = row["body"]
        if not isinstance(body, bytes | str):
            raise _invalid(f"a body is a {type(body).__name__}, not binary or a string")
        message = Message(
            topic,
            body.encode() if isinstance(body, str) else body,
            row.get("tags"),
            row.get("keys"),
            dict(row.get("properties") or ()),
        )
        message.properties.setdefault(MessageConst.UNIQ_KEY, next_uniq_key())
        messages.append(message)
    return encode_batch(messages)
