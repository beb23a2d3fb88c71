"""HandleApi: implements the methods of a broker's actor handle; requests and replies are msgpack (design §5).

Each call becomes one or more requests of the wire protocol, sent over an in-process connection. They pass the
same chain as requests from sockets, and a refusal has the same code and remark.

    append    APPEND_BATCH; an Arrow stream is first converted into RocketMQ's batch encoding
    read      PULL_RECORDS without a group
    offsets   DESCRIBE_SPLITS, then QUERY_CONSUMER_OFFSET for each queue if a group is given
    describe  DESCRIBE_BROKER

A request is a map with `v` = 1. A reply is `{v: 1, code, remark, …}` with RocketMQ's response codes; it has
further fields only if the code is 0 (success). An unknown `v` or key, a value of a wrong type and an integer
of more than 63 bits are refused with INVALID_PARAMETER.

If the broker requires authentication, a request also has `access_key` and `secret_key`.

append    topic, batch; [queue = -1: the broker chooses, format = "rocketmq" | "arrow"]
          batch: RocketMQ's own batch encoding, or an Arrow IPC stream with a column `body` and, optionally,
          `tags`, `keys` (strings) and `properties` (map of strings)
          → queue, offset (of the first message), count, ids (offset message ids), store_timestamp
read      topic, queue, offset; [max_messages = 32, max_bytes = 256 KiB, wait_ms = 0, tags = "*"]
          → status (FOUND, NO_NEW_MESSAGE, NO_MATCHED_MESSAGE or OFFSET_MOVED), next_offset, min_offset,
            max_offset, count, records (encoded, one after another)
offsets   topic; [group] → queues: a list of [queue, min, max, committed offset of the group or -1]
describe  (no fields) → the fields of DESCRIBE_BROKER
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from io import BytesIO
from typing import Any

import msgpack
import orjson

from actors.broker.metadata.consumer_offsets import NO_OFFSET
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.header import I64_MAX, Header
from actors.remoting.headers import (
    AppendBatchHeader,
    AppendBatchResponse,
    OffsetResponse,
    PullRecordsHeader,
    PullRecordsResponse,
    QueryConsumerOffsetHeader,
    TopicHeader,
)
from actors.remoting.in_process import InProcessConnection
from actors.remoting.raymq_requests import SplitsBody
from actors.remoting.remoting_errors import Closed, Refused
from actors.remoting.server import RemotingServer
from actors.signing import Credentials, CredentialsInvalid, Signer
from store.clock import Clock
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid

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

_KEYS: Mapping[str, tuple[type, object]] = {"access_key": (str, ""), "secret_key": (str, "")}

_STATUS: Mapping[int, str] = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MESSAGE",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MESSAGE",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_MOVED",
}


def parse(request: bytes, fields: Mapping[str, tuple[type, object]]) -> dict[str, Any]:
    """Decode a request; `fields` maps each name to its type and default. Raises Refused if it is invalid."""
    try:
        given = msgpack.unpackb(request)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise _invalid(f"the request is not valid msgpack: {error}") from error
    if not isinstance(given, dict):
        raise _invalid(f"the request is a {type(given).__name__}, not a map")
    version = given.pop("v", None)
    if version != VERSION or isinstance(version, bool):
        raise _invalid(f"v is {version!r}: this broker supports v {VERSION}")
    unknown = [repr(key) for key in given if key not in fields and key not in _KEYS]
    if unknown:
        raise _invalid(f"unknown key {', '.join(unknown)}: the keys are {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, (kind, default) in {**fields, **_KEYS}.items():
        value = given.get(name, default)
        if value is _REQUIRED:
            raise _invalid(f"{name} is missing: it is required")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _invalid(f"{name} is a {type(value).__name__}, not a {kind.__name__}")
        if isinstance(value, int) and abs(value) > I64_MAX:
            raise _invalid(f"{name} is {value}: it has more than 63 bits")
        values[name] = value
    return values


def _invalid(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)


def reply(fields: Mapping[str, object]) -> bytes:
    """Encode a reply with code 0 and these fields."""
    return bytes(msgpack.packb({"v": VERSION, "code": 0, "remark": "", **fields}))


def refusal(error: Refused) -> bytes:
    """Encode a reply with the code and remark of an error."""
    return bytes(msgpack.packb({"v": VERSION, "code": error.code, "remark": error.remark}))


class HandleApi:
    """The methods of a broker's actor handle. They run on the event loop that owns the store."""

    def __init__(
        self,
        server: RemotingServer,
        store_host: bytes,
        next_uniq_key: Callable[[], str],
        inner: Signer | None,
        clock: Clock,
    ) -> None:
        """Open the in-process connections.

        Args:
            server: the broker's server.
            store_host: the broker's address, packed; the bornHost of appended messages.
            next_uniq_key: generates the UNIQ_KEY of a row of an Arrow stream.
            inner: signs `describe`, which has no request that could contain keys.
            clock: the time of signatures.
        """
        # One connection per method, so that waiting reads do not count as pending requests of the others.
        connect = server.connect_in_process
        self._for_append = connect("handle:append", store_host)
        self._for_read = connect("handle:read", store_host)
        self._for_offsets = connect("handle:offsets", store_host)
        self._for_describe = connect("handle:describe", store_host)
        self._next_uniq_key = next_uniq_key
        self._inner = inner
        self._clock = clock

    async def append(self, request: bytes) -> bytes:
        """Append a batch, all or nothing; reply when it is confirmed (flushed, under sync flush)."""
        try:
            fields = parse(request, _APPEND)
            batch = fields["batch"]
            if fields["format"] == "arrow":
                # In a thread, because the first call imports pyarrow, which takes a second.
                batch = await asyncio.to_thread(batch_of_arrow, fields["topic"], batch, self._next_uniq_key)
            elif fields["format"] != "rocketmq":
                raise _invalid(f"format is {fields['format']!r}: it must be rocketmq or arrow")
            header = AppendBatchHeader(fields["topic"], fields["queue"])
            command = self._command(RayMQRequestCode.APPEND_BATCH, header, _signer(fields), batch)
            response = await _request(self._for_append, command)
        except Refused as error:
            return refusal(error)
        stored = AppendBatchResponse.from_ext(response.ext)
        return reply(
            {
                "queue": stored.queue_id,
                "offset": stored.queue_offset,
                "count": stored.count,
                "ids": bytes(response.body).decode().split(","),
                "store_timestamp": stored.store_timestamp,
            }
        )

    async def read(self, request: bytes) -> bytes:
        """Read records from an offset on; wait up to `wait_ms` if there is no new message."""
        try:
            fields = parse(request, _READ)
            header = PullRecordsHeader(
                fields["topic"],
                fields["queue"],
                fields["offset"],
                max_messages=fields["max_messages"],
                max_bytes=fields["max_bytes"],
                wait_ms=min(fields["wait_ms"], MAX_WAIT_MS),
                subscription=fields["tags"],
            )
            command = self._command(RayMQRequestCode.PULL_RECORDS, header, _signer(fields))
            response = await _request(self._for_read, command, _STATUS)
        except Refused as error:
            return refusal(error)
        found = PullRecordsResponse.from_ext(response.ext)
        return reply(
            {
                "status": _STATUS[response.code],
                "next_offset": found.next_begin_offset,
                "min_offset": found.min_offset,
                "max_offset": found.max_offset,
                "count": found.count,
                "records": response.body,
            }
        )

    async def offsets(self, request: bytes) -> bytes:
        """Return the min and max offset of each queue of a topic, and a group's committed offsets."""
        try:
            fields = parse(request, _OFFSETS)
            topic, group, signer = fields["topic"], fields["group"], _signer(fields)
            command = self._command(RayMQRequestCode.DESCRIBE_SPLITS, TopicHeader(topic), signer)
            splits = SplitsBody.decode((await _request(self._for_offsets, command)).body)
            rows = [
                [
                    queue.queue_id,
                    queue.min_offset,
                    queue.max_offset,
                    await self._committed(group, topic, queue.queue_id, signer) if group else NO_OFFSET,
                ]
                for queue in splits.queues
            ]
        except Refused as error:
            return refusal(error)
        return reply({"queues": rows})

    async def describe(self) -> bytes:
        """Return the fields of DESCRIBE_BROKER."""
        try:
            command = self._command(RayMQRequestCode.DESCRIBE_BROKER, None, self._inner)
            response = await _request(self._for_describe, command)
        except Refused as error:
            return refusal(error)
        return reply(orjson.loads(response.body))

    async def _committed(self, group: str, topic: str, queue_id: int, signer: Signer | None) -> int:
        await asyncio.sleep(0)  # lets other requests run: a topic may have thousands of queues
        header = QueryConsumerOffsetHeader(group, topic, queue_id, set_zero_if_not_found=False)
        codes = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        command = self._command(RequestCode.QUERY_CONSUMER_OFFSET, header, signer)
        response = await _request(self._for_offsets, command, codes)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return NO_OFFSET
        return OffsetResponse.from_ext(response.ext).offset

    def _command(
        self, code: int, header: Header | None, signer: Signer | None, body: bytes = b""
    ) -> RemotingCommand:
        command = RemotingCommand(code, header.to_ext() if header else {}, body)
        if signer is not None:
            signer.sign(command, self._clock.wall_ms())
        return command


