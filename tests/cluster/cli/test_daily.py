"""Commands for topics, groups, brokers and offsets: JSON in a pipe, tables on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from cluster.client import MessageQueue, PullConsumer
from tests.cluster.cli.conftest import Raymq
from tests.eventually import eventually


def offsets_of(raymq: Raymq, group: str, topic: str) -> dict[tuple[str, int], tuple[int | None, int]]:
    rows = raymq.ok("offset", "show", group, topic)
    return {(row["broker"], row["queue"]): (row["committed"], row["end"]) for row in rows}


def test_topic_create_list_change_delete(raymq: Raymq) -> None:
    topic = raymq.filled(3)
    rows = {row["topic"]: row for row in raymq.ok("topic", "list")}
    assert rows[topic] == {
        "topic": topic, "kind": "normal", "queues": 4, "perm": "rw", "brokers": ["a", "b"],
    }  # fmt: skip
    assert not any(name.startswith(("RMQ_SYS", "%RETRY%", "SCHEDULE")) for name in rows)
    assert len(raymq.ok("topic", "list", "--system")) > len(rows)

    assert raymq.ok("topic", "perm", topic, "r", "-b", "a", "--dry-run")["dry_run"] is True
    assert raymq.ok("topic", "perm", topic, "r", "-b", "a")["brokers"] == ["a"]
    found = raymq.ok("topic", "describe", topic)
    assert {row["broker"]: row["perm"] for row in found["brokers"]} == {"a": "r", "b": "rw"}
    assert found["groups"] == []

    queues = raymq.ok("topic", "stats", topic)["queues"]
    assert [(row["broker"], row["queue"], row["messages"]) for row in queues if row["messages"]] == [
        ("a", 0, 3)
    ]

    assert raymq.ok("topic", "delete", topic, "--dry-run")["messages"] == 3
    assert topic in {row["topic"] for row in raymq.ok("topic", "list")}
    raymq.ok("topic", "delete", topic, "--yes")
    assert topic not in {row["topic"] for row in raymq.ok("topic", "list")}


def test_topic_create_keeps_options_that_are_not_given(raymq: Raymq) -> None:
    topic = raymq.filled(1, queues=8)
    raymq.ok("topic", "create", topic, "--queues", "8", "--read-queues", "9", "--perm", "rw", "--order")
    raymq.ok("topic", "create", topic, "--perm", "r")
    for row in raymq.ok("topic", "describe", topic)["brokers"]:
        kept = (row["write_queues"], row["read_queues"], row["perm"], row["order"])
        assert kept == (8, 9, "r", True)
    raymq.ok("topic", "create", topic, "--queues", "2", "--no-order")
    row = raymq.ok("topic", "describe", topic)["brokers"][0]
    assert (row["write_queues"], row["read_queues"], row["perm"], row["order"]) == (2, 2, "r", False)
    raymq.ok("topic", "create", f"{topic}-new")
    assert raymq.ok("topic", "describe", f"{topic}-new")["brokers"][0]["write_queues"] == 4


def test_output_on_a_terminal_is_a_table(raymq: Raymq) -> None:
    topic = raymq.filled(12)
    assert topic in raymq.shown("topic", "list")
    assert "12 messages" in raymq.shown("topic", "stats", topic)
    assert "consumed by: no group" in raymq.shown("topic", "describe", topic)
    assert "127.0.0.1" in raymq.shown("broker", "list")
    assert "brokerVersionDesc" in raymq.shown("broker", "describe", "a")
    assert "would delete" in raymq.shown("topic", "delete", topic, "--dry-run")
    assert "SEND_OK a:1@0" in raymq.shown("send", topic, "x", "--queue", "a:1")
    assert "hours" not in raymq.shown("broker", "list")


def test_group_describe_shows_lag_members_and_settings(raymq: Raymq) -> None:
    topic = raymq.filled(10)
    group = f"group-of-{topic}"
    queue = MessageQueue(topic, "a", 0)
    with PullConsumer(raymq.cluster.address, group) as consumer:
        consumer.subscribe(topic, "a || b")
        eventually(lambda: queue in consumer.assignment())
        eventually(lambda: consumer.poll(4, 100))
        consumer.commit({queue: 4})
        found = raymq.ok("group", "describe", group, "-t", topic)
        assert [row["lag"] for row in found["queues"] if row["end"]] == [6]
        assert found["subscriptions"][topic] == "a || b"
        assert [member["language"] for member in found["members"]] == ["PYTHON"]
        assert found["settings"]["retryMaxTimes"] == 16
        assert raymq.ok("group", "members", group)[0]["client_id"] == found["members"][0]["client_id"]
        assert "subscribes to" in raymq.shown("group", "describe", group)
        info = raymq.ok("group", "member", group, found["members"][0]["client_id"])
        held = {json.loads(key)["queueId"]: state for key, state in info["mqTable"].items() if '"a"' in key}
        assert held[0]["cachedMsgMaxOffset"] == 3
        assert [wanted["subString"] for wanted in info["subscriptionSet"]] == ["a || b"]
        assert "cachedMsgCount" in raymq.shown("group", "member", group, found["members"][0]["client_id"])
        assert "is connected" in raymq.refused("group", "member", group, "unknown")
        assert "members online" in raymq.refused("group", "delete", group, "--yes")
        rows = {row["group"]: row for row in raymq.ok("group", "list")}
        assert (rows[group]["lag"], rows[group]["topics"]) == (6, [topic])
    assert raymq.ok("topic", "describe", topic)["groups"] == [group]
    eventually(lambda: raymq.ok("group", "describe", group)["members"] == [])
    assert raymq.ok("group", "delete", group, "--dry-run")["topics"] == [topic]
    raymq.ok("group", "delete", group, "--yes")
    assert "no group" in raymq.refused("group", "describe", group)


def test_group_create_sets_options(raymq: Raymq) -> None:
    raymq.ok("group", "create", "made-by-hand", "--max-retries", "3", "--no-broadcast")
    settings = raymq.ok("group", "describe", "made-by-hand")["settings"]
    assert (settings["retryMaxTimes"], settings["consumeBroadcastEnable"]) == (3, False)
    changed = raymq.ok("group", "create", "made-by-hand", "--no-enabled")["settings"]
    assert (changed["retryMaxTimes"], changed["consumeBroadcastEnable"], changed["consumeEnable"]) == (
        3, False, False,
    )  # fmt: skip
    raymq.ok("group", "delete", "made-by-hand", "--yes")


def test_offset_reset_skip_clone(raymq: Raymq) -> None:
    topic = raymq.filled(10)
    group, other = f"group-of-{topic}", f"other-of-{topic}"
    for name in (group, other):
        raymq.ok("group", "create", name)
    rows = raymq.ok("offset", "reset", group, topic, "--queue", "a:0", "--offset", "7", "--dry-run")
    assert (rows[0]["before"], rows[0]["after"]) == (None, 7)
    assert offsets_of(raymq, group, topic)["a", 0] == (None, 10)
    raymq.ok("offset", "reset", group, topic, "--queue", "a:0", "--offset", "7", "--yes")
    assert offsets_of(raymq, group, topic)["a", 0] == (7, 10)
    raymq.ok("group", "reset", group, topic, "--to", "earliest", "--yes")
    assert offsets_of(raymq, group, topic)["a", 0] == (0, 10)
    raymq.ok("offset", "reset", group, topic, "--to", "-1h", "--yes")
    assert offsets_of(raymq, group, topic)["a", 0] == (0, 10)
    raymq.ok("offset", "skip", group, topic, "--yes")
    assert offsets_of(raymq, group, topic)["a", 0] == (10, 10)
    for command in (("reset", "gone", topic, "--to", "latest"), ("skip", "gone", topic)):
        assert "no group 'gone'" in raymq.refused("offset", *command, "--dry-run")
    assert len(raymq.ok("offset", "clone", group, other, "--dry-run")) == 4
    assert offsets_of(raymq, other, topic)["a", 0] == (None, 10)
    raymq.ok("offset", "clone", group, other, "--yes")
    assert offsets_of(raymq, other, topic)["a", 0] == (10, 10)


def test_offset_reset_moves_an_online_member(raymq: Raymq) -> None:
    topic = raymq.filled(5)
    group = f"group-of-{topic}"
    bodies: list[bytes] = []
    with PullConsumer(raymq.cluster.address, group) as consumer:
        consumer.subscribe(topic)

        def has_received(count: int) -> bool:
            bodies.extend(message.body for message in consumer.poll(100, 100))
            return len(bodies) >= count

        eventually(lambda: has_received(5))
        raymq.ok("offset", "reset", group, topic, "--queue", "a:0", "--offset", "3", "--yes")
        eventually(lambda: has_received(7))
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"3", b"4"]


def test_broker_list_describe_stats(raymq: Raymq) -> None:
    topic = raymq.filled(4)
    brokers = {row["broker"]: row for row in raymq.ok("broker", "list")}
    assert sorted(brokers) == ["a", "b"]
    assert brokers["a"]["version"] == "V5_3_3"
    assert int(raymq.ok("broker", "describe", "a")["msgPutTotalTodayNow"]) >= 4
    rows = raymq.ok("broker", "stats", "a", "--table", "TOPIC_PUT_NUMS", "--key", topic)
    assert [row["sum"] for row in rows] == [4, 4, 4]
    assert "has no" in raymq.refused("broker", "stats", "a", "--table", "NONE", "--key", topic)
    assert raymq.ok("broker", "stats", "a")[0]["sum"] >= 4
    assert "no broker z" in raymq.refused("broker", "describe", "z", code=2)


def test_broker_writable_off_removes_it_from_producers_routes(raymq: Raymq) -> None:
    topic = raymq.filled()
    assert raymq.ok("broker", "writable", "b", "--off", "--dry-run")["topics"] > 0
    raymq.ok("broker", "writable", "b", "--off", "--yes")
    try:
        assert {raymq.ok("send", topic, "x")["broker"] for _ in range(4)} == {"a"}
    finally:
        raymq.ok("broker", "writable", "b", "--on")
    assert {raymq.ok("send", topic, "x")["broker"] for _ in range(16)} == {"a", "b"}


def test_broker_is_drained_without_ray_and_becomes_writable_again(raymq: Raymq) -> None:
    preview = raymq.ok("broker", "drain", "b", "--dry-run")
    assert (preview["state"], preview["dry_run"]) == ("active", True)
    try:
        assert raymq.ok("broker", "drain", "b")["state"] == "draining"
        assert raymq.ok("broker", "drain", "b", "--show")["state"] in ("draining", "closed")
    finally:
        assert raymq.ok("broker", "drain", "b", "--cancel")["state"] == "active"
    assert raymq.run("broker", "drain", "b", "--cancel", "--show")[0] == 2
    assert "no broker z" in raymq.refused("broker", "drain", "z", code=2)


def test_broker_outside_of_ray_refuses_a_restart(raymq: Raymq) -> None:
    for options in (["--dry-run"], ["--yes"]):
        assert "broker a is not an actor of Ray" in raymq.refused("broker", "restart", "a", *options)


def test_broker_config_changes_live_settings_only(raymq: Raymq) -> None:
    sets = ("--set", "fileReservedTime=48", "--set", "deleteWhen=03")
    assert raymq.ok("broker", "config", "b", *sets, "--dry-run")["dry_run"] is True
    assert raymq.ok("broker", "config", "b")["fileReservedTime"] == "72"
    found = raymq.ok("broker", "config", "b", *sets)
    assert found["settings"] == {"fileReservedTime": "48", "deleteWhen": "03"}
    settings = raymq.ok("broker", "config", "b")
    assert (settings["fileReservedTime"], settings["deleteWhen"]) == ("48", "03")

    refused = raymq.refused("broker", "config", "b", "--set", "listenPort=1")
    assert "listen_port: a change needs a restart: set it in the topology and run raymq up" in refused
    assert "noSuchKey: unknown setting" in raymq.refused("broker", "config", "b", "--set", "noSuchKey=1")
    assert raymq.run("broker", "config", "b", "--set", "fileReservedTime")[0] == 2


def test_broker_clean(raymq: Raymq) -> None:
    topic = raymq.filled(2)
    for what in ("expired-files", "expired-queues", "unused-topics"):
        assert raymq.ok("broker", "clean", "a", what, "--dry-run")["dry_run"] is True
        assert raymq.ok("broker", "clean", "a", what, "--yes")["cleaned"] == what
    queues = [row for row in raymq.ok("topic", "stats", topic)["queues"] if row["messages"]]
    assert [row["messages"] for row in queues] == [2]  # nothing of it has expired
    assert raymq.run("broker", "clean", "a", "everything")[0] == 2
    assert "no broker z" in raymq.refused("broker", "clean", "z", "expired-files", "--yes", code=2)


def test_top_once(raymq: Raymq) -> None:
    topic = raymq.filled(20)
    raymq.ok("group", "create", "top-group")
    raymq.ok("offset", "reset", "top-group", topic, "--to", "earliest", "--yes")
    found = raymq.ok("top", "--once", "--json")
    assert {row["broker"] for row in found["brokers"]} == {"a", "b"}
    assert next(row for row in found["topics"] if row["topic"] == topic)["messages"] == 20
    assert next(row for row in found["groups"] if row["group"] == "top-group")["lag"] == 20
    assert topic in raymq.shown("top", "--once", "--rows", "100")


def test_delete_asks_for_confirmation_on_a_terminal(raymq: Raymq, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = raymq.filled(1)
    monkeypatch.setattr("cluster.cli.console.is_interactive", lambda: True)
    code, _, errors = raymq.run("topic", "delete", topic, given="n\n")
    assert code == 1
    assert "1 message in 4 queues? [y/N]" in errors
    assert "nothing was changed" in errors
    assert raymq.run("topic", "delete", topic, given="y\n")[0] == 0
    assert topic not in {row["topic"] for row in raymq.ok("topic", "list")}


class Terminal:
    """Collects the output of programs on a pseudo-terminal."""

    def __init__(self, ours: int) -> None:
        os.set_blocking(ours, False)
        self._ours = ours
        self._seen = b""

    def read(self) -> bytes:
        with contextlib.suppress(OSError):  # no output yet, or the terminal is closed
            while piece := os.read(self._ours, 65_536):
                self._seen += piece
        return self._seen


def test_top_updates_a_terminal_until_interrupted(raymq: Raymq) -> None:
    topic = raymq.filled(3)
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "cluster.cli.main",
        "top",
        "--rows",
        "300",
        "--interval",
        "0.2",
        "-n",
        raymq.cluster.address,
    ]
    environment = {**os.environ, "COLUMNS": "160", "LINES": "900", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as top:
        os.close(theirs)
        shown = Terminal(ours)
        eventually(lambda: topic.encode() in shown.read())
        top.send_signal(signal.SIGINT)
        eventually(lambda: shown.read() and top.poll() is not None)  # a full terminal would hold it up
    seen = shown.read()
    os.close(ours)
    assert top.returncode == 0
    assert b"Traceback" not in seen
