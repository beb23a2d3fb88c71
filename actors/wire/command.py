"""RemotingCommand: one request or response, and its header in both of RocketMQ's encodings.

A frame, big-endian:

    0       4                    8
    | total | type:8, length:24 | header | body |

`total` is the number of bytes after it, `length` that of the header. The header's `type` is 0 for JSON and 1
for ROCKETMQ, which is:

    0      2          3         5        9      13
    | code | language | version | opaque | flag | remarkLength:4, remark | extLength:4, entries |
    entry: | keyLength:2, key | valueLength:4, value |
"""

import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec
import orjson

from actors.wire.codes import FLAG_RESPONSE, VERSION_5_3_3, LanguageCode, SerializeType
from actors.wire.remoting_errors import ProtocolError

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview
else:
    Buffer = Any  # msgspec reads the annotations and does not support this union

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
PREFIX: Final = struct.Struct(">II")
LENGTH_BYTES: Final = 4
HEADER_LENGTH_MASK: Final = 0x00FF_FFFF

_FIXED: Final = struct.Struct(">hBhii")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">H")
_JSON: Final = int(SerializeType.JSON)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_ROCKETMQ_MARK: Final = _ROCKETMQ << 24
_I32Value = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
_LANGUAGE_NAMES: Final = {int(code): code.name for code in LanguageCode}


class RemotingCommand(msgspec.Struct, eq=False, gc=False, rename={"ext": "extFields"}):
    """One request or response.

    `ext` holds the header fields; all values are strings. The `body` of a long received frame is a writable
    memoryview of the frame's buffer. A command that is sent may have its body in `parts` instead, which are
    written one after another without being copied.
    """

    code: _I32Value
    ext: dict[str, str] = {}
    body: Buffer = b""
    remark: str | None = None
    flag: _I32Value = 0
    opaque: _I32Value = 0
    language: str = "PYTHON"
    version: _I32Value = VERSION_5_3_3
    serialize_type: int = _JSON
    parts: Sequence[Buffer] = ()

    @classmethod
    def response(
        cls,
        code: int = 0,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: Buffer = b"",
        parts: Sequence[Buffer] = (),
    ) -> Self:
        """Return a response. `RequestContext.reply` fills in the request's `opaque` and header encoding."""
        return cls(code, {} if ext is None else ext, body, remark, FLAG_RESPONSE, parts=parts)

    def json_header(self) -> bytes:
        """Return the header as JSON.

        The keys have the order of RocketMQ's encoder; absent fields are omitted.
        """
        fields: dict[str, object] = {"code": self.code}
        if self.ext:
            fields["extFields"] = self.ext
        fields["flag"] = self.flag
        fields["language"] = self.language
        fields["opaque"] = self.opaque
        if self.remark is not None:
            fields["remark"] = self.remark
        fields["serializeTypeCurrentRPC"] = "JSON"
        fields["version"] = self.version
        return orjson.dumps(fields)

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return self.flag & FLAG_RESPONSE != 0

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        size = len(self.body) + sum(map(len, self.parts))
        ext = {name: "…" if name == "Signature" else value for name, value in self.ext.items()}
        return f"RemotingCommand({kind} {self.code}, opaque={self.opaque}, ext={ext}, body of {size} bytes)"


class SharedResponse(RemotingCommand, eq=False, gc=False):
    """A response that is sent to many requests and differs only in `opaque`.

    Its JSON header is encoded once.
    """

    around_opaque: tuple[bytes, bytes] | None = None

    def json_header(self) -> bytes:
        """Return the header as JSON: the cached encoding with the current `opaque` inserted."""
        if self.around_opaque is None:
            # Split at the last `,"opaque":`, the header's own: only strings follow it, with their quotes
            # escaped.
            before, key, rest = super().json_header().rpartition(b',"opaque":')
            self.around_opaque = before + key, rest[rest.index(b",") :]
        before, after = self.around_opaque
        return b"%b%d%b" % (before, self.opaque, after)


class _ReceivedCommand(RemotingCommand, eq=False, gc=False):
    """Type that JSON headers are decoded into; its defaults apply to peers that omit language and version."""

    language: str = "OTHER"
    version: _I32Value = 0


HEADER_FIELDS_MAX: Final = 16_384
"""Maximum number of header fields: decoding 500,000 would take 0.1 s.

No request has more than 20, but names and values in the JSON of a message's properties count too.
"""
_LONG_HEADER_BYTES: Final = 5 * HEADER_FIELDS_MAX  # a shorter header cannot have more fields

_decode_json = msgspec.json.Decoder(_ReceivedCommand).decode


def append_command(out: list[Buffer], command: RemotingCommand) -> int:
    """Append the buffers of the command's frame to `out` without copying the body.

    Returns the size of the frame in bytes. Raises ValueError if the frame exceeds MAX_FRAME_BYTES.
    """
    is_json = command.serialize_type == _JSON
    header = command.json_header() if is_json else _encode_rocketmq(command)
    length = len(header)
    body, parts = command.body, command.parts
    if type(body) is memoryview:
        body = flat(body)
    total = LENGTH_BYTES + length + len(body)
    if parts:
        parts = [flat(part) for part in parts]
        total += sum(map(len, parts))
    if total > MAX_FRAME_BYTES:
        raise ValueError(
            f"a frame of {total:,} bytes exceeds the limit of {MAX_FRAME_BYTES:,}: request or send less"
        )
    out.append(PREFIX.pack(total, length if is_json else length | _ROCKETMQ_MARK))
    out.append(header)
    if body:
        out.append(body)
    if parts:
        out.extend(parts)
    return total + LENGTH_BYTES


