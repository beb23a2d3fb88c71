"""The API: what it returns, its commands, and a sentence for each bad input."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin, MessageQueue, Producer
from cluster.console.resources import messages
from cluster.console.resources.overview import TOP
from cluster.console.sampler import figures
from cluster.views.warnings import notices
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console
from tests.eventually import eventually


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Return a topic with six messages in its queues of broker a and b."""
    name = cluster.topic(queues=1)
    with Producer(cluster.address, group="console-test") as producer:
        for number in range(6):
            producer.send(name, f"body {number}", tags="ab"[number % 2], keys=f"k{number}")
    return name


@pytest.fixture
def group(admin: Admin, topic: str) -> str:
    """Return a group that has consumed one message of the topic."""
    admin.commit_offsets(f"of-{topic}", {MessageQueue(topic, "a", 0): 1})
    return f"of-{topic}"


def test_each_resource_names_a_command_that_succeeds(console: Console, topic: str, group: str) -> None:
    found = console.get(f"/topics/{topic}/messages?last=10")["messages"][0]
    paths = [
        "/overview", "/history", "/topics", "/topics?system=true&sort=-queues", f"/topics/{topic}", "/groups",
        f"/groups/{group}", f"/groups/{group}/owners", "/brokers", "/brokers/a",
        f"/topics/{topic}/messages?last=10&tags=a",
        f"/topics/{topic}/messages/{found['unique_key']}", f"/topics/{topic}/messages/{found['id']}",
        f"/topics/{topic}/keys?key=k1",
    ]  # fmt: skip
    for path in paths:
        status, body, _ = console.request("GET", f"{API}{path}")
        assert status == 200, body
        words = shlex.split(body["command"])
        assert words[0] == "raymq"
        result = CliRunner().invoke(build(words[1:]), words[1:])
        assert result.exit_code == 0, (body["command"], result.output)


def test_topic_page_has_queues_groups_and_settings(console: Console, topic: str, group: str) -> None:
    console.await_sample()
    page = console.get(f"/topics/{topic}")
    assert page["messages"] == 6
    assert [(each["broker"], each["queue"]) for each in page["progress"]["queues"]] == [("a", 0), ("b", 0)]
    assert [each["broker"] for each in page["details"]["brokers"]] == ["a", "b"]
    [of_group] = page["groups"]
    assert (of_group["group"], of_group["lag"]) == (group, page["progress"]["queues"][0]["max_offset"] - 1)
    [row] = console.get(f"/topics?match={topic}")["rows"]
    assert (row["messages"], row["lag"]) == (6, of_group["lag"])


def test_highest_lags_are_shown_first_and_the_highest_of_a_topic(
    own_cluster: Cluster, consoles: Callable[..., Console]
) -> None:
    topic = own_cluster.topic(queues=1)
    with Producer(own_cluster.address, group="console-test") as producer:
        sent = [producer.send(topic, f"body {number}", sharding_key="one queue") for number in range(12)]
    with Admin(own_cluster.address) as admin:
        for committed in (7, 3, 10, 1, 8, 5, 2, 9, 6, 4):  # neither by name nor by lag
            admin.commit_offsets(f"g{12 - committed:02}", {sent[0].queue: committed})
    console = consoles(own_cluster)
    overview = console.await_sample(lambda overview: len(overview["groups"]) == TOP)
    assert [each["lag"] for each in overview["groups"]] == [11, 10, 9, 8, 7, 6, 5, 4]
    [row] = console.get(f"/topics?match={topic}")["rows"]
    assert row["lag"] == 11


def test_group_page_has_lag_per_queue_and_times(console: Console, topic: str, group: str) -> None:
    page = console.get(f"/groups/{group}")
    [queue] = [each for each in page["details"]["queues"] if each["topic"] == topic]
    assert (queue["broker"], queue["committed"], queue["lag"]) == ("a", 1, queue["end"] - 1)
    assert {each["broker"] for each in page["retained"] if each["topic"] == topic} == {"a", "b"}
    assert page["details"]["members"] == []


def test_queues_without_members_have_no_owner(console: Console, admin: Admin, group: str) -> None:
    assert console.get(f"/groups/{group}/owners") == []
    assert console.refused("/groups/nosuch/owners")[0] == 404


def test_unknown_progress_is_null_and_never_zero(console: Console, admin: Admin) -> None:
    from store.message.group_config import SubscriptionGroupConfig

    admin.put_group(SubscriptionGroupConfig("never-consumed"))
    [row] = console.get("/groups?match=never-consumed")["rows"]
    assert [row[name] for name in ("lag", "in_flight", "tps", "behind_ms")] == [None] * 4
    [row] = [
        each for each in console.get("/topics?system=true&size=500")["rows"] if each["topic"] == "TBW102"
    ]
    assert (row["messages"], row["put_tps"]) == (None, None)


