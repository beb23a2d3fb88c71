"""Commands that send, find and follow messages."""

from __future__ import annotations

import base64
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Producer, ProducerConfig
from store.message.sys_flag import COMPRESSED, COMPRESSION_ZLIB
from tests.cluster.cli.conftest import Raymq
from tests.cluster.client.test_undecodable_bodies import send_raw
from tests.eventually import LIMIT_S, eventually


def bodies(raymq: Raymq, topic: str, *options: str) -> list[str]:
    found = raymq.ok("tail", topic, "--from", "first", "--no-follow", *options)
    return sorted(row["body"] for row in (found if isinstance(found, list) else [found]))


def test_message_is_found_by_offset_id_and_key(raymq: Raymq) -> None:
    topic = raymq.filled()
    sent = raymq.ok(
        "send",
        topic,
        "four apples",
        "-k",
        "order-1",
        "-k",
        "u",
        "-t",
        "fruit",
        "-p",
        "shop=north",
        "--queue",
        "a:1",
    )
    assert (sent["status"], sent["broker"], sent["queue"], sent["offset"]) == ("SEND_OK", "a", 1, 0)
    by_place = raymq.ok("message", "get", topic, "--queue", "a:1", "--offset", "0")
    assert by_place["body"] == "four apples"
    assert (by_place["tags"], by_place["keys"], by_place["properties"]) == (
        "fruit",
        "order-1 u",
        {"shop": "north"},
    )
    assert raymq.ok("message", "get", topic, "--id", sent["id"]) == by_place
    assert raymq.ok("message", "get", topic, "--id", sent["unique_key"]) == by_place
    assert raymq.ok("message", "query", topic, "--key", "order-1", "--from", "-1h") == [by_place]
    assert raymq.ok("message", "query", topic, "--key", "unknown") == []
    assert "shop=north" in raymq.shown("message", "get", topic, "--queue", "a:1", "--offset", "0")


def test_send_file_keeps_binary_bodies(raymq: Raymq, tmp_path: Path) -> None:
    topic = raymq.filled()
    picture = tmp_path / "picture"
    picture.write_bytes(b"\x89PNG\xff")
    sent = raymq.ok("send", topic, "--file", str(picture))
    got = raymq.ok("message", "get", topic, "--id", sent["unique_key"])
    assert base64.b64decode(got["body_base64"]) == picture.read_bytes()
    copy = raymq.filled()
    assert raymq.ok("send", copy, "--json-lines", given=json.dumps(got) + "\n")["sent"] == 1
    [again] = [raymq.ok("tail", copy, "--from", "first", "--no-follow")]
    assert again["body_base64"] == got["body_base64"]


def test_send_lines_of_standard_input(raymq: Raymq) -> None:
    topic = raymq.filled()
    output = raymq.ok("send", topic, "-t", "log", given="".join(f"line {n}\n" for n in range(2500)))
    assert output["sent"] == 2500
    assert sum(output["queues"].values()) == 2500
    assert len(bodies(raymq, topic, "--tags", "log")) == 2500
    assert bodies(raymq, topic, "--tags", "other || none") == []


def test_send_skips_empty_lines(raymq: Raymq) -> None:
    topic = raymq.filled()
    assert raymq.ok("send", topic, given="a\n\nb\r\n\n")["sent"] == 2
    assert sorted(bodies(raymq, topic)) == ["a", "b"]


def test_send_reports_messages_sent_before_a_bad_line(raymq: Raymq) -> None:
    topic = raymq.filled()
    code, out, errors = raymq.run(
        "send", topic, "--json-lines", given='{"body": "a"}\n{"body": "b"}\n{"body": ""}\n{"body": "c"}\n'
    )
    assert (code, json.loads(out)["sent"]) == (1, 2)
    assert "body is empty" in errors
    assert sorted(bodies(raymq, topic)) == ["a", "b"]


def test_topic_is_copied_through_a_pipe(raymq: Raymq) -> None:
    topic, copy = raymq.filled(9), raymq.filled()
    _, lines, _ = raymq.run("tail", topic, "--from", "first", "--no-follow")
    assert raymq.ok("send", copy, "--json-lines", given=lines)["sent"] == 9
    row = raymq.ok("message", "query", copy, "--key", "k4")[0]
    assert (row["body"], row["tags"]) == ("4", "a")


