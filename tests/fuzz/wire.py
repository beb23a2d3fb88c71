"""Fuzz targets for frames and headers: any bytes are decoded, refused, or an incomplete frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from actors.wire import admin_headers, headers, hot_headers
from actors.wire.command import (
    PREFIX,
    RemotingCommand,
    decode_command,
    decode_json_command,
    encode_command,
)
from actors.wire.frame import FrameReader, ReceiveMemory
from actors.wire.header import I64_MAX, Expression, FrameText, Group, Header, Long, Topic, wire
from actors.wire.remoting_errors import ProtocolError, Refused

FRAMES = Path(__file__).parents[1] / "fixtures" / "frames"
CORPUS = [path.read_bytes() for path in sorted(FRAMES.glob("*.bin"))]
I32 = range(-(2**31), 2**31)


MEMORY = ReceiveMemory()


def read_frames(data: bytes, piece_bytes: list[int]) -> list[str]:
    """Return the text of each command in a stream that arrives in such pieces, and of the final error."""
    reader = FrameReader(MEMORY)
    found: list[str] = []
    at = turn = 0
    try:
        while at < len(data):
            buffer = reader.get_buffer()
            count = min(len(buffer), len(data) - at, piece_bytes[turn % len(piece_bytes)])
            buffer[:count] = data[at : at + count]
            at, turn = at + count, turn + 1
            reader.received(count)
            while (command := reader.next_command()) is not None:
                found.append(command_text(command))
    except ProtocolError as error:
        found.append(f"refused: {error.reason}")
    reader.close()
    assert MEMORY.assembly_bytes == 0
    return found


def command_text(command: RemotingCommand) -> str:
    """Return all fields of a command as text."""
    return repr((
        command.code, command.ext, bytes(command.body), command.remark, command.flag, command.opaque,
        command.language, command.version, command.serialize_type,
    ))  # fmt: skip


def frames(data: bytes) -> None:
    """Check that the commands of a stream do not depend on how it is split into pieces."""
    cuts, stream = data[:3], data[3:]
    assert read_frames(stream, [1 + 7 * cut for cut in cuts] or [1]) == read_frames(
        stream, [len(stream) or 1]
    )


def header(data: bytes) -> None:
    """Check that a header is decoded or refused, and that a decoded one survives encoding and decoding."""
    kind, rest = data[:1], data[1:]
    try:
        command = decode_command(rest, int(kind == b"\x01"), b"body")
    except ProtocolError:
        return
    if is_writable(command):
        assert reread(command) == command_text(command)


def json_header(data: bytes) -> None:
    """Check that the fast decoder of JSON headers equals the lenient one, if it accepts the header."""
    from actors.wire.command import _decode_json_leniently  # the reference to compare with

    try:
        command = decode_json_command(data, b"")
    except ProtocolError:
        return
    if is_writable(command):
        assert command_text(command) == command_text(_decode_json_leniently(data, b""))
        assert reread(command) == command_text(command)


def reread(command: RemotingCommand) -> str:
    """Return the text of the command after encoding and decoding it."""
    frame = encode_command(command)
    _, mark = PREFIX.unpack_from(frame)
    body_at = PREFIX.size + (mark & 0xFFFFFF)
    again = decode_command(frame[PREFIX.size : body_at], mark >> 24, frame[body_at:])
    if command.serialize_type == 1:  # the binary encoding cannot distinguish an empty remark from none
        command.remark = command.remark or None
    return command_text(again)


def is_writable(command: RemotingCommand) -> bool:
    """Return True if the command can be encoded: a decoded JSON header may have fields of other types."""
    ext: Any = command.ext
    return (
        isinstance(ext, dict)
        and all(isinstance(key, str) and isinstance(value, str) for key, value in ext.items())
        and all(
            type(number) is int and number in I32
            for number in (command.code, command.opaque, command.flag, command.version)
        )
        and (command.remark is None or isinstance(command.remark, str))
    )


class GeneralSendHeader(Header):
    """The header of SEND_MESSAGE_V2, decoded by the general decoder."""

    producer_group: Group = wire(name="a")
    topic: Topic = wire(name="b")
    default_topic: Topic = wire(name="c")
    default_topic_queue_nums: Long = wire(name="d")
    queue_id: Long = wire(name="e")
    sys_flag: Long = wire(name="f")
    born_timestamp: Long = wire(name="g")
    flag: Long = wire(name="h")
    properties: FrameText = wire(name="i", default="")
    reconsume_times: Long = wire(name="j", default=0)
    max_reconsume_times: Long | None = wire(name="l", default=None)
    batch: bool = wire(name="m", default=False)


class GeneralPullHeader(Header):
    """The header of PULL_MESSAGE, decoded by the general decoder."""

    consumer_group: Group
    topic: Topic
    queue_id: Long
    queue_offset: Long
    max_msg_nums: Long
    sys_flag: Long
    commit_offset: Long
    suspend_timeout_millis: Long
    sub_version: Long
    subscription: Expression | None = None
    max_msg_bytes: Long | None = None


LONG_NAMES = dict(hot_headers.LONG_NAMES)
PULL_NAMES = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
    "suspendTimeoutMillis", "subVersion", "subscription", "maxMsgBytes",
)  # fmt: skip
VALUES = ("", "0", "1", "-1", "7", "2147483648", "9" * 30, "true", "T", "1e3", "٣", " 5 ", "1_0", "\x00", "ü")


def hot_header(data: bytes) -> None:
    """Check that the handwritten header decoders give the results of the general decoder."""
    letters = fields_of(data, tuple("abcdefghijlm"))
    send = outcome(hot_headers.SendMessageHeader, letters)
    plain = {letter: value for letter, value in letters.items() if (letter, value) != ("l", "")}
    assert is_same(send, outcome(GeneralSendHeader, plain)), letters
    long = {LONG_NAMES[letter]: value for letter, value in letters.items()}
    assert is_same(outcome(hot_headers.SendMessageHeaderV1, long), send), long
    names = fields_of(data, PULL_NAMES)
    assert is_same(outcome(hot_headers.PullMessageHeader, names), outcome(GeneralPullHeader, names)), names


def fields_of(data: bytes, names: tuple[str, ...]) -> dict[str, str]:
    """Return header fields made from `data`.

    For each field, one byte selects the name, and the next one a value of VALUES or the length of a text that
    follows.
    """
    ext, at = {}, 0
    while at + 2 <= len(data):
        name, kind = names[data[at] % len(names)], data[at + 1]
        at += 2
        if kind < 160:
            ext[name] = VALUES[kind % len(VALUES)]
        else:
            ext[name] = data[at : at + kind - 160].decode(errors="replace")
            at += kind - 160
    return ext


def outcome(header_type: Any, ext: dict[str, str]) -> Any:
    """Return the header decoded from these fields, or None if it is refused."""
    try:
        return header_type.from_ext(ext)
    except Refused:
        return None


def is_same(hot: Any, general: Any) -> bool:
    """Return True if both headers are refused (None), or equal in all fields of the second.

    The handwritten decoders do not check that numbers fit in 63 bits, because that would slow down every send
    and pull.
    """
    if general is None and hot is not None:
        return any(isinstance(each, int) and abs(each) > I64_MAX for each in values_of(hot))
    if hot is None or general is None:
        return hot is general
    return all(getattr(hot, name) == getattr(general, name) for name in general.__struct_fields__)


def values_of(header: Any) -> list[Any]:
    """Return the values of all fields of a header."""
    return [getattr(header, name) for name in header.__struct_fields__]


HEADER_TYPES: list[Any] = sorted(
    {
        each
        for module in (headers, admin_headers, hot_headers)
        for each in vars(module).values()
        if isinstance(each, type) and hasattr(each, "from_ext") and each is not Header
    },
    key=lambda each: str(each.__name__),
)


def request_header(data: bytes) -> None:
    """Check that each header type is decoded or refused, and that a decoded header can be encoded."""
    if not data:
        return
    header_type = HEADER_TYPES[data[0] % len(HEADER_TYPES)]
    ext = fields_of(data[1:], NAMES_OF[header_type])
    found = outcome(header_type, ext)
    if found is not None:
        again = header_type.from_ext(found.to_ext())
        assert again.to_ext() == found.to_ext(), ext


def _names_of(header_type: Any) -> tuple[str, ...]:
    from tests.actors.header_names import least_fields

    return (*least_fields(header_type), *PULL_NAMES, *"abcdefghijklmn", "group", "isForce", "other")


NAMES_OF = {header_type: _names_of(header_type) for header_type in HEADER_TYPES}


def seeds_of_headers() -> list[bytes]:
    """Return the headers of the recorded frames; the first byte of each is its encoding."""
    found = []
    for frame in CORPUS:
        if len(frame) > PREFIX.size:
            mark = PREFIX.unpack_from(frame)[1]
            found.append(bytes([mark >> 24 & 1]) + frame[PREFIX.size :][: mark & 0xFFFFFF])
    return found


def seeds_of_json() -> list[bytes]:
    """Return JSON headers, and variants with values of unexpected types and sizes."""
    unusual = [1, -1, 2**31, 2**63, 2**70, 1.5, True, None, "x", [], {}, "\ud800"]
    base: dict[str, Any] = {"code": 10, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479}
    made = [json.dumps(base | {key: value}) for key in (*base, "extFields", "remark") for value in unusual]
    made += [json.dumps(base | {"extFields": {"a": value}}) for value in unusual]
    return [seed[1:] for seed in seeds_of_headers() if seed[:1] == b"\x00"] + [text.encode() for text in made]
