"""The web console of a RocketMQ cluster: each page says what it knows, and what RocketMQ cannot tell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster.client import Admin, Producer, PushConfig, PushConsumer, reconsume_later
from tests.cluster.console.conftest import Console
from tests.compat.build import JavaKit
from tests.compat.rocketmq import BROKER_NAME, RocketMQ
from tests.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.extended]

FAILING = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)
SETTINGS = {
    "autoCreateTopicEnable": "false", "enablePropertyFilter": "true", "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "3600000",
}  # fmt: skip
MESSAGES = 6
BROKER = f"/brokers/{BROKER_NAME}"


@pytest.fixture(scope="module")
def rocketmq(kit: JavaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    with RocketMQ(kit, tmp_path_factory.mktemp("rocketmq"), SETTINGS, heap="512m") as started:
        yield started


@pytest.fixture(scope="module")
def console(rocketmq: RocketMQ) -> Iterator[Console]:
    made = Console(nameservers=[rocketmq.nameserver_address])
    yield made
    made.stop()


@pytest.fixture(scope="module")
def consumed(rocketmq: RocketMQ, console: Console) -> Iterator[str]:
    """Return a topic whose messages the group `billing` fails to consume."""
    console.send("POST", "/topics", {"topic": "orders", "queues": 2, "dry_run": False})
    console.send("POST", "/groups", {"group": "billing", "dry_run": False})
    send(rocketmq, *(f"body {number}" for number in range(MESSAGES)))
    address = rocketmq.nameserver_address
    with PushConsumer(address, "billing", lambda _messages: reconsume_later(-1), config=FAILING) as member:
        member.subscribe("orders")
        eventually(lambda: console.get("/dead-letters") == [{"group": "billing", "dead_letters": MESSAGES}])
        eventually(lambda: console.get("/groups/billing")["details"]["lag"] == 0)
        yield "orders"


def send(rocketmq: RocketMQ, *bodies: str) -> None:
    with Producer(rocketmq.nameserver_address, group="console") as producer:
        for number, body in enumerate(bodies):
            producer.send("orders", body, tags="ab"[number % 2], keys=f"k{number}")


def changed(console: Console, path: str, body: dict[str, Any], method: str = "POST") -> tuple[str, str]:
    """Return the sentences of the preview and of the change."""
    if method == "DELETE":
        applied = path + ("&" if "?" in path else "?") + "dry_run=false"
        return console.send(method, path)["what"], console.send(method, applied)["what"]
    return (
        console.send(method, path, body)["what"],
        console.send(method, path, body | {"dry_run": False})["what"],
    )


def test_lists_show_what_rocketmq_reports_and_null_for_the_rest(console: Console, consumed: str) -> None:
    overview = console.await_sample(lambda found: found["lag"] == 0 and found["in_tps"] is not None)
    assert (overview["in_flight"], overview["brokers_up"], overview["notices"]) == (None, 1, [])
    [broker] = console.get("/brokers")
    assert (broker["load"]["version"], broker["problem"]) == ("V5_3_3", None)
    assert broker["load"]["dead_letters"] is broker["load"]["pending_timers"] is None
    [row] = eventually(lambda: [each for each in console.get("/topics")["rows"] if each["messages"]])
    assert (row["topic"], row["messages"], row["lag"]) == (consumed, MESSAGES, 0)
    [row] = console.get("/groups")["rows"]
    assert (row["group"], row["lag"], row["in_flight"]) == ("billing", 0, None)
    [client] = console.get("/clients")["clients"]
    assert (client["role"], client["group"]) == ("consumer", "billing")
    assert console.get(f"{BROKER}/timers") == {}
    assert console.get(BROKER)["settings"]["enablePropertyFilter"] == "true"


def test_pages_of_topic_and_group_show_queues_and_members(console: Console, consumed: str) -> None:
    page = console.get(f"/topics/{consumed}")
    assert [each["group"] for each in page["groups"]] == ["billing"]
    assert (page["messages"], len(page["progress"]["queues"])) == (MESSAGES, 2)
    page = console.get("/groups/billing")
    assert {(each["topic"], each["in_flight"]) for each in page["details"]["queues"]} == {(consumed, 0)}
    [member] = page["details"]["members"]
    owners = [each for each in console.get("/groups/billing/owners") if each["topic"] == consumed]
    assert [(each["owner"], each["generation"]) for each in owners] == [(member["client_id"], None)] * 2
    state = console.get(f"/groups/billing/members/{member['client_id']}?stack=true")
    assert {each["topic"] for each in state["queues"]} >= {consumed}


@pytest.mark.parametrize(
    ("condition", "count"),
    [("", MESSAGES), ("tags=a", 3), ("sql=TAGS%20%3D%20'b'", 3), ("contains=body%203", 1), ("key=k5", 1)],
)
def test_messages_are_searched(console: Console, consumed: str, condition: str, count: int) -> None:
    found = console.get(f"/topics/{consumed}/messages?since=earliest&{condition}")
    assert (len(found["messages"]), found["scanned"]) == (count, MESSAGES)


def test_message_is_found_by_id_and_key(console: Console, consumed: str) -> None:
    first = console.get(f"/topics/{consumed}/messages?since=earliest")["messages"][0]
    for name in ("id", "unique_key"):
        assert console.get(f"/topics/{consumed}/messages/{first[name]}") == [first]
    assert console.get(f"/topics/{consumed}/keys?key={first['keys']}") == [first]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{BROKER}/drain"), ("POST", f"{BROKER}/drain"), ("POST", f"{BROKER}/restart"),
        ("GET", "/users"), ("GET", "/rules"), ("POST", "/users"), ("DELETE", "/users/bob"),
        ("POST", "/users/bob/rules"), ("DELETE", "/users/bob/rules?resource=Topic:orders"),
    ],
)  # fmt: skip
def test_pages_that_rocketmq_lacks_say_so_in_a_sentence(console: Console, method: str, path: str) -> None:
    bodies = {
        "/users": {"user": "bob", "secret": "secret"},
        "/users/bob/rules": {"resources": ["*"], "actions": ["Pub"]},
    }
    status, text = console.refused(path, method, bodies.get(path, {}) if method == "POST" else None)
    assert (status, "access control" in text) in ((409, True), (501, False)), text
    assert "This needs brokers of RayMQ" in text or "authenticationMetadataProvider" in text
    assert "Exception" not in text
    assert "org.apache" not in text


def test_dead_letters_are_resent_and_purged(rocketmq: RocketMQ, console: Console, consumed: str) -> None:
    send(rocketmq, "again")
    letters = eventually(lambda: console.get("/dead-letters/billing"))
    one = {"message": letters[0]["id"]}
    preview, done = changed(console, "/dead-letters/billing/resend", one)
    assert (preview, done) == (
        "would send 1 dead letter of billing to the group",
        "sent 1 dead letter of billing to the group",
    )
    eventually(lambda: letters[0]["id"] not in {each["id"] for each in console.get("/dead-letters/billing")})
    eventually(lambda: console.get("/dead-letters/billing"))
    assert changed(console, "/dead-letters/billing/purge", {})[1].startswith("purged ")


def test_groups_and_topics_are_changed_after_previews(
    rocketmq: RocketMQ, console: Console, consumed: str
) -> None:
    member = console.get("/groups/billing")["details"]["members"][0]["client_id"]
    assert member in console.refused("/groups/billing", "DELETE")[1]
    assert "0 messages consumed again" in changed(console, "/groups/billing/skip", {"topic": consumed})[0]
    assert changed(console, "/groups/billing/clone", {"target": "copy"})[1].startswith("copied the offsets")
    with Admin(rocketmq.nameserver_address) as admin:
        assert admin.committed_offsets("copy", consumed) == admin.end_offsets(consumed)
    for path, name in (("/topics", "topic"), ("/groups", "group")):
        gone, made = f"{path}/short-lived", f"{name} short-lived"
        assert changed(console, path, {name: "short-lived"})[0].startswith(f"would create {made}")
        preview, done = changed(console, gone, {}, "DELETE")
        assert preview.startswith(f"would delete {made}")
        assert done.startswith(f"deleted {made}")


def test_broker_is_changed_after_previews(console: Console) -> None:
    for value in ("73", "72"):
        setting = {"settings": {"fileReservedTime": value}}
        assert changed(console, f"{BROKER}/settings", setting)[1] == f"changed 1 setting of {BROKER_NAME}"
        assert console.get(BROKER)["settings"]["fileReservedTime"] == value
    for is_writable, state in ((False, "not writable"), (True, "writable")):
        preview, done = changed(console, f"{BROKER}/writable", {"writable": is_writable})
        assert f"would be {state} in " in preview
        assert f"is {state} in " in done
