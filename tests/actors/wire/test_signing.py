"""Signatures of requests and credentials files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from actors.wire.command import RemotingCommand
from actors.wire.signing import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    CredentialsInvalid,
    Signer,
    read_credentials,
    signed_ms,
    write_credentials,
)

# Computed by RocketMQ 5.3.3's AclSigner.
ACCESS, SECRET, SIGNED = "ak12345", "sk12345678", "ddYiUktueau+1gj7+kjyEyOzExk="
V4_9_3, V4_9_4 = 399, 401


def signed(**ext: str) -> RemotingCommand:
    command = RemotingCommand(105, {"topic": "T1", **ext}, b"B")
    Signer(Credentials(ACCESS, SECRET)).sign_as_rocketmq(command)
    return command


def test_signature_equals_that_of_rocketmq() -> None:
    assert signed().ext == {"topic": "T1", ACCESS_KEY: ACCESS, SIGNATURE: SIGNED}


def test_signature_covers_the_parts_of_a_body_and_replaces_an_older_one() -> None:
    command = RemotingCommand(105, {"topic": "T1", SIGNATURE: "old"}, parts=[b"", memoryview(b"B")])
    Signer(Credentials(ACCESS, SECRET)).sign_as_rocketmq(command)
    assert command.ext[SIGNATURE] == SIGNED


@pytest.mark.parametrize(
    "change",
    [{"topic": "T2"}, {"extra": "1"}, {SIGNATURE: ""}, {SIGNATURE: "é"}, {ACCESS_KEY: "other"}],
)
def test_changed_request_has_no_valid_signature(change: dict[str, str]) -> None:
    signer, command = Signer(Credentials(ACCESS, SECRET)), signed()
    assert signer.has_signed(command, signed_ms(command))
    command.ext.update(change)
    assert not signer.has_signed(command, signed_ms(command))


def test_other_secret_or_body_has_no_valid_signature() -> None:
    command = signed()
    assert not Signer(Credentials(ACCESS, "other")).has_signed(command, signed_ms(command))
    command.body = b"C"
    assert not Signer(Credentials(ACCESS, SECRET)).has_signed(command, signed_ms(command))


@pytest.mark.parametrize(("version", "is_valid"), [(V4_9_3, True), (V4_9_4, False)])
def test_field_that_old_clients_add_after_signing_is_skipped(version: int, is_valid: bool) -> None:
    command = signed()
    command.version = version
    command.ext["_UNIQUE_KEY_QUERY"] = "true"
    assert Signer(Credentials(ACCESS, SECRET)).has_signed(command, signed_ms(command)) is is_valid


# Computed with `openssl dgst -sha256 -hmac` over the bytes of the picture in `actors.wire.signing`.
NOW_MS, SIGNED_2 = 1_700_000_000_000, "v2:1700000000000:8F7HNvbpvsgTTANgUQmC3zmF8JJD2lZ+cdZIlgup/fQ="


def signed_2(**ext: str) -> RemotingCommand:
    command = RemotingCommand(105, {"topic": "T1", **ext}, b"B")
    Signer(Credentials(ACCESS, SECRET)).sign(command, NOW_MS)
    return command


def test_signature_of_raymq_is_stable() -> None:
    assert signed_2().ext == {"topic": "T1", ACCESS_KEY: ACCESS, SIGNATURE: SIGNED_2}
    assert signed_ms(signed_2()) == NOW_MS
    assert Signer(Credentials(ACCESS, SECRET)).has_signed(signed_2(), signed_ms(signed_2()))


def other_code(command: RemotingCommand) -> None:
    command.code = 215


def body_in_a_field(command: RemotingCommand) -> None:
    command.ext["z"], command.body = "B", b""


def moved_value(command: RemotingCommand) -> None:
    command.ext = {"topik" if name == "topic" else name: value for name, value in command.ext.items()}


def joined_values(command: RemotingCommand) -> None:
    command.ext["a"], command.ext["b"] = "xy", ""


def later(command: RemotingCommand) -> None:
    command.ext[SIGNATURE] = command.ext[SIGNATURE].replace(str(NOW_MS), str(NOW_MS + 1))


def without_mark(command: RemotingCommand) -> None:
    command.ext[SIGNATURE] = command.ext[SIGNATURE].rpartition(":")[2]


@pytest.mark.parametrize(
    "change",
    [
        other_code,
        body_in_a_field,
        moved_value,
        joined_values,
        later,
        without_mark,
        lambda command: command.ext.update(empty=""),
        lambda command: command.ext.update(a="\0x"),
        lambda command: command.ext.update({ACCESS_KEY: "other"}),
        lambda command: command.ext.update({SIGNATURE: SIGNED}),
        lambda command: command.ext.pop("b"),
    ],
)
def test_signature_of_raymq_covers_the_whole_request(change: Callable[[RemotingCommand], object]) -> None:
    signer, command = Signer(Credentials(ACCESS, SECRET)), signed_2(a="x", b="y")
    assert signer.has_signed(command, signed_ms(command))
    change(command)
    assert not signer.has_signed(command, signed_ms(command))


def test_signature_of_rocketmq_cannot_be_given_the_mark_of_raymq() -> None:
    command = signed()
    command.ext[SIGNATURE] = f"v2:{NOW_MS}:{SIGNED}"
    assert not Signer(Credentials(ACCESS, SECRET)).has_signed(command, signed_ms(command))


def test_repr_of_credentials_signer_and_request_contains_no_secret() -> None:
    credentials = Credentials(ACCESS, SECRET)
    for text in (repr(credentials), repr(Signer(credentials)), repr(signed()), repr(signed_2())):
        assert SECRET not in text
        assert SIGNED not in text
        assert SIGNED_2 not in text


def test_written_credentials_file_is_private_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_credentials(path, Credentials(ACCESS, SECRET))
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_credentials(path) == Credentials(ACCESS, SECRET)
    with pytest.raises(FileExistsError):
        write_credentials(path, Credentials(ACCESS, SECRET))


def test_credentials_file_may_be_tools_yml_of_rocketmq(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.touch(mode=0o600)
    path.write_text(f"# keys\naccessKey: {ACCESS}\nsecretKey: '{SECRET}'\n")
    assert read_credentials(path) == Credentials(ACCESS, SECRET)


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (f"AccessKey={ACCESS}\nSecretKey={SECRET}", 0o640, "run chmod 600"),
        (f"AccessKey={ACCESS}\nSecretKy={SECRET}", 0o600, "are both required"),
        (f"AccessKey={ACCESS}\nSecretKey=", 0o600, "are both required"),
        ("\udcff", 0o600, "not UTF-8"),
    ],
)
def test_invalid_credentials_file_is_refused(tmp_path: Path, text: str, mode: int, reason: str) -> None:
    path = tmp_path / "key"
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(mode)
    with pytest.raises(CredentialsInvalid, match=reason) as caught:
        read_credentials(path)
    assert SECRET not in str(caught.value)


def test_missing_credentials_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CredentialsInvalid, match="No such file"):
        read_credentials(tmp_path / "missing")
