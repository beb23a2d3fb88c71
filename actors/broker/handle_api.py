"""HandleApi: implements the methods of a broker's actor handle; requests and replies are msgpack.

See docs/design.md#actor-handles.

Each call becomes one or more requests of the wire protocol, sent over an in-process connection. They pass the
same chain as requests from sockets, and a refusal has the same code and remark.

    append    APPEND_BATCH; an Arrow stream is first converted into RocketMQ's batch encoding
    read      PULL_RECORDS without a group
    offsets   DESCRIBE_SPLITS, then QUERY_CONSUMER_OFFSET for each queue if a group is given
    describe  DESCRIBE_BROKER

A request is a map with `v` = 1. A reply is `{v: 1, code, remark, …}` with RocketMQ's response codes; it has
further fields only if the code is 0 (success). An unknown `v` or key, a value of a wrong type and an integer
of more than 63 bits are refused with INVALID_PARAMETER.

If the broker requires authentication, a request also has `access_key` and `secret_key`. They are checked
before the other fields.

append    topic, batch; [queue = -1: the broker chooses, format = "rocketmq" | "arrow"]
          batch: RocketMQ's own batch encoding, or an Arrow IPC stream with a column `body` and, optionally,
          `tags`, `keys` (strings) and `properties` (map of strings); see `core.sending.arrow_batches`
          → queue, offset (of the first message), count, ids (offset message ids), store_timestamp
read      topic, queue, offset; [max_messages = 32, max_bytes = 256 KiB, wait_ms = 0, tags = "*", replica]
          → status (FOUND, NO_NEW_MESSAGE, NO_MATCHED_MESSAGE or OFFSET_MOVED), next_offset, min_offset,
            max_offset, count, records (encoded, one after another)
offsets   topic; [group, replica] → queues: a list of [queue, min, max, committed offset of the group or -1]
describe  (no fields; without keys the request may be empty) → the fields of DESCRIBE_BROKER

A slave, which may lack the newest messages, serves `read` and `offsets` only with replica = "any"; the
default is "master". It serves `read` only if its setting `slave_read_enable` is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgpack
import orjson

from actors.broker.core.metadata.consumer_offsets import NO_OFFSET
from actors.broker.core.role import BrokerRole, Role
from actors.broker.core.sending.arrow_batches import batch_of_arrow
from actors.transport.chain import Step
from actors.transport.in_process import InProcessConnection
from actors.transport.request import REMARK_CHARS_MAX, RequestContext
from actors.transport.server import RemotingServer
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import MAX_FRAME_BYTES, RemotingCommand
from actors.wire.header import I64_MAX, Header
from actors.wire.headers import (
    AppendBatchHeader,
    AppendBatchResponse,
    OffsetResponse,
    PullRecordsHeader,
    PullRecordsResponse,
    QueryConsumerOffsetHeader,
    TopicHeader,
)
from actors.wire.raymq_requests import SplitsBody
from actors.wire.remoting_errors import Closed, Refused, without_paths
from actors.wire.signing import Credentials, CredentialsInvalid, Signer
from store.common.clock import Clock

VERSION = 1
REQUEST_BYTES_MAX = MAX_FRAME_BYTES
_ENTRIES_MAX = 16
_TEXT_BYTES_MAX = 64 * 1024
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
    "replica": (str, "master"),
}
_OFFSETS: Mapping[str, tuple[type, object]] = {
    "topic": (str, _REQUIRED),
    "group": (str, ""),
    "replica": (str, "master"),
}

_KEYS: Mapping[str, tuple[type, object]] = {"access_key": (str, ""), "secret_key": (str, "")}

_STATUS: Mapping[int, str] = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MESSAGE",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MESSAGE",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_MOVED",
}


def unpack(request: bytes) -> dict[Any, Any]:
    """Return the map of a request, whose keys and values are not checked. Raises Refused if it is invalid."""
    try:
        if len(request) > REQUEST_BYTES_MAX:
            raise _invalid(f"a request of {len(request):,} bytes exceeds {REQUEST_BYTES_MAX:,}: send less")
        given = msgpack.unpackb(
            request,
            max_map_len=_ENTRIES_MAX,
            max_array_len=_ENTRIES_MAX,
            max_str_len=_TEXT_BYTES_MAX,
            max_ext_len=0,
        )
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise _invalid(f"the request is not valid msgpack: {str(error)[:200]}") from error
    if not isinstance(given, dict):
        raise _invalid(f"the request is a {type(given).__name__}, not a map")
    version = given.pop("v", None)
    if version != VERSION or isinstance(version, bool):
        raise _invalid(f"v is {repr(version)[:100]}: this broker supports v {VERSION}")
    return given


def parse_fields(given: Mapping[Any, Any], fields: Mapping[str, tuple[type, object]]) -> dict[str, Any]:
    """Check the entries of a request; `fields` maps each name to its type and default.

    Raises Refused if one is missing, unknown or of another type.
    """
    unknown = [repr(key)[:100] for key in given if key not in fields and key not in _KEYS]
    if unknown:
        raise _invalid(f"unknown key {', '.join(unknown)}: the keys are {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, (kind, default) in fields.items():
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


def refusal_reply(error: Refused) -> bytes:
    """Encode a reply with the code and remark of an error."""
    remark = without_paths(error.remark[:REMARK_CHARS_MAX])
    return bytes(msgpack.packb({"v": VERSION, "code": error.code, "remark": remark}))


class HandleApi:
    """The methods of a broker's actor handle. They run on the event loop that owns the store."""

    def __init__(
        self,
        server: RemotingServer,
        store_host: bytes,
        next_uniq_key: Callable[[], str],
        steps: Sequence[Step],
        role: BrokerRole,
        clock: Clock,
    ) -> None:
        """Open the in-process connections.

        Args:
            server: the broker's server.
            store_host: the broker's address, packed; the bornHost of appended messages.
            next_uniq_key: generates the UNIQ_KEY of a row of an Arrow stream.
            steps: authentication, then authorization; empty without access control.
            role: the role of the broker.
            clock: the time of signatures.
        """
        # One connection per method, so that waiting reads do not count as pending requests of the others.
        connect = server.connect_in_process
        self._for_append = connect("handle:append", store_host)
        self._for_read = connect("handle:read", store_host)
        self._for_offsets = connect("handle:offsets", store_host)
        self._for_describe = connect("handle:describe", store_host)
        self._next_uniq_key = next_uniq_key
        self._rows = server.chain.table.rows
        self._steps = steps
        self._role = role
        self._clock = clock

    async def append(self, request: bytes) -> bytes:
        """Append a batch, all or nothing; reply when it is confirmed (flushed, under sync flush)."""
        try:
            code, connection = RayMQRequestCode.APPEND_BATCH, self._for_append
            given, signer = await self._open(connection, code, request)
            fields = parse_fields(given, _APPEND)
            batch, header = fields["batch"], AppendBatchHeader(fields["topic"], fields["queue"])
            await self._check(connection, self._command(code, header, signer), header, self._steps)
            if fields["format"] == "arrow":
                # In a thread, because the first call imports pyarrow, which takes a second.
                batch = await asyncio.to_thread(batch_of_arrow, fields["topic"], batch, self._next_uniq_key)
            elif fields["format"] != "rocketmq":
                raise _invalid(f"format is {fields['format']!r}: it must be rocketmq or arrow")
            response = await _request(connection, self._command(code, header, signer, batch))
        except Refused as error:
            return refusal_reply(error)
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
            code, connection = RayMQRequestCode.PULL_RECORDS, self._for_read
            given, signer = await self._open(connection, code, request)
            fields = parse_fields(given, _READ)
            self._check_replica(fields["replica"])
            header = PullRecordsHeader(
                fields["topic"],
                fields["queue"],
                fields["offset"],
                max_messages=fields["max_messages"],
                max_bytes=fields["max_bytes"],
                wait_ms=min(fields["wait_ms"], MAX_WAIT_MS),
                subscription=fields["tags"],
            )
            response = await _request(connection, self._command(code, header, signer), _STATUS)
        except Refused as error:
            return refusal_reply(error)
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
            code = RayMQRequestCode.DESCRIBE_SPLITS
            given, signer = await self._open(self._for_offsets, code, request)
            fields = parse_fields(given, _OFFSETS)
            self._check_replica(fields["replica"])
            topic, group = fields["topic"], fields["group"]
            command = self._command(code, TopicHeader(topic), signer)
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
            return refusal_reply(error)
        return reply({"queues": rows})

    async def describe(self, request: bytes = b"") -> bytes:
        """Return the fields of DESCRIBE_BROKER."""
        try:
            code, connection = RayMQRequestCode.DESCRIBE_BROKER, self._for_describe
            given, signer = await self._open(connection, code, request) if request else ({}, None)
            parse_fields(given, {})
            response = await _request(connection, self._command(code, None, signer))
        except Refused as error:
            return refusal_reply(error)
        return reply(orjson.loads(response.body))

    async def _open(
        self, connection: InProcessConnection, code: int, request: bytes
    ) -> tuple[dict[Any, Any], Signer | None]:
        """Return the entries of a request and the signer of its keys; None without keys.

        Raises Refused if the request is not a map, or, with access control, if the keys are wrong.
        """
        given = unpack(request)
        signer = _signer(parse_fields({key: given[key] for key in _KEYS if key in given}, _KEYS))
        await self._check(connection, self._command(code, None, signer), None, self._steps[:1])
        return given, signer

    async def _check(
        self,
        connection: InProcessConnection,
        command: RemotingCommand,
        header: Header | None,
        steps: Sequence[Step],
    ) -> None:
        """Run some steps of the chain for a request before its content is read. Raises Refused."""
        context = RequestContext(command, header, connection, self._rows[command.code], ())
        try:
            for step in steps:
                step(context)
        except Refused as error:
            await asyncio.sleep(error.delay_ms / 1000)
            raise

    def _check_replica(self, replica: str) -> None:
        if replica not in ("master", "any"):
            raise _invalid(f"replica is {replica[:100]!r}: it must be 'master' or 'any'")
        if replica == "master" and self._role.role is Role.SLAVE:
            raise Refused(
                ResponseCode.SLAVE_NOT_AVAILABLE,
                "this broker is a slave, which may lack the newest messages: call the actor of the master, or"
                " give replica = 'any'",
            )

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
