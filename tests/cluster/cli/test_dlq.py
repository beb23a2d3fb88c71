"""`raymq dlq`: list, show, resend and purge the dead letters of a group."""

from __future__ import annotations

from cluster.client import PushConfig, PushConsumer, reconsume_later
from tests.cluster.cli.conftest import Raymq
from tests.eventually import eventually

CONFIG = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)


def with_dead_letters(raymq: Raymq, count: int) -> tuple[str, str]:
    """Create a topic with `count` messages that all are dead letters; return it and the group."""
    topic = raymq.filled(count)
    group = f"group-of-{topic}"
    with PushConsumer(
        raymq.cluster.address, group, lambda _messages: reconsume_later(-1), config=CONFIG
    ) as consumer:
        consumer.subscribe(topic)
        eventually(
            lambda: sum(row["committed"] or 0 for row in raymq.ok("offset", "show", group, topic)) == count
        )
    return topic, group


def test_dlq_list_and_show(raymq: Raymq) -> None:
    topic, group = with_dead_letters(raymq, 3)
    counts = {row["group"]: row["dead_letters"] for row in raymq.ok("dlq", "list")}
    assert counts[group] == 3
    rows = raymq.ok("dlq", "list", group)
    assert [(row["broker"], row["queue"], row["offset"]) for row in rows] == [("a", 0, n) for n in (2, 1, 0)]
    assert {row["body"] for row in rows} == {"0", "1", "2"}
    assert {row["origin"] for row in rows} == {topic}
    assert raymq.ok("dlq", "list", group, "--max", "2") == rows[:2]
    assert "2 of 3; older ones: --before a:0@1\n" in raymq.shown("dlq", "list", group, "--max", "2")
    assert raymq.ok("dlq", "list", group, "--before", "a:0@1") == [rows[2]]
    assert "older ones" not in raymq.shown("dlq", "list", group, "--before", "a:0@1")
    assert "is not a place" in raymq.refused("dlq", "list", group, "--before", "a:0", code=2)
    shown = raymq.ok("dlq", "show", group, "--queue", "a:0", "--offset", "1")
    assert shown == rows[1]
    assert raymq.ok("dlq", "show", group, "--id", rows[2]["unique_key"]) == rows[2]
    assert f"dead letters of {group}" in raymq.shown("dlq", "list", group)
    assert topic in raymq.shown("dlq", "show", group, "--id", rows[2]["id"])


def test_dlq_resend_selected_then_all(raymq: Raymq) -> None:
    topic, group = with_dead_letters(raymq, 4)
    assert raymq.ok("dlq", "resend", group, "--dry-run") == {"group": group, "messages": 4, "dry_run": True}
    assert len(raymq.ok("dlq", "list", group)) == 4
    raymq.ok("dlq", "resend", group, "--queue", "a:0", "--offset", "0", "--to", "topic", "--yes")
    assert len(raymq.ok("dlq", "list", group)) == 3
    assert sum(row["lag"] for row in raymq.ok("offset", "show", group, topic)) == 1
    assert raymq.ok("dlq", "resend", group, "--max", "2", "--yes")["messages"] == 2
    assert "resent 1 dead letter of" in raymq.shown("dlq", "resend", group, "--yes")
    assert raymq.ok("dlq", "list", group) == []
    assert len(raymq.ok("dlq", "list", group, "--all")) == 4
    assert raymq.ok("dlq", "resend", group, "--yes")["messages"] == 0


def test_dlq_purge(raymq: Raymq) -> None:
    _, group = with_dead_letters(raymq, 2)
    assert raymq.ok("dlq", "purge", group, "--dry-run")["messages"] == 2
    assert raymq.ok("dlq", "purge", group, "--until", "-1h", "--yes")["messages"] == 0
    assert raymq.ok("dlq", "purge", group, "--yes") == {"group": group, "messages": 2, "dry_run": False}
    assert raymq.ok("dlq", "list", group) == []
    assert group in {row["group"] for row in raymq.ok("dlq", "list")}


def test_dlq_refuses_invalid_arguments(raymq: Raymq) -> None:
    _, group = with_dead_letters(raymq, 1)
    for command in ("list", "resend", "purge"):
        assert "group 'unknown' does not exist" in raymq.refused("dlq", command, "unknown")
    assert "no message is selected" in raymq.refused("dlq", "show", group, code=2)
    assert "must be given together" in raymq.refused("dlq", "resend", group, "--offset", "1", code=2)
    assert "'a' is not a queue" in raymq.refused(
        "dlq", "show", group, "--queue", "a", "--offset", "1", code=2
    )
    assert "no such dead letter" in raymq.refused("dlq", "show", group, "--queue", "a:0", "--offset", "9")
    assert "no such dead letter" in raymq.refused("dlq", "show", group, "--id", "F" * 32)


def test_group_describe_and_top_show_dead_letters(raymq: Raymq) -> None:
    topic, group = with_dead_letters(raymq, 3)
    found = raymq.ok("group", "describe", group)
    assert (found["retries"], found["dead_letters"]) == (0, 3)
    rows = raymq.ok("top", "--once", "--json")["groups"]
    assert {row["dead_letters"] for row in rows if (row["group"], row["topic"]) == (group, topic)} == {3}
    raymq.ok("dlq", "resend", group, "--max", "2", "--yes")
    found = raymq.ok("group", "describe", group)
    assert (found["retries"], found["dead_letters"]) == (2, 1)
    assert "in the retry topic: 2; dead letters: 1" in raymq.shown("group", "describe", group)