def test_lists_are_filtered_sorted_and_cut_by_the_server(console: Console, cluster: Cluster) -> None:
    names = sorted(cluster.topic(queues=queues) for queues in (1, 3, 2))
    listed = console.get("/topics?match=topic-&sort=-topic&size=2&page=1")
    assert listed["total"] >= 3
    everything = console.get("/topics?match=topic-&sort=topic&size=500")["rows"]
    assert [each["topic"] for each in listed["rows"]] == [each["topic"] for each in everything][:-3:-1]
    assert set(names) <= {each["topic"] for each in everything}
    assert console.get("/topics?match=NOTHING-LIKE-THIS")["rows"] == []


def test_oldest_search_cannot_be_continued_over_the_limit(
    cluster: Cluster, consoles: Callable[..., Console], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "CURSORS", replace(messages.CURSORS, limit=1))
    console = consoles(cluster)
    first, second = (
        console.get(f"/topics/{topic}/messages?since=earliest&limit=2")["cursor"] for _ in range(2)
    )
    assert console.refused(f"/topics/{topic}/messages?limit=50&cursor={first}")[0] == 410
    assert console.get(f"/topics/{topic}/messages?limit=50&cursor={second}")["stopped"] is None


def test_search_says_what_it_did_not_scan_and_continues(console: Console, topic: str) -> None:
    first = console.get(f"/topics/{topic}/messages?since=earliest&limit=2")
    assert (len(first["messages"]), first["total"]) == (2, 6)
    assert first["stopped"] == "2 messages were found"
    assert first["scanned"] < 6
    rest = console.get(f"/topics/{topic}/messages?limit=50&cursor={first['cursor']}")
    assert rest["stopped"] is None
    assert first["scanned"] + rest["scanned"] == 6
    bodies = {each["body"] for each in (*first["messages"], *rest["messages"])}
    assert bodies == {f"body {number}" for number in range(6)}


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("tags=a", {0, 2, 4}), ("contains=body%203", {3}), ("key=k5", {5}), ("tags=a&key=k1", set()),
        ("sql=TAGS%20%3D%20'b'", {1, 3, 5}), ("sql=nosuch%20%3E%201", set()),
    ],
)  # fmt: skip
def test_search_selects_by(console: Console, topic: str, condition: str, numbers: set[int]) -> None:
    found = console.get(f"/topics/{topic}/messages?since=earliest&{condition}")
    assert {int(each["body"][5:]) for each in found["messages"]} == numbers
    assert found["scanned"] == 6


def test_tail_returns_only_new_messages(console: Console, cluster: Cluster, topic: str) -> None:
    begin = console.get(f"/topics/{topic}/messages?since=latest&follow=true")
    assert (begin["messages"], begin["total"]) == ([], 0)
    with Producer(cluster.address, group="console-test") as producer:
        producer.send(topic, "new")
    found = console.get(f"/topics/{topic}/messages?follow=true&cursor={begin['cursor']}")
    assert [each["body"] for each in found["messages"]] == ["new"]


@pytest.mark.parametrize(("bodies", "shown"), [("masked", "body…"), ("hidden", None)])
def test_bodies_are_hidden_and_not_searched(
    consoles: Callable[..., Console], cluster: Cluster, topic: str, bodies: str, shown: str | None
) -> None:
    console = consoles(cluster, bodies=bodies)
    found = console.get(f"/topics/{topic}/messages?since=earliest")["messages"]
    assert {each["body"] for each in found} == {shown}
    assert {each["body_bytes"] for each in found} == {6}
    [whole] = console.get(f"/topics/{topic}/messages/{found[0]['unique_key']}")
    assert (whole["body"], "body_base64" in whole) == (shown, False)
    status, text = console.refused(f"/topics/{topic}/messages?contains=body")
    assert (status, f"bodies are {bodies}" in text) == (403, True)