def test_tail_starts_at_the_given_position(raymq: Raymq) -> None:
    topic = raymq.filled(8)
    assert bodies(raymq, topic) == list("01234567")
    assert [row["body"] for row in raymq.ok("tail", topic, "--from", "first", "--max", "3")] == list("012")
    assert [row["body"] for row in raymq.ok("tail", topic, "--last", "2", "--no-follow")] == list("67")
    assert [
        row["body"] for row in raymq.ok("tail", topic, "--from", "-1h", "--tags", "b", "--no-follow")
    ] == list("1357")
    fifth = raymq.ok("message", "get", topic, "--queue", "a:0", "--offset", "5")
    for word in ("earliest", "Beginning", "CONSUME_FROM_FIRST_OFFSET"):
        assert len(raymq.ok("tail", topic, "--from", word, "--no-follow")) == len(
            raymq.ok("tail", topic, "--from", "first", "--no-follow")
        )
    assert raymq.run("tail", topic, "--from", "latest", "--no-follow") == (0, "", "")
    raymq.ok("group", "create", "g")
    ends = raymq.ok("offset", "reset", "g", topic, "--to", "latest", "--dry-run")
    for word in ("last", "end", "consume_from_last_offset"):
        assert raymq.ok("offset", "reset", "g", topic, "--to", word, "--dry-run") == ends
    begins = raymq.ok("offset", "reset", "g", topic, "--to", "first", "--dry-run")
    assert begins == raymq.ok("offset", "reset", "g", topic, "--to", "earliest", "--dry-run") != ends
    late = raymq.ok("tail", topic, "--from", str(fifth["store_ms"]), "--no-follow")
    assert [row["body"] for row in late][-3:] == list("567")
    assert "a:0@7" in raymq.shown("tail", topic, "--from", "first", "--no-follow")


def test_tail_selects_messages_by_sql(raymq: Raymq) -> None:
    topic = raymq.filled(8)
    assert bodies(raymq, topic, "--sql", "TAGS = 'b' AND KEYS <> 'k3'") == list("157")
    assert bodies(raymq, topic, "--sql", "region IS NOT NULL") == []
    for message in (["far", "-p", "region=x"], ["near", "-p", "region=y"]):
        raymq.ok("send", topic, *message)
    assert bodies(raymq, topic, "--sql", "region = 'x'") == ["far"]
    assert "the expression is incomplete" in raymq.refused("tail", topic, "--sql", "a >", code=2)
    assert bodies(raymq, topic, "--sql", "KEYS <> 'k3'", "--tags", "b") == list("157")


def test_tail_selects_messages_by_key_text_and_end(raymq: Raymq) -> None:
    topic = raymq.filled(8)
    assert bodies(raymq, topic, "--key", "k3") == ["3"]
    assert bodies(raymq, topic, "--contains", "5", "--tags", "b") == ["5"]
    fifth = raymq.ok("tail", topic, "--from", "first", "--no-follow", "--contains", "5")
    store_ms = (fifth if isinstance(fifth, dict) else fifth[0])["store_ms"]
    every = raymq.ok("tail", topic, "--from", "first", "--no-follow")
    before = sorted(row["body"] for row in every if row["store_ms"] < store_ms)
    for limit in ([], ["--max", "100"]):
        assert bodies(raymq, topic, "--until", str(store_ms), *limit) == before
        assert bodies(raymq, topic, "--until", "earliest", *limit) == []
    assert "give --from or --last" in raymq.refused("tail", topic, "--until", "-1h", code=2)


