from __future__ import annotations

from pathlib import Path

import pytest

from actors.raft.bound_file import BOUND_FILE, raise_bound, read_bound, write_bound
from actors.raft.effects import SavedTerm
from actors.raft.group_record import GroupRecordBody, decode_group_record, encode_group_record
from actors.raft.history import GroupRecord
from actors.raft.members import Member, Members
from actors.raft.term_file import TERM_FILE, TermFile
from store.store_errors import StoreError

A, B, C = (Member(number, f"store-{number}") for number in range(3))
MEMBERS = Members((A, B), (C,), (("store-0", "10.0.0.1:10911"), ("store-2", "[::1]:10911")))
SAVED = SavedTerm(
    7, B, False, Members((A, B)), (GroupRecord(0, 1, MEMBERS), GroupRecord(97, 7, MEMBERS)), 3, 5, "id"
)
GROUP = "DefaultCluster/broker-a"


def test_term_file_returns_what_was_written(tmp_path: Path) -> None:
    file = TermFile(tmp_path, GROUP, A)
    assert file.read() is None
    file.write(SAVED)
    assert TermFile(tmp_path, GROUP, A).read() == SAVED
    file.write(SavedTerm(8))
    assert file.read() == SavedTerm(8)


def test_every_damaged_byte_of_a_term_file_is_refused_or_harmless(tmp_path: Path) -> None:
    """A flipped bit never changes what is read: the file is refused, or only its layout has changed."""
    file = TermFile(tmp_path, GROUP, A)
    file.write(SAVED)
    content = (tmp_path / TERM_FILE).read_bytes()
    refused = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x04
        (tmp_path / TERM_FILE).write_bytes(damaged)
        try:
            read = file.read()
        except StoreError:
            refused += 1
        else:
            assert read == SAVED
    assert refused > len(content) // 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"crc":1}', b'{"crc":1,"raft":{}}', b"\0" * 512])
def test_damaged_term_file_is_refused_by_name_with_a_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / TERM_FILE).write_bytes(content)
    with pytest.raises(StoreError, match=r"raymq\.raft.*raymq replica replace"):
        TermFile(tmp_path, GROUP, A).read()


@pytest.mark.parametrize(("group", "me"), [("Other/broker-a", A), (GROUP, B), (GROUP, Member(0, "new"))])
def test_term_file_of_another_group_or_store_is_refused(tmp_path: Path, group: str, me: Member) -> None:
    TermFile(tmp_path, GROUP, A).write(SAVED)
    with pytest.raises(StoreError, match="belongs to"):
        TermFile(tmp_path, group, me).read()


def test_bound_is_raised_and_never_lowered_by_a_start(tmp_path: Path) -> None:
    assert read_bound(tmp_path) == 0
    assert raise_bound(tmp_path, 0) == 0
    assert not (tmp_path / BOUND_FILE).exists()
    assert raise_bound(tmp_path, 4096) == read_bound(tmp_path) == 4096
    assert raise_bound(tmp_path, 7) == read_bound(tmp_path) == 4096
    write_bound(tmp_path, 7)
    assert read_bound(tmp_path) == 7


def test_every_damaged_byte_of_a_bound_is_refused_or_harmless(tmp_path: Path) -> None:
    """Each single bit, a zero and a space at each place, and each truncated length."""
    file = tmp_path / BOUND_FILE
    write_bound(tmp_path, 4096)
    content = file.read_bytes()
    damages = [content[:length] for length in range(len(content))]
    for place, byte in enumerate(content):
        others = {byte ^ 1 << bit for bit in range(8)} | {0, ord(" ")}
        damages += [content[:place] + bytes([other]) + content[place + 1 :] for other in others - {byte}]
    refused = 0
    for damaged in damages:
        file.write_bytes(damaged)
        try:
            assert read_bound(tmp_path) == 4096
        except StoreError:
            refused += 1
            with pytest.raises(StoreError, match=r"raymq\.raft\.bound.*raymq replica replace"):
                raise_bound(tmp_path, 1 << 40)
            assert file.read_bytes() == damaged
    assert refused > len(damages) * 0.9


def test_bound_of_an_older_version_is_read_and_gets_a_checksum(tmp_path: Path) -> None:
    (tmp_path / BOUND_FILE).write_bytes(b"4096")
    assert read_bound(tmp_path) == 4096
    assert raise_bound(tmp_path, 7) == 4096
    assert b"crc" in (tmp_path / BOUND_FILE).read_bytes()
    assert read_bound(tmp_path) == 4096


def test_group_record_body_is_decoded_as_encoded() -> None:
    body = GroupRecordBody(GROUP, 7, B, MEMBERS)
    assert decode_group_record(encode_group_record(body)) == body


def test_group_record_without_addresses_is_decoded() -> None:
    """The first version of the format had none."""
    body = encode_group_record(GroupRecordBody(GROUP, 7, B, Members((A, B), (C,))))
    older = body.replace(b',"addresses":{}', b"")
    assert older != body
    assert decode_group_record(older) == decode_group_record(body)


@pytest.mark.parametrize("body", [b"", b"hello", b"{}", b"[1]", b'{"leader":[1],"group":"g","term":1}'])
def test_body_of_another_message_is_no_group_record(body: bytes) -> None:
    with pytest.raises(ValueError, match="not the body of a group record"):
        decode_group_record(body)