def _signer(fields: Mapping[str, Any]) -> Signer | None:
    """Return the signer of a request's keys, or None without keys. Raises Refused if only one is given."""
    if not fields["access_key"] and not fields["secret_key"]:
        return None
    try:
        return Signer(Credentials(fields["access_key"], fields["secret_key"]))
    except CredentialsInvalid as error:
        raise _invalid(str(error)) from None


async def _request(
    connection: InProcessConnection,
    command: RemotingCommand,
    codes: Container[int] = (ResponseCode.SUCCESS,),
) -> RemotingCommand:
    """Send one request and return its response. Raises Refused if its code is not one of `codes`."""
    try:
        response = await connection.request(command)
    except Closed as error:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, error.reason) from error
    if response.code not in codes:
        raise Refused(response.code, response.remark or "")
    return response


def batch_of_arrow(topic: str, stream: bytes, next_uniq_key: Callable[[], str]) -> bytes:
    """Convert an Arrow IPC stream into RocketMQ's batch encoding.

    Raises Refused if the stream, its columns or a value of it is invalid.
    """
    import pyarrow as pa  # here, because it takes a second

    try:
        table = pa.ipc.open_stream(BytesIO(stream)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise _invalid(f"the batch is not a valid Arrow IPC stream: {error}") from error
    unknown = set(table.column_names) - {"body", "tags", "keys", "properties"}
    if unknown or "body" not in table.column_names:
        raise _invalid(
            f"columns {table.column_names}: `body` is required; `tags`, `keys`, `properties` are optional"
        )
    try:
        return encode_batch([_message_of_row(topic, row, next_uniq_key) for row in table.to_pylist()])
    except MessageInvalid as error:
        raise Refused(ResponseCode.MESSAGE_ILLEGAL, error.remark) from error
    except (TypeError, ValueError) as error:
        raise _invalid(f"the Arrow batch contains a value of a wrong type: {error}") from error


def _message_of_row(topic: str, row: Mapping[str, Any], next_uniq_key: Callable[[], str]) -> Message:
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
    return message