def test_tail_follows_until_interrupted(raymq: Raymq) -> None:
    topic = raymq.filled(1)
    command = [
        sys.executable,
        "-m",
        "cluster.cli.main",
        "tail",
        topic,
        "--from",
        "first",
        "-n",
        raymq.cluster.address,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert json.loads(tail.stdout.readline())["body"] == "0"
        raymq.ok("send", topic, "live")
        assert json.loads(tail.stdout.readline())["body"] == "live"
        tail.send_signal(signal.SIGINT)
        eventually(lambda: tail.poll() is not None)
        assert (tail.returncode, tail.stderr.read()) == (0, "")


def test_tail_into_a_closed_pipe_is_no_error(raymq: Raymq) -> None:
    topic = raymq.filled()
    raymq.ok("send", topic, given="".join(f"{n} {'x' * 200}\n" for n in range(2000)))
    tail = f"{sys.executable} -m cluster.cli.main tail {topic} --from first -n {raymq.cluster.address}"
    done = subprocess.run(
        ["bash", "-c", f"{tail} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["topic"] == topic


def test_invalid_arguments_are_reported_in_one_line(raymq: Raymq) -> None:
    topic = raymq.filled(1)
    assert "no such message" in raymq.refused("message", "get", topic, "--queue", "a:0", "--offset", "9")
    assert "--id, or --queue with --offset" in raymq.refused("message", "get", topic, code=2)
    assert "BROKER:QUEUE" in raymq.refused("send", topic, "x", "--queue", "a", code=2)
    assert "is not a valid time" in raymq.refused("tail", topic, "--from", "soon", code=2)
    assert "NAME=VALUE" in raymq.refused("send", topic, "x", "-p", "shop", code=2)
    assert "registered topic 'never-made'" in raymq.refused("topic", "stats", "never-made")
    assert "use r, w, rw or none" in raymq.refused("topic", "perm", topic, "all", code=2)
    assert "no group 'never-made'" in raymq.refused("offset", "skip", "never-made", topic, "--yes")
    assert "no group 'never-made'" in raymq.refused("offset", "show", "never-made")
    assert "`to`, or `queue` with `offset`" in raymq.refused("offset", "reset", "g", topic, code=2)
    code, _, errors = raymq.run("send", topic, "--json-lines", given='{"body": "good"}\n{"body": 5}\n')
    assert code == 2
    assert "line 2 of the input" in errors


def test_unreachable_cluster_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free_port = server.getsockname()[1]
    for command in (["topic", "list"], ["send", "t", "x"], ["tail", "t"], ["top", "--once"]):
        named = [*command, "--nameserver", f"127.0.0.1:{free_port}"]
        result = CliRunner().invoke(build(named), named)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no nameserver responded" in result.stderr
        assert result.stderr.count("\n") == 1
    named = ["topic", "list", "--nameserver", "nonsense"]
    result = CliRunner().invoke(build(named), named)
    assert (result.exit_code, result.stderr) == (
        2,
        "nameserver address 'nonsense' does not have the form host:port\n",
    )


def test_message_trace_shows_sender_and_consumer(raymq: Raymq) -> None:
    topic, trace_topic = raymq.filled(), raymq.filled()
    config = ProducerConfig(trace=True, trace_topic=trace_topic)
    with Producer(raymq.cluster.address, "shop", config=config) as producer:
        msg_id = producer.send(topic, "4 apples", tags="fruit").msg_id
    [row] = raymq.ok("message", "trace", msg_id, "--trace-topic", trace_topic)
    assert (row["event"], row["group"], row["topic"], row["tags"]) == ("Pub", "shop", topic, "fruit")
    assert "shop" in raymq.shown("message", "trace", msg_id, "--trace-topic", trace_topic)
    assert "is `trace` set in the clients?" in raymq.refused(
        "message", "trace", "missing", "--trace-topic", trace_topic
    )


def test_send_to_a_queue_that_does_not_exist_is_refused_at_once(raymq: Raymq) -> None:
    topic = raymq.filled()
    assert "'nosuch' is not in the route" in raymq.refused("send", topic, "x", "--queue", "nosuch:0", code=2)
    assert "no queue 99" in raymq.refused("send", topic, "x", "--queue", "a:99", code=2)
    assert "nosuch" in raymq.refused("message", "get", topic, "--queue", "nosuch:0", "--offset", "0", code=2)


def test_reason_of_a_body_that_cannot_be_decompressed_is_shown(raymq: Raymq) -> None:
    topic = raymq.cluster.topic(queues=1)
    send_raw(raymq.cluster, topic, [(COMPRESSED | COMPRESSION_ZLIB, b"not zlib", "KEYS\x01k\x02")])
    at = ("--queue", "a:0", "--offset", "0")
    found = raymq.ok("message", "get", topic, *at)
    assert (found["body"], bool(found["body_error"])) == ("not zlib", True)
    assert found["body_error"] in raymq.shown("message", "get", topic, *at)
    tail = ("tail", topic, "--from", "earliest", "--no-follow")
    bad, last = raymq.ok(*tail)
    assert (bad["body_error"], "body_error" in last) == (found["body_error"], False)
    assert f"[{found['body_error']}] not zlib" in raymq.shown(*tail)
    [by_key] = raymq.ok("message", "query", topic, "--key", "k")
    assert by_key == bad
    assert raymq.ok("send", topic, "--json-lines", given=json.dumps(bad))["sent"] == 1