BAD: list[tuple[str, int, str]] = [
    ("/topics?nosuch=1", 400, "parameter 'nosuch' is unknown here"),
    ("/topics?page=x", 400, "parameter page is 'x'"),
    ("/topics?page=0", 400, "parameter page is '0'"),
    ("/topics?size=501", 400, "parameter size is '501'"),
    ("/topics?page=1&page=2", 400, "a parameter is given twice"),
    ("/topics?sort=nosuch", 400, "sort is 'nosuch'"),
    ("/overview?x=1", 400, "there are no parameters here"),
    ("/history?span=year", 400, "parameter span is 'year'"),
    ("/topics/nosuch", 404, "topic 'nosuch'"),
    ("/groups/nosuch", 404, "group 'nosuch' does not exist"),
    ("/brokers/nosuch", 400, "no broker nosuch in the cluster"),
    ("/nosuch", 404, "/api/v1/nosuch does not exist"),
    ("/topics/{topic}/messages/nosuch", 404, "has no message 'nosuch'"),
    ("/topics/{topic}/messages/7F00000100002A9F0000000000000000", 400, "not in this cluster"),
    ("/topics/{topic}/messages?since=yesterday", 400, "'yesterday' is not a valid time"),
    ("/topics/{topic}/messages?since=1764344566", 400, "1764344566 is 1970-01-21 10:05:44 UTC"),
    ("/topics/{topic}/messages?sql=a%20%3E", 400, "the SQL92 expression 'a >' is invalid"),
    ("/topics/{topic}/messages?cursor=nosuch", 410, "'nosuch' is no longer known"),
    ("/topics/{topic}/messages?follow=true&until=latest", 400, "exclude each other"),
    ("/topics/{topic}/messages?limit=501", 400, "parameter limit is '501'"),
    ("/topics/" + "x" * 300, 400, "parameter topic is 'xxx"),
    ("/topics/a%00b", 404, "a"),
]


@pytest.mark.parametrize(("path", "status", "part"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_with_a_sentence(
    console: Console, topic: str, path: str, status: int, part: str
) -> None:
    found, text = console.refused(path.replace("{topic}", topic))
    assert (found, part in text) == (status, True), text
    assert "Traceback" not in text


def test_long_expression_is_refused_by_its_length(console: Console, topic: str) -> None:
    status, text = console.refused(f"/topics/{topic}/messages?sql={'a' * 100_001}")
    assert (status, "parameter sql is 'aaa" in text, len(text) < 300) == (400, True, True), text
    status, text = console.refused(f"/topics/{topic}/messages?sql={'a' * 100_000}")
    assert (status, "has 100,000 characters, over the limit of 8,192" in text) == (400, True), text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"{}", b'{"topic": 7}', b'{"topic": "t", "x": 1}']
)
def test_invalid_bodies_are_refused(console: Console, body: bytes) -> None:
    assert console.refused("/topics", "POST", body)[0] == 400


def test_large_body_is_refused(console: Console) -> None:
    assert console.refused("/topics", "POST", b"x" * (2 << 20))[0] == 413


def test_nameserver_that_is_gone_is_a_sentence(consoles: Callable[..., Console], cluster: Cluster) -> None:
    console = consoles(cluster, nameservers=["127.0.0.1:1"])
    for path in ("/topics", "/overview"):
        status, text = console.refused(path)
        assert (status, "127.0.0.1:1" in text, "Start a nameserver" in text) == (502, True, True)
    sample = eventually(lambda: console.service.sampler.last if console.service.sampler.samples else None)
    assert (sample.brokers, sample.groups, figures(sample)) == (None, None, (None,) * 6)
    assert any("127.0.0.1:1" in each.text for each in notices(sample, sample.at_ms))


def test_broker_that_is_down_leaves_the_others_visible(
    consoles: Callable[..., Console], own_cluster: Cluster
) -> None:
    cluster = own_cluster
    console = consoles(cluster)
    console.await_sample(lambda overview: overview["brokers_up"] == 2)
    cluster.stop_broker("b")
    overview = console.await_sample(lambda overview: overview["brokers_up"] == 1)
    up = {each["broker"]: each["load"] is not None for each in overview["brokers"]}
    assert up == {"a": True, "b": False}
    assert any("b" in each["text"] and "no longer registered" in each["text"] for each in overview["notices"])
    assert overview["in_tps"] is None  # the rate of b is unknown, so the sum is too


def test_openapi_document_describes_every_resource(console: Console) -> None:
    status, document, _ = console.request("GET", f"{API}/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    operations = {
        (method, path): each for path, row in document["paths"].items() for method, each in row.items()
    }
    assert len(operations) >= 20
    references = set(_references(document))
    assert references <= set(document["components"]["schemas"])
    for (method, path), operation in operations.items():
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path
        assert ("requestBody" in operation) == (method == "post")
        is_change = method != "get"
        assert ("dry_run" in str(operation.get("requestBody", operation["parameters"]))) == is_change


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].rpartition("/")[2]] if "$ref" in value else []
        return own + [each for inner in value.values() for each in _references(inner)]
    return [each for inner in value for each in _references(inner)] if isinstance(value, list) else []