def flat(buffer: Buffer) -> Buffer:
    """Return `buffer`, as bytes if its `len` is not its size: a view with other items or dimensions."""
    if type(buffer) is memoryview and (buffer.ndim != 1 or buffer.itemsize != 1 or not buffer.c_contiguous):
        return buffer.tobytes()
    return buffer


def encode_command(command: RemotingCommand) -> bytes:
    """Return the command's frame as bytes, for files, tests and tools; connections use `append_command`."""
    out: list[Buffer] = []
    append_command(out, command)
    return b"".join(out)


def _encode_rocketmq(command: RemotingCommand) -> bytes:
    language = LanguageCode.__members__.get(command.language, LanguageCode.OTHER)
    fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag)
    remark = b"" if command.remark is None else command.remark.encode()
    entries = bytearray()
    for key, value in command.ext.items():
        name, text = key.encode(), value.encode()
        entries += _I16.pack(len(name)) + name + _I32.pack(len(text)) + text
    return b"".join((fixed, _I32.pack(len(remark)), remark, _I32.pack(len(entries)), entries))


def decode_command(header: Buffer, serialize_type: int, body: Buffer) -> RemotingCommand:
    """Return the command with this header and body.

    `serialize_type` is the header's encoding. Raises ProtocolError if the header cannot be decoded.
    """
    if serialize_type == _JSON:
        return decode_json_command(header, body)
    if serialize_type == _ROCKETMQ:
        return _decode_rocketmq(header, body)
    raise ProtocolError(
        f"unknown header encoding {serialize_type}: it must be 0 (JSON) or 1 (ROCKETMQ)", "a newer protocol"
    )


def decode_json_command(header: Buffer, body: Buffer) -> RemotingCommand:
    """Return the command with this JSON header and body (hot path).

    Raises ProtocolError if the header cannot be decoded.
    """
    if len(header) > _LONG_HEADER_BYTES:
        fields = bytes(header).count(b'":')
        if fields > HEADER_FIELDS_MAX:
            raise _too_many_fields(fields)
    try:
        command = _decode_json(header)
    except (ValueError, RecursionError):
        return _decode_json_leniently(header, body)
    # A header could contain these keys: always overwrite them with the frame's values.
    command.body = body
    command.serialize_type = _JSON
    command.parts = ()
    return command


def _decode_json_leniently(header: Buffer, body: Buffer) -> RemotingCommand:
    """Return the command for a JSON header that msgspec rejects.

    Clients in other languages send numbers as field values, or text that is not UTF-8.
    """
    try:
        # Invalid UTF-8 becomes U+FFFD, as in Java; lone surrogates become '?', because they cannot be encoded
        # again.
        text = bytes(header).decode(errors="replace")
        fields = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the JSON header cannot be decoded: {error}", _describe_text(header)) from error
    if not isinstance(fields, dict) or not _is_int(fields.get("code")):
        raise ProtocolError("the JSON header has no 32-bit integer `code`", _describe_text(header))
    given = fields.get("extFields")
    ext = {}
    if isinstance(given, dict):
        ext = {_clean(key): _as_text(value) for key, value in given.items() if value is not None}
    remark = fields.get("remark")
    return RemotingCommand(
        fields["code"],
        ext,
        body,
        None if remark is None else _as_text(remark),
        _as_i32(fields.get("flag")),
        _as_i32(fields.get("opaque")),
        _as_text(fields.get("language", "OTHER")),
        _as_i32(fields.get("version")),
    )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and -(2**31) <= value < 2**31


def _as_i32(value: object) -> int:
    return value if isinstance(value, int) and _is_int(value) else 0


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return _clean(value)
    return _clean(json.dumps(value))


def _clean(text: str) -> str:
    return text.encode(errors="replace").decode()


def _describe_text(header: Buffer) -> str:
    return f"a JSON header that begins with {bytes(header[:40])!r}"


def _decode_rocketmq(header: Buffer, body: Buffer) -> RemotingCommand:
    data = bytes(header)
    try:
        code, language, version, opaque, flag = _FIXED.unpack_from(data)
        remark, at = _sized(data, _FIXED.size)
        entries, at = _sized(data, at)
        ext = _decode_entries(entries)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"the ROCKETMQ header cannot be decoded: {error}") from error
    return RemotingCommand(
        code,
        ext,
        body,
        remark.decode(errors="replace") or None,
        flag,
        opaque,
        _LANGUAGE_NAMES.get(language, "OTHER"),
        version,
        _ROCKETMQ,
    )


def _too_many_fields(count: int) -> ProtocolError:
    return ProtocolError(
        f"a header with {count:,} fields exceeds the limit of {HEADER_FIELDS_MAX:,}", "a wrong encoder"
    )


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes of the length-prefixed (i32) field at position `at`, and the position after it."""
    (length,) = _I32.unpack_from(data, at)
    start = at + _I32.size
    end = start + length
    if length < 0 or end > len(data):
        raise ValueError(
            f"the field at byte {at} has length {length:,}, but {len(data) - start:,} bytes follow"
        )
    return data[start:end], end


def _decode_entries(entries: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    at = count = 0
    while at < len(entries):
        count += 1
        if count > HEADER_FIELDS_MAX:
            raise _too_many_fields(count)
        (key_length,) = _I16.unpack_from(entries, at)
        key_end = at + _I16.size + key_length
        key = entries[at + _I16.size : key_end]
        value, at = _sized(entries, key_end)
        ext[key.decode(errors="replace")] = value.decode(errors="replace")
    return ext
