"""Fuzz tests of frames and headers: any input is a command, a ProtocolError, or an incomplete frame.

The corpus (`tests/fixtures/frames`) has valid frames of clients and invalid bytes. The tests draw pieces,
mixtures and mutations of them.
"""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.wire import admin_headers, headers, hot_headers
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.frame import FrameReader, ReceiveMemory
from actors.wire.remoting_errors import ProtocolError, Refused
from tests.actors.header_names import least_fields

CORPUS = {
    path.stem: path.read_bytes()
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "frames").glob("*.bin"))
}
VALID = {
    "answer-json", "answer-rocketmq", "commit-json", "heartbeat-json", "missing-keys", "not-utf8",
    "numbers-among-fields", "oneway-json", "pull-json", "pull-rocketmq", "send-json", "send-rocketmq",
    "deep-json",
}  # fmt: skip


def read_all(data: bytes, cuts: list[int], memory: ReceiveMemory) -> tuple[list[RemotingCommand], bool]:
    """Return the commands in a stream that arrives in pieces, and whether it was refused."""
    reader = FrameReader(memory)
    commands: list[RemotingCommand] = []
    borders = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    try:
        for begin, end in pairwise(borders):
            at = begin
            while at < end:
                buffer = reader.get_buffer()
                count = min(len(buffer), end - at)
                buffer[:count] = data[at : at + count]
                at += count
                reader.received(count)
                while (command := reader.next_command()) is not None:
                    commands.append(command)
    except ProtocolError:
        return commands, True
    finally:
        reader.close()
    return commands, False


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Concatenated frames of the corpus, some of them mutated."""
    parts = [bytearray(part) for part in draw(st.lists(st.sampled_from(list(CORPUS.values())), max_size=3))]
    for part in parts:
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.integers(0, max(len(part) - 1, 0)))
            kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "repeat", "length"]))
            if kind == "flip" and part:
                part[place] ^= 1 << draw(st.integers(0, 7))
            elif kind == "set" and part:
                part[place] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x5C, 0x7B]))
            elif kind == "cut":
                del part[place:]
            elif kind == "insert":
                part[place:place] = draw(st.binary(max_size=8))
            elif kind == "repeat":
                part[place:place] = part[place : place + 16]
            elif len(part) >= 8:
                at = draw(st.sampled_from([0, 4]))
                part[at : at + 4] = draw(st.integers(0, 2**32 - 1)).to_bytes(4, "big")
    return b"".join(parts) + draw(st.binary(max_size=12))


@pytest.mark.parametrize("name", CORPUS)
def test_corpus_frames_are_decoded_or_refused(name: str) -> None:
    memory = ReceiveMemory()
    commands, _ = read_all(CORPUS[name], [], memory)
    assert bool(commands) == (name in VALID)
    assert memory.assembly_bytes == 0


@settings(max_examples=400, deadline=None)
@given(streams(), st.lists(st.integers(0, 2000), max_size=4))
def test_stream_decodes_the_same_however_it_is_split(data: bytes, cuts: list[int]) -> None:
    memory = ReceiveMemory()
    whole, was_refused = read_all(data, [], memory)
    pieces, pieces_refused = read_all(data, cuts, memory)
    assert ([repr(each) for each in pieces], pieces_refused) == ([repr(each) for each in whole], was_refused)
    assert memory.assembly_bytes == 0


@settings(max_examples=200, deadline=None)
@given(streams())
def test_decoded_commands_round_trip(data: bytes) -> None:
    for command in read_all(data, [], ReceiveMemory())[0]:
        if not _is_writable(command):
            continue
        again, _ = read_all(encode_command(command), [], ReceiveMemory())
        assert [(each.code, each.opaque, each.ext, bytes(each.body)) for each in again] == [
            (command.code, command.opaque, command.ext, bytes(command.body))
        ]


def _is_writable(command: RemotingCommand) -> bool:
    """Return True if the command can be encoded; fields of a wrong type are detected only by the handler."""
    ext: Any = command.ext
    numbers = (command.code, command.opaque, command.flag, command.version)
    return (
        isinstance(ext, dict)
        and all(isinstance(value, str) for value in ext.values())
        and all(isinstance(number, int) and -(2**31) <= number < 2**31 for number in numbers)
        and (command.remark is None or isinstance(command.remark, str))
        and command.serialize_type == 0
    )


def header_types() -> list[Any]:
    modules = (headers, admin_headers, hot_headers)
    found = {
        each
        for module in modules
        for _, each in inspect.getmembers(module, inspect.isclass)
        if hasattr(each, "from_ext") and each.__module__ == module.__name__ and each.__name__ != "Header"
    }
    return sorted(found, key=lambda each: str(each.__name__))


TEXT = st.one_of(
    st.sampled_from(["", "0", "-1", "7", "9" * 30, "true", "1e5", "٣", "\x00", "None", "1_000", " 5 "]),
    st.text(max_size=6),
)


@pytest.mark.parametrize("header_type", header_types(), ids=lambda each: each.__name__)
def test_header_with_arbitrary_fields_is_decoded_or_refused(header_type: Any) -> None:
    names = [*"abcdefghijklm", *least_fields(header_type), "other"]

    @settings(max_examples=25, deadline=None)
    @given(st.dictionaries(st.sampled_from(names), TEXT))
    def check(ext: dict[str, str]) -> None:
        try:
            header = header_type.from_ext(ext)
        except Refused:
            return
        assert isinstance(header.to_ext(), dict)

    check()
