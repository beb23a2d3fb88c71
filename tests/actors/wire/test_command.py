"""Commands in both header encodings: RocketMQ's bytes, differences of librocketmq, and invalid headers."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.wire.codes import FLAG_RESPONSE, LanguageCode
from actors.wire.command import (
    HEADER_FIELDS_MAX,
    PREFIX,
    RemotingCommand,
    SharedResponse,
    append_command,
    decode_command,
    encode_command,
)
from actors.wire.remoting_errors import ProtocolError

# Written by RocketMQ 5.3.3's own classes: code 105, opaque 5, version 479, extFields {topic: T1}, body "B".
JSON_FRAME = bytes.fromhex(
    "000000810000007c7b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a225431227d2c22666c616722"
    "3a302c226c616e6775616765223a224a415641222c226f7061717565223a352c2273657269616c697a655479706543757272656e74"
    "525043223a224a534f4e222c2276657273696f6e223a3437397d42"
)
ROCKETMQ_FRAME = bytes.fromhex(
    "000000270100002200690001df0000000500000000000000000000000d0005746f70696300000002543142"
)


def decode_frame(frame: bytes) -> RemotingCommand:
    total, mark = PREFIX.unpack_from(frame)
    assert total == len(frame) - 4
    header_end = PREFIX.size + (mark & 0xFFFFFF)
    return decode_command(frame[PREFIX.size : header_end], mark >> 24, frame[header_end:])


def shape(command: RemotingCommand) -> tuple[object, ...]:
    return (
        command.code,
        command.ext,
        bytes(command.body),
        command.remark,
        command.flag,
        command.opaque,
        command.language,
        command.version,
    )


@pytest.mark.parametrize("frame", [JSON_FRAME, ROCKETMQ_FRAME], ids=["json", "rocketmq"])
def test_rocketmq_frames_round_trip_byte_for_byte(frame: bytes) -> None:
    command = decode_frame(frame)
    assert shape(command) == (105, {"topic": "T1"}, b"B", None, 0, 5, "JAVA", 479)
    assert encode_command(command) == frame


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
i32 = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=60, deadline=None)
@given(
    texts,
    st.dictionaries(texts, texts, max_size=3),
    st.lists(i32, min_size=2, max_size=3),
    st.sampled_from([0, 1]),
)
@example('x,"opaque":9,', {"a": "b", "opaque": "8", ',"opaque":7,': ',"opaque":6,'}, [1, -2, 3], 0)
def test_shared_response_encodes_like_a_separate_response_for_each_opaque(
    remark: str, ext: dict[str, str], opaques: list[int], encoding: int
) -> None:
    shared = SharedResponse.response(19, remark, ext)
    for opaque in opaques:
        own = RemotingCommand.response(19, remark, ext)
        for response in (shared, own):
            response.opaque, response.serialize_type = opaque, encoding
        assert encode_command(shared) == encode_command(own)


@settings(max_examples=60, deadline=None)
@given(
    code=st.integers(-(2**15), 2**15 - 1),
    ext=st.dictionaries(texts, texts, max_size=5),
    body=st.binary(max_size=40),
    remark=st.none() | texts.filter(bool),
    flag=i32,
    opaque=i32,
    language=st.sampled_from([code.name for code in LanguageCode]),
    version=st.integers(-(2**15), 2**15 - 1),
    serialize_type=st.sampled_from([0, 1]),
)
def test_command_round_trips_in_both_encodings(
    code: int,
    ext: dict[str, str],
    body: bytes,
    remark: str | None,
    flag: int,
    opaque: int,
    language: str,
    version: int,
    serialize_type: int,
) -> None:
    command = RemotingCommand(code, ext, body, remark, flag, opaque, language, version, serialize_type)
    found = decode_frame(encode_command(command))
    assert shape(found) == shape(command)
    assert found.serialize_type == serialize_type


def test_body_parts_are_not_copied() -> None:
    parts = [memoryview(b"x" * 5), b"yz"]
    out: list[bytes | bytearray | memoryview] = []
    size = append_command(out, RemotingCommand.response(parts=parts))
    assert out[-2] is parts[0]
    assert out[-1] is parts[1]
    assert size == sum(map(len, out))
    assert decode_frame(b"".join(out)).body == b"xxxxxyz"


def test_frame_over_the_size_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds the limit of 16,777,216"):
        encode_command(RemotingCommand.response(parts=[b"x" * (8 << 20), b"x" * (8 << 20)]))


def decode_json(text: str | bytes) -> RemotingCommand:
    return decode_command(text.encode() if isinstance(text, str) else text, 0, b"")


def test_numeric_header_fields_of_librocketmq_become_strings() -> None:
    found = decode_json(
        '{"code":10,"extFields":{"queueId":3,"flag":0,"batch":true,"topic":"T","gone":null,"f":1.5},'
        '"flag":0,"language":"CPP","opaque":7,"remark":"","version":63}'
    )
    assert found.ext == {"queueId": "3", "flag": "0", "batch": "true", "topic": "T", "f": "1.5"}
    assert (found.code, found.opaque, found.language, found.version) == (10, 7, "CPP", 63)


def test_missing_json_header_fields_get_defaults() -> None:
    found = decode_json('{"code":34}')
    assert shape(found) == (34, {}, b"", None, 0, 0, "OTHER", 0)
    assert decode_json('{"code":34,"language":["JAVA"],"opaque":"5","flag":null}').code == 34


def test_json_header_cannot_override_body_and_encoding_of_the_frame() -> None:
    found = decode_json(
        '{"code":34,"opaque":5,"body":"eA==","parts":["y"],"serialize_type":1,"around_opaque":["a","b"],"ext":{}}'
    )
    assert shape(found) == (34, {}, b"", None, 0, 5, "OTHER", 0)
    assert (found.parts, found.serialize_type) == ((), 0)


def test_invalid_utf8_is_replaced_as_in_java() -> None:
    found = decode_json(
        b'{"code":10,"extFields":{"i":"KEYS\x01\xb2\xe2"},"flag":0,"language":"JAVA","opaque":1}'
    )
    assert found.ext["i"] == "KEYS\x01\ufffd\ufffd"


def test_lone_surrogate_can_be_encoded_again() -> None:
    found = decode_json(
        '{"code":10,"extFields":{"k":"a\\ud800b"},"flag":0,"language":"CPP","opaque":1,"version":1}'
    )
    assert found.ext["k"].encode() == b"a?b"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"code":"10"}',
        b'{"code":null}',
        b'{"code":99999999999999}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"code":' + b"9" * 5000 + b"}",
    ],
    ids=lambda header: repr(header[:16]),
)
def test_invalid_json_header_raises_protocol_error(header: bytes) -> None:
    with pytest.raises(ProtocolError, match="JSON header"):
        decode_json(header)


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_header_with_too_many_fields_is_refused(serialize_type: int) -> None:
    def header(fields: int) -> bytes:
        ext = {f"{number:x}": "" for number in range(fields)}
        frame = encode_command(RemotingCommand(105, ext, opaque=5, serialize_type=serialize_type))
        return frame[PREFIX.size :]

    most = decode_command(header(HEADER_FIELDS_MAX - 10), serialize_type, b"")
    assert len(most.ext) == HEADER_FIELDS_MAX - 10
    with pytest.raises(ProtocolError, match=rf"fields exceeds the limit of {HEADER_FIELDS_MAX:,}"):
        decode_command(header(HEADER_FIELDS_MAX + 1), serialize_type, b"")


def test_json_in_the_longest_property_string_is_no_header_field() -> None:
    properties = json.dumps({"": 0})[1:-1] * 4_000
    frame = encode_command(RemotingCommand(310, {"i": properties}, opaque=5))
    assert decode_frame(frame).ext == {"i": properties}


def test_unknown_header_encoding_is_named() -> None:
    with pytest.raises(ProtocolError, match="unknown header encoding 7"):
        decode_command(b"{}", 7, b"")


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=80), serialize_type=st.sampled_from([0, 1]))
def test_random_header_bytes_decode_or_raise_protocol_error(data: bytes, serialize_type: int) -> None:
    try:
        found = decode_command(data, serialize_type, b"")
    except ProtocolError:
        return
    assert isinstance(found.code, int)


@settings(max_examples=150, deadline=None)
@given(cut=st.integers(0, 34), value=st.binary(max_size=4))
def test_damaged_rocketmq_header_decodes_or_raises_protocol_error(cut: int, value: bytes) -> None:
    header = bytearray(ROCKETMQ_FRAME[8:-1])
    header[cut : cut + len(value)] = value
    try:
        found = decode_command(header, 1, b"")
    except ProtocolError:
        return
    assert all(isinstance(text, str) for text in found.ext.values())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["code", "extFields", "flag", "language", "opaque", "remark", "version"]


@settings(max_examples=60, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(KEYS), json_values))
def test_arbitrary_json_header_decodes_or_raises_protocol_error(fields: dict[str, object]) -> None:
    try:
        found = decode_json(json.dumps(fields))
    except ProtocolError:
        return
    assert isinstance(found.code, int)
    assert isinstance(found.opaque, int)
    assert isinstance(found.flag & FLAG_RESPONSE, int)


@pytest.mark.parametrize(
    ("view", "body"),
    [
        (memoryview(b"123456").cast("B", (2, 3)), b"123456"),
        (memoryview(b"12345678").cast("i"), b"12345678"),
        (memoryview(b"123456")[::-2], b"642"),
    ],
)
def test_length_of_a_frame_counts_the_bytes_of_any_view(view: memoryview, body: bytes) -> None:
    frame = encode_command(RemotingCommand(10, body=view))
    assert decode_frame(frame).body == body
    frame = encode_command(RemotingCommand(10, body=view, parts=[view, b"x", view]))
    assert decode_frame(frame).body == body + body + b"x" + body
