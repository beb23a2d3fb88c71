"""Each change has a preview that changes nothing, and is recorded with its user and its command."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Admin, MessageQueue, Producer
from store.message.group_config import SubscriptionGroupConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"write-{next(_numbers)}"


@pytest.fixture
def consumed(cluster: Cluster, admin: Admin, name: str) -> str:
    """Return a topic of one queue on each broker with ten messages; the group of its name consumed 2 on a."""
    admin.create_topic(name, queues=1)
    admin.put_group(SubscriptionGroupConfig(name))
    with Producer(cluster.address, group="console-test") as producer:
        for number in range(10):
            producer.send(name, f"{number}", queue=MessageQueue(name, "a", 0))
    admin.commit_offsets(name, {MessageQueue(name, "a", 0): 2})
    return name


def committed(admin: Admin, group: str) -> dict[str, int | None]:
    return {queue.broker_name: at for queue, at in admin.committed_offsets(group, group).items()}


def applied(console: Console, method: str, path: str, **given: Any) -> tuple[Any, Any]:
    """Return the preview and the result of a change; the preview is the default."""
    if method == "DELETE":
        return console.send(method, path), console.send(method, f"{path}?dry_run=false")
    preview = console.send(method, path, given)
    return preview, console.send(method, path, {**given, "dry_run": False})


def test_topic_is_created_changed_and_deleted(console: Console, admin: Admin, name: str) -> None:
    preview = console.send("POST", "/topics", {"topic": name, "queues": 3})
    assert (preview["what"], preview["done"]) == (f"would create topic {name} on a, b", False)
    assert name not in admin.topics()
    _, done = applied(console, "POST", "/topics", topic=name, queues=3)
    assert (done["what"], done["done"]) == (f"created topic {name} on a, b", True)
    assert [each.write_queue_nums for each in admin.topic_configs(name).values()] == [3, 3]
    preview, done = applied(console, "POST", "/topics", topic=name, perm="r")
    assert {"setting": "permission", "before": "rw", "after": "r"} in preview["rows"]
    assert [(each.write_queue_nums, each.perm) for each in admin.topic_configs(name).values()] == [(3, 4)] * 2
    preview, done = applied(console, "DELETE", f"/topics/{name}")
    assert preview["what"] == f"would delete topic {name}: 0 messages in 6 queues"
    assert name not in admin.topics()


def test_group_is_created_changed_and_deleted(console: Console, admin: Admin, name: str) -> None:
    preview, done = applied(console, "POST", "/groups", group=name, max_retries=3)
    assert (preview["what"], done["what"]) == (f"would create group {name}", f"created group {name}")
    _, done = applied(console, "POST", "/groups", group=name, enabled=False)
    assert (admin.groups()[name].retry_max_times, admin.groups()[name].consume_enable) == (3, False)
    preview, _ = applied(console, "DELETE", f"/groups/{name}")
    assert preview["what"] == f"would delete group {name}"
    assert name not in admin.groups()


@pytest.mark.parametrize(
    ("given", "offset", "words"),
    [
        ({"to": "earliest"}, 0, "2 messages consumed again, 0 skipped"),
        ({"to": "2026-11-20T12:00:00+00:00"}, 0, "to 2026-11-20 12:00:00 UTC in "),
        ({"to": "latest"}, 10, "0 messages consumed again, 8 skipped"),
        ({"queue": "a:0", "offset": 5}, 5, "0 messages consumed again, 3 skipped"),
        ({"queue": "a:0", "to": "latest"}, 10, "8 skipped"),
    ],
)
def test_offsets_are_reset(
    console: Console, admin: Admin, consumed: str, given: dict[str, Any], offset: int, words: str
) -> None:
    path = f"/groups/{consumed}/offsets"
    preview = console.send("POST", path, {"topic": consumed, **given})
    assert words in preview["what"]
    assert committed(admin, consumed)["a"] == 2
    done = console.send("POST", path, {"topic": consumed, **given, "dry_run": False})
    assert done["rows"] == preview["rows"]
    assert committed(admin, consumed)["a"] == offset


def test_messages_are_skipped_and_offsets_cloned(console: Console, admin: Admin, consumed: str) -> None:
    console.send("POST", "/groups", {"group": f"{consumed}-2", "dry_run": False})
    path = f"/groups/{consumed}/clone"
    preview, _ = applied(console, "POST", path, target=f"{consumed}-2", topic=consumed)
    assert [each["after"] for each in preview["rows"] if each["broker"] == "a"] == [2]
    assert admin.committed_offsets(f"{consumed}-2", consumed)[MessageQueue(consumed, "a", 0)] == 2
    applied(console, "POST", f"/groups/{consumed}/skip", topic=consumed)
    assert committed(admin, consumed)["a"] == 10


def test_live_setting_is_changed(console: Console, admin: Admin) -> None:
    before = admin.broker_config("a")["fileReservedTime"]
    path, given = "/brokers/a/settings", {"settings": {"fileReservedTime": "47"}}
    preview = console.send("POST", path, given)
    assert preview["rows"] == [{"setting": "fileReservedTime", "before": before, "after": "47"}]
    assert admin.broker_config("a")["fileReservedTime"] == before
    console.send("POST", path, {**given, "dry_run": False})
    assert admin.broker_config("a")["fileReservedTime"] == "47"
    admin.change_broker_config("a", {"fileReservedTime": before})


def test_writes_to_a_broker_are_refused_and_allowed(console: Console, admin: Admin, consumed: str) -> None:
    def is_writable() -> bool:
        return any(queue.broker_name == "b" for queue in admin.route(consumed).keyed)

    preview = console.send("POST", "/brokers/b/writable", {"writable": False})
    assert (preview["what"].startswith("b would be not writable in "), is_writable()) == (True, True)
    console.send("POST", "/brokers/b/writable", {"writable": False, "dry_run": False})
    assert not is_writable()
    console.send("POST", "/brokers/b/writable", {"writable": True, "dry_run": False})
    assert is_writable()


def test_broker_is_drained_and_the_drain_cancelled(console: Console, admin: Admin, consumed: str) -> None:
    def state() -> tuple[str, str]:
        return console.get("/brokers/a/drain")["state"], admin.broker_runtime("a")["drainState"]

    preview = console.send("POST", "/brokers/a/drain", {})
    assert "a would be not writable, refuse sends once" in preview["what"]
    assert {"group": consumed, "members": 0, "unread": 8} in preview["rows"]
    assert state() == ("active", "active")
    try:
        done = console.send("POST", "/brokers/a/drain", {"dry_run": False})
        assert done["what"].startswith("a is being drained and waits: ")
        assert "active" not in state()
    finally:
        preview, done = applied(console, "POST", "/brokers/a/drain", cancel=True)
    assert (preview["what"], done["what"]) == ("a would be writable again", "a is not being drained")
    assert state() == ("active", "active")
    assert "raymq broker drain a --cancel" in console.get("/changes")[0]["command"]


def test_changes_are_recorded_with_command_and_failure(console: Console, admin: Admin, name: str) -> None:
    console.send("POST", "/topics", {"topic": name, "queues": 2})
    assert name not in str(console.get("/changes"))
    console.send("POST", "/topics", {"topic": name, "queues": 2, "dry_run": False})
    [record] = [each for each in console.get("/changes") if name in each["what"]]
    words = shlex.split(record["command"])
    assert words[:6] == ["raymq", "topic", "create", name, "--queues", "2"]
    assert record["failed"] is None
    assert CliRunner().invoke(build(words[1:]), words[1:]).exit_code == 0
    console.refused("/groups/nosuch/skip", "POST", {"group": "nosuch", "topic": name, "dry_run": False})
    assert "'nosuch' does not exist" in console.get("/changes")[0]["failed"]


REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/topics", {"topic": "a b"}, 400, "contains characters other than"),
    ("/topics", {"topic": "ok", "queues": 0}, 400, "parameter queues is 0"),
    ("/topics", {"topic": "ok", "queues": "3"}, 400, "parameter queues is '3'"),
    ("/topics", {"topic": "ok", "perm": "x"}, 400, "parameter perm is 'x'"),
    ("/topics", {"queues": 3}, 400, "missing required field `topic`"),
    ("/groups", {"group": "ä"}, 400, "contains characters other than"),
    ("/groups/nosuch/offsets", {"topic": "t", "to": "earliest"}, 404, "topic 't'"),
    ("/groups/nosuch/skip", {"topic": "TBW102"}, 404, "group 'nosuch' does not exist"),
    ("/groups/nosuch/clone", {"target": "x"}, 404, "group 'nosuch' does not exist"),
    ("/groups/g/offsets", {"topic": "t", "to": "1764344566"}, 400, "1764344566 is 1970-01-21"),
    ("/groups/g/offsets", {"topic": "t"}, 400, "a target is required"),
    ("/groups/g/offsets", {"topic": "t", "offset": 3}, 400, "an offset is one of a queue"),
    ("/groups/g/offsets", {"topic": "t", "offset": 3, "queue": "a"}, 400, "'a' is not a queue"),
    ("/groups/g/offsets", {"topic": "TBW102", "to": "earliest", "queue": "a:999"}, 400, "has no queue a:999"),
    ("/brokers/nosuch/settings", {"settings": {"x": "1"}}, 400, "no broker nosuch"),
    ("/brokers/a/settings", {"settings": {"nosuch": "1"}}, 400, "has no setting 'nosuch'"),
    ("/brokers/a/restart", {}, 409, "broker a is not an actor of Ray"),
    ("/brokers/nosuch/restart", {}, 400, "no broker nosuch"),
    ("/brokers/nosuch/drain", {}, 400, "no broker nosuch"),
    ("/brokers/a/drain", {"cancel": "yes"}, 400, "parameter cancel is 'yes'"),
    ("/brokers/a/settings", {"settings": {}}, 400, "parameter settings is {}"),
]


@pytest.mark.parametrize(("path", "given", "status", "part"), REFUSED, ids=lambda value: str(value)[:40])
def test_invalid_changes_are_refused_at_the_preview(
    console: Console, path: str, given: dict[str, Any], status: int, part: str
) -> None:
    found, text = console.refused(path, "POST", given)
    assert (found, part in text) == (status, True), text


def test_read_only_console_previews_and_refuses_changes(
    consoles: Callable[..., Console], cluster: Cluster, admin: Admin, name: str
) -> None:
    console = consoles(cluster, read_only=True)
    document = console.request("GET", f"{API}/openapi.json")[1]
    writes = [(method, path) for path, row in document["paths"].items() for method in row if method != "get"]
    assert console.send("POST", "/topics", {"topic": name})["done"] is False
    status, text = console.refused("/topics", "POST", {"topic": name, "dry_run": False})
    assert (status, "read-only" in text) == (403, True)
    assert name not in admin.topics()
    assert len(writes) >= 8
    values: dict[str, Any] = {
        "resources": ["a"],
        "actions": ["a"],
        "settings": {"fileReservedTime": "1"},
        "writable": False,
        "dry_run": False,
    }
    for method, path in writes:
        where = re.sub(r"{\w+}", "a", path.removeprefix(API))
        schema = document["paths"][path][method].get("requestBody")
        if schema is None:
            required = [
                each["name"] for each in document["paths"][path][method]["parameters"] if each["required"]
            ]
            query = "".join(f"&{name}=a" for name in required if f"{{{name}}}" not in path)
            status, text = console.refused(f"{where}?dry_run=false{query}", method.upper())
        else:
            fields = schema["content"]["application/json"]["schema"]["required"]
            given = {field: values.get(field, "a") for field in fields} | {"dry_run": False}
            status, text = console.refused(where, method.upper(), given)
        assert (status, "read-only" in text) == (403, True), (method, path, text)
