"""Commands at the borders of their process: output that fails, closed streams, encodings, foreign texts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli.console import json_line
from cluster.cli.main import COMMANDS, build
from cluster.cli.tables import escaped
from cluster.client import Admin, Message, Producer
from tests.cluster.cli.conftest import Raymq
from tests.eventually import LIMIT_S

RUN = f"{sys.executable} -m cluster.cli.main"
NASTY = "a\x1b[31m\nb\x07\u202e\x9bc[/red] :smile: [bold]"
QUICK = [
    "--help", "send --help", "version", "bench list",
    "topic list -n ADDRESS", "topic describe TOPIC -n ADDRESS", "broker list -n ADDRESS",
    "tail TOPIC --from first --no-follow -n ADDRESS",
    "message get TOPIC --queue a:0 --offset 0 -n ADDRESS", "message query TOPIC --key k0 -n ADDRESS",
    "top --once -n ADDRESS",
]  # fmt: skip


def shell(raymq: Raymq, command: str, topic: str = "", **environment: str) -> tuple[int, str, str]:
    """Run a command line of a shell, in which `raymq` stands for the program."""
    for name, value in (("raymq ", f"{RUN} "), ("ADDRESS", raymq.cluster.address), ("TOPIC", topic)):
        command = command.replace(name, value)
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(Path.cwd()), **environment},
    )
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode()


@pytest.mark.parametrize("command", QUICK)
def test_full_device_as_output_is_one_line(raymq: Raymq, command: str) -> None:
    code, _, errors = shell(raymq, f"raymq {command} > /dev/full", raymq.filled(3))
    assert (code, errors) == (1, "standard output: No space left on device\n")


@pytest.mark.parametrize("command", [QUICK[0], QUICK[4], QUICK[7]])
def test_closed_output_is_refused_before_the_command_runs(raymq: Raymq, command: str) -> None:
    code, _, errors = shell(raymq, f"raymq {command} >&-", raymq.filled(3))
    assert code == 1
    assert errors.startswith("standard output is closed")
    assert errors.count("\n") == 1


def test_failed_output_of_a_stored_message_says_that_it_is_stored(raymq: Raymq) -> None:
    topic = raymq.filled()
    for given in ("raymq send TOPIC x -n ADDRESS", "echo x | raymq send TOPIC -n ADDRESS"):
        code, _, errors = shell(raymq, f"{given} > /dev/full", topic)
        assert (code, errors.count("\n")) == (1, 1), errors
        assert "SEND_OK" in errors or "1 message sent" in errors
        assert errors.endswith("but standard output failed: No space left on device\n")
    code, _, errors = shell(raymq, "raymq topic create TOPIC-2 -n ADDRESS > /dev/full", topic)
    assert code == 1
    assert "4 queues on each of a, b; but standard output failed" in errors
    with Admin(raymq.cluster.address) as admin:
        assert sum(admin.end_offsets(topic).values()) == 2


def test_closed_input_is_refused_if_it_is_needed(raymq: Raymq) -> None:
    topic = raymq.filled()
    code, out, errors = shell(raymq, "raymq send TOPIC x -n ADDRESS <&-", topic)
    assert (code, errors, json.loads(out)["status"]) == (0, "", "SEND_OK")
    code, out, errors = shell(raymq, "raymq send TOPIC -n ADDRESS <&-", topic)
    assert code == 2
    assert errors.startswith("standard input is closed")
    code, out, errors = shell(raymq, "raymq topic delete TOPIC -n ADDRESS <&-", topic)
    assert (code, errors.count("\n")) == (2, 1)
    assert "confirm with --yes" in errors


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_output_in_any_encoding_is_valid_json(raymq: Raymq, encoding: str) -> None:
    topic = raymq.filled()
    with Producer(raymq.cluster.address) as producer:
        producer.send(topic, "\u20ac caf\u00e9 \U0001f600", keys="\u20ac", tags="\u00e9")
    command = "raymq tail TOPIC --from first --no-follow -n ADDRESS"
    code, out, errors = shell(raymq, command, topic, PYTHONIOENCODING=encoding)
    assert (code, errors) == (0, "")
    found = json.loads(out.encode("latin-1").decode(encoding))
    assert (found["body"], found["keys"], found["tags"]) == (
        "\u20ac caf\u00e9 \U0001f600",
        "\u20ac",
        "\u00e9",
    )
    for terminal in ({"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "COLUMNS": "200"}):
        code, _, errors = shell(raymq, command, topic, PYTHONIOENCODING=encoding, **terminal)
        assert (code, errors) == (0, "")


def test_foreign_texts_are_escaped_on_a_terminal(raymq: Raymq) -> None:
    topic = raymq.filled()
    message = Message(topic, NASTY.encode(), NASTY, "key", {"color": NASTY})
    with Producer(raymq.cluster.address) as producer:
        result = producer.send(message)
        producer.send(Message("%DLQ%nasty", NASTY.encode(), NASTY, NASTY, {"color": NASTY}))
    where = ("--queue", f"{result.queue.broker_name}:{result.queue.queue_id}", "--offset", "0")
    shown = [
        raymq.shown("tail", topic, "--from", "first", "--no-follow"),
        raymq.shown("message", "get", topic, *where),
        raymq.shown("message", "query", topic, "--key", "key"),
        raymq.shown("dlq", "list", "nasty"),
    ]
    for text in shown:
        assert "a\\x1b[31m\\nb" in text
        assert "\u202e" not in text
        assert "\x9b" not in text
        assert "\x1b[31m" not in text
        assert "\x07" not in text


def test_json_on_a_terminal_escapes_what_ascii_and_others_hide() -> None:
    line = json_line({"a": NASTY + "\u20ac\udce9"})
    assert line.rstrip("\n").isprintable()
    assert json.loads(line) == {"a": NASTY + "\u20ac\udce9"}
    assert "\u20ac" in line
    assert json_line("\u20ac", "latin-1") == '"\\u20ac"\n'


def test_printable_texts_are_not_changed() -> None:
    for text in ("plain", "caf\u00e9 \u20ac \u4e2d\u6587", ""):
        assert escaped(text) == text


TABLES_WITHOUT_CLUSTER = [["bench", "list"], ["version"], ["up", "--dry-run", "--set", "ray.address=new"]]


@pytest.mark.parametrize("command", TABLES_WITHOUT_CLUSTER, ids=" ".join)
def test_table_without_a_cluster_is_json_in_a_pipe(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    ports = ("nameservers.0.listen_port=0", "brokers.0.listen_port=0", "brokers.1.listen_port=0")
    more = [part for port in ports for part in ("--set", port)] if command[0] == "up" else []
    result = CliRunner().invoke(build(command), [*command, *more])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)


TABLES = [
    "topic list", "topic describe TOPIC", "topic stats TOPIC", "group list", "group describe GROUP",
    "lite list TOPIC",
    "group members GROUP", "broker list", "broker describe a", "broker stats a BROKER_PUT_NUMS a",
    "broker config a", "offset show GROUP", "dlq list", "message query TOPIC --key k0",
    "message get TOPIC --queue a:0 --offset 0", "tail TOPIC --from first --no-follow", "top --once",
    "user list", "acl list",
]  # fmt: skip
PROGRESS = {"console", "dev", "metrics",
    "up", "down", "restart", "promote", "transfer", "migrate", "drain", "status", "autoscale", "logs", "send",
    "store", "reindex", "replica", "export", "lake", "import", "demo", "bench", "version",
}  # fmt: skip
"""Commands without a table of a running cluster, or that need Ray or a store; other tests run them."""


@pytest.mark.parametrize("command", TABLES)
def test_table_of_a_cluster_is_json_in_a_pipe(raymq: Raymq, command: str) -> None:
    topic = raymq.filled(2)
    words = command.replace("TOPIC", topic).replace("GROUP", "tables").split()
    raymq.ok("group", "create", "tables")
    code, out, errors = raymq.run(*words)
    assert out or code, (command, errors)
    for line in out.splitlines():
        json.loads(line)


def test_every_command_that_prints_a_table_is_listed() -> None:
    assert {each.split()[0] for each in TABLES} | PROGRESS == set(COMMANDS)
