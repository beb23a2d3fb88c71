"""Commands that ask for confirmation ask a terminal; without one they change nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin
from tests.cluster.cli.conftest import Raymq
from tests.cluster.cli.test_help import pages

REFUSED = "Standard input is not a terminal: confirm with --yes"
ASKING = [
    "topic delete TOPIC", "group delete GROUP", "user delete alice", "acl delete alice",
    "acl delete alice -r Topic:a",
    "dlq resend GROUP", "dlq purge GROUP",
    "offset reset GROUP TOPIC --to earliest", "group reset GROUP TOPIC --to earliest",
    "offset skip GROUP TOPIC", "offset clone GROUP GROUP-2",
    "broker clean a unused-topics", "broker writable a --off", "broker restart a", "transfer a --to 1",
]  # fmt: skip
REPLICAS = ["replica add a H:1", "replica remove a 1", "replica replace a 1 H:1"]
LAUNCHED = ["promote a-1", "migrate a", "autoscale release a"]
STORES = {"replica resync", "replica recover-group", "lake drop"}
"""Their own tests run these, with a store or a table."""


def asks(page: list[str]) -> bool:
    command: Any = typer.main.get_command(build(page))
    for name in page:
        command = command.commands[name]
    return any("--yes" in each.opts for each in command.params)


def test_every_command_with_yes_is_listed() -> None:
    listed = {" ".join(each.split()[:2]) for each in (*ASKING, *REPLICAS, *LAUNCHED)} | STORES
    found = {" ".join(page) for page in pages() if asks(page)}
    alone = {name.split()[0] for name in listed} & found  # `transfer a` is the command `transfer`
    assert {name for name in listed if name.split()[0] not in alone} | alone == found


@pytest.mark.parametrize("command", ASKING)
def test_change_without_a_terminal_is_refused(
    raymq: Raymq, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    topic = raymq.filled(2)
    group = f"{topic}-group"
    raymq.ok("group", "create", group)
    raymq.ok("offset", "reset", group, topic, "--to", "latest", "--yes")
    dead = f"%DLQ%{group}"
    raymq.ok("topic", "create", dead)
    raymq.ok("send", dead, "x")
    monkeypatch.setattr(Admin, "transfer_leadership", only_dry_run)
    monkeypatch.setattr(Admin, "restart_broker", only_dry_run)
    if "alice" in command:
        monkeypatch.setattr(Admin, "users", lambda _: {"a": {"alice": None}})
    words = [{"TOPIC": topic, "GROUP": group, "GROUP-2": f"{group}-2"}.get(w, w) for w in command.split()]
    assert raymq.refused(*words, code=2).endswith(REFUSED)
    assert topic in {row["topic"] for row in raymq.ok("topic", "list")}
    assert group in {row["group"] for row in raymq.ok("group", "list")}


def only_dry_run(_: object, *arguments: object, dry_run: bool = False) -> str:
    assert dry_run
    return "127.0.0.1:1"


@pytest.mark.parametrize("command", REPLICAS)
def test_change_of_members_without_a_terminal_is_refused(
    raymq: Raymq, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("cluster.views.raft_change.plan_change", lambda *_, **__: SimpleNamespace())
    assert raymq.refused(*command.split(), code=2).endswith(REFUSED)


@pytest.mark.parametrize("command", LAUNCHED)
def test_change_of_actors_without_a_terminal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    for function in ("promote", "migrate"):
        monkeypatch.setattr(f"cluster.launch.{function}", lambda *_, confirm, **__: confirm())
    words = command.split()
    done = CliRunner().invoke(build(words), words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    assert done.stderr.strip().endswith(REFUSED)


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0), ("", 1)])
def test_terminal_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    monkeypatch.setenv("RAYMQ_HOME", str(tmp_path))
    monkeypatch.setattr("cluster.launch.promote", lambda *_, confirm, **__: confirm())
    monkeypatch.setattr("cluster.cli.console.is_interactive", lambda: True)
    words = ["promote", "a-1"]
    done = CliRunner().invoke(build(words), words, input=answer and f"{answer}\n")
    assert done.exit_code == code, done.output
    assert ("nothing was changed" in done.stderr) == bool(code)


def test_only_the_shared_helper_asks() -> None:
    sources = Path(sys.modules["cluster.cli"].__path__[0]).rglob("*.py")
    assert [each.name for each in sources if ".confirm(" in each.read_text()] == ["console.py"]
