""" "Same on the command line": each resource names a command that uses all of its conditions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin, MessageQueue, Producer
from cluster.console.routes import Route
from store.message.group_config import SubscriptionGroupConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console

OF_PAGES = {"page", "size", "sort", "cursor", "follow", "dry_run", "span"}
"""Parameters of what a page shows at once: a command prints all rows."""
NO_COMMAND = {"/clients", "/changes"}
VALUES = {"handled": True, "system": True, "stack": True, "last": 17, "limit": 17}
WORDS = {"handled": "--all", "system": "--system", "stack": "--stack", "last": "17", "limit": "17"}


def run(command: str) -> list[Any]:
    """Run a command with --json and return its rows."""
    words = [*shlex.split(command)[1:], "--json"]
    result = CliRunner().invoke(build(words), words)
    assert result.exit_code == 0, (command, result.output)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0] if len(lines) == 1 and isinstance(lines[0], list) else lines


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    """Return a topic with 60 messages in four queues, stored in at least three milliseconds."""
    name = cluster.topic(queues=2)
    with Admin(cluster.address) as admin:
        admin.put_group(SubscriptionGroupConfig(name))
    with Producer(cluster.address, group="console-test") as producer:
        queues = [MessageQueue(name, broker, queue) for broker in "ab" for queue in (0, 1)]
        for number in range(60):
            body, tags = f"body {number}", "abc"[number % 3]
            keys = f"k{number % 7} --last"
            producer.send(
                name, body, tags=tags, keys=keys, properties={"n": str(number)}, queue=queues[number % 4]
            )
    return name


def searches() -> Iterator[str]:
    yield from ("", "last=3", "since=earliest", "since=-1h", "last=3&tags=a", "since=earliest&limit=7")
    yield from ("since=earliest&key=k3", "since=earliest&contains=y%201", "since=earliest&sql=n%20%3E%2055")
    yield from ("since=earliest&tags=a%20||%20b&sql=n%20%3C%209&key=k1", "last=5&contains=5&tags=c&limit=2")
    yield from ("since=earliest&key=--last&limit=20", "since=latest", "since=earliest&contains=%22%20'$(x)")
    yield from ("since=earliest&until={middle}", "last=4&until={middle}&tags=b", "until={middle}&limit=9")
    yield from ("since=-1h&until=-30m", "since=earliest&until=latest&key=k2&contains=body")


@pytest.mark.parametrize("search", searches())
def test_command_of_a_search_prints_the_rows_of_the_page(console: Console, topic: str, search: str) -> None:
    everything = console.get(f"/topics/{topic}/messages?since=earliest&limit=500")["messages"]
    given = search.format(middle=everything[30]["store_ms"])
    status, found, _ = console.request("GET", f"{API}/topics/{topic}/messages?{given}")
    assert status == 200, found
    rows = run(found["command"])
    assert [each["id"] for each in rows] == [each["id"] for each in found["data"]["messages"]]


def test_command_of_a_continued_search_prints_all_its_rows(console: Console, topic: str) -> None:
    path = f"{API}/topics/{topic}/messages?since=earliest&tags=a&limit=8"
    ids: list[str] = []
    cursor = ""
    for _ in range(3):
        found = console.request("GET", f"{path}{cursor}")[1]
        ids += [each["id"] for each in found["data"]["messages"]]
        cursor = f"&cursor={found['data']['cursor']}"
    assert found["data"]["stopped"] is None
    assert sorted(each["id"] for each in run(found["command"])) == sorted(ids)


@pytest.mark.parametrize("kind", ["topics", "groups"])
def test_command_of_a_filtered_list_prints_its_rows(console: Console, topic: str, kind: str) -> None:
    status, found, _ = console.request("GET", f"{API}/{kind}?match={topic.upper()}&size=500")
    assert status == 200
    rows = [each[kind[:-1]] for each in run(found["command"])]
    assert rows == [topic] == [each[kind[:-1]] for each in found["data"]["rows"]]


def test_each_condition_of_a_resource_is_in_its_command(console: Console) -> None:
    """Parameters that select rows; a command without one of them would show other rows."""
    routes = [each for each in console.service.routes if each.method == "GET" and each.path not in NO_COMMAND]
    assert len(routes) > 15
    for route in routes:
        for name in route.parameters.__struct_fields__:
            if name not in OF_PAGES:
                assert WORDS.get(name, "x-1") in route.command_line(_given(route, name), "n"), (
                    route.path,
                    name,
                )


def _given(route: Route, name: str) -> dict[str, Any]:
    """Return parameters of a route of which one has a value."""
    given: dict[str, Any] = dict.fromkeys(route.parameters.__struct_fields__)
    return given | {
        "follow": False,
        "handled": False,
        "system": False,
        "stack": False,
        name: VALUES.get(name, "x-1"),
    }
