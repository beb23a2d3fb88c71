"""Commands decode their input strictly: arguments, JSON lines, base64, numbers and times."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.cli.topics.message_view import decode_base64
from cluster.client import Admin
from tests.cluster.cli.conftest import Raymq
from tests.cluster.cli.test_help import pages

NOT_UTF8 = b"caf\xe9".decode(errors="surrogateescape")
BODIES = {("send", "body"), ("message send", "body")}


def is_path(annotation: str) -> bool:
    return "Path" in annotation or annotation == "Store"


def texts_of(page: list[str]) -> Iterator[list[str]]:
    """Yield the arguments of a command, each time with another text argument that is not UTF-8."""
    command: Any = typer.main.get_command(build(page))
    for name in page:
        command = command.commands[name]
    hints = {
        name: str(each.annotation) for name, each in inspect.signature(command.callback).parameters.items()
    }
    fillers = {
        each.name: "1" for each in command.params if each.param_type_name == "argument" and each.required
    }
    needed = [
        text
        for each in command.params
        if each.param_type_name == "option" and each.required
        for text in (each.opts[0], "1")
    ]
    for each in command.params:
        if (
            getattr(each, "is_flag", False)
            or is_path(hints[each.name])
            or (" ".join(page), each.name) in BODIES
        ):
            continue
        if each.param_type_name == "argument":
            yield [*page, *needed, *({**fillers, each.name: NOT_UTF8}.values())]
        else:
            yield [*page, *needed, *fillers.values(), each.opts[0], NOT_UTF8]


@pytest.mark.parametrize("page", pages(), ids=" ".join)
def test_argument_that_is_not_utf8_is_refused_by_name(page: list[str]) -> None:
    for arguments in texts_of(page):
        result = CliRunner().invoke(build(arguments), arguments, env={"COLUMNS": "200"})
        assert result.exit_code == 2, (arguments, result.output)
        assert "not valid UTF-8" in result.stderr or "Invalid value" in result.stderr, result.stderr


def test_body_keeps_the_bytes_of_the_argument(raymq: Raymq) -> None:
    topic = raymq.filled()
    raymq.ok("send", topic, b"\xff\x00"[:1].decode(errors="surrogateescape"))
    raymq.ok("send", topic, NOT_UTF8)
    with Admin(raymq.cluster.address) as admin:
        ends = admin.end_offsets(topic)
        found = [message.body for queue in ends for message in admin.messages_at(queue, 0, 10)]
    assert sorted(found) == [b"caf\xe9", b"\xff"]


@pytest.mark.parametrize("text", ["____AAAA", "////AAAA", "QQ==", "", "-_8=", "+/8="])
def test_base64_of_both_alphabets_is_decoded(text: str) -> None:
    assert len(decode_base64(text)) == len(text.rstrip("=")) * 3 // 4


@pytest.mark.parametrize(
    "text", ["QQ", "QQ=", "QR==", "+_8=", "Q Q=", "QQ==\n", "é", "QQ==QQ==", "=", "A" * 100 + "!"]
)
def test_any_other_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not base64"):
        decode_base64(text)


def test_url_safe_body_of_a_json_line_is_stored(raymq: Raymq) -> None:
    topic = raymq.filled()
    raymq.ok("send", topic, "--json-lines", given='{"body_base64": "____AAAA"}\n')
    [found] = [raymq.ok("tail", topic, "--from", "first", "--no-follow")]
    assert found["body_base64"] == "////AAAA"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"body": "a", "bdy": "b"}', "unknown field 'bdy': did you mean 'body'?"),
        ('{"body": "a", "zzz": 1}', "unknown field 'zzz': the fields are"),
        ('{"body": "a", "body": "b"}', "field 'body' occurs twice"),
        ('{"body": "a", "properties": {"x": "1", "x": "2"}}', "field 'x' occurs twice"),
        ('{"body": "a", "body_base64": "QQ=="}', "either `body` or `body_base64`"),
        ('{"tags": "a"}', "either `body` or `body_base64`"),
        ('{"body": 5}', "field 'body' is 5"),
        ('{"body": null}', "field 'body' is None"),
        ('{"body_base64": 5}', "field 'body_base64' is 5"),
        ('{"body": "a", "tags": 5}', "field 'tags' is 5"),
        ('{"body": "a", "tags": ["x"]}', "field 'tags' is"),
        ('{"body": "a", "keys": ["x", 5]}', "'keys[1]' is 5"),
        ('{"body": "a", "properties": {"x": 5}}', "'properties.x' is 5"),
        ('{"body": "a", "properties": ["x"]}', "an object of strings"),
        ('{"body": "\\ud800"}', "surrogates not allowed"),
        ('{"body": "a", "keys": "\\udce9"}', "surrogates not allowed"),
        ('{"body_base64": "%%%"}', "is not base64"),
        ('["body"]', "it is a list"),
        ("body", "Expecting value"),
        (b'{"body": "caf\xe9"}', "can't decode byte 0xe9"),
        ("[" * 100_000, "nested too deeply"),
        ('{"body": "a", "properties": ' + '{"x":' * 100_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:40]),
)
def test_invalid_json_line_is_refused_by_number_and_name(
    raymq: Raymq, line: str | bytes, reason: str
) -> None:
    topic = raymq.filled()
    given = b"\n".join((b'{"body": "good"}', line.encode() if isinstance(line, str) else line, b""))
    code, out, errors = raymq.run("send", topic, "--json-lines", given=given)
    assert (code, json.loads(out)["sent"]) == (2, 1)
    assert errors.startswith("line 2 of the input is invalid: ")
    assert reason in errors
    assert errors.count("\n") == 1


def test_fields_of_printed_messages_are_accepted_as_input(raymq: Raymq) -> None:
    topic, copy = raymq.filled(3), raymq.filled()
    lines = "".join(
        json.dumps(row) + "\n" for row in raymq.ok("tail", topic, "--from", "first", "--no-follow")
    )
    assert raymq.ok("send", copy, "--json-lines", given=lines)["sent"] == 3
    assert {row["keys"] for row in raymq.ok("tail", copy, "--from", "first", "--no-follow")} == {
        "k0",
        "k1",
        "k2",
    }


@pytest.mark.parametrize(
    "time",
    [
        "9999-12-31T23:59:59-23:00",
        "0001-01-01",
        "99999999999999999999",
        "9" * 5000,
        "-99999999999999d",
        "-9" + "9" * 5000 + "d",
        "٣",
        "1_000",
        "+5",
    ],
)
def test_time_out_of_range_is_refused(raymq: Raymq, time: str) -> None:
    topic = raymq.filled()
    assert "is not a valid time" in raymq.refused("tail", topic, "--no-follow", f"--from={time}", code=2)


@pytest.mark.parametrize(
    "queue", ["a:٣", "a:+1", "a:1_0", "a:4294967296", "a:" + "9" * 5000, "a:-1", ":1", "a:"]
)
def test_queue_that_is_no_number_is_refused(raymq: Raymq, queue: str) -> None:
    assert "is not a queue" in raymq.refused("send", raymq.filled(), "x", "--queue", queue, code=2)
