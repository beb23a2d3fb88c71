"""Dead letters, clients with their stacks, timers, and users with their rules."""

from __future__ import annotations

import pytest

from cluster.client import Message, Producer, ProducerConfig, PushConfig, PushConsumer
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import API, Console
from tests.eventually import eventually


def test_dead_letters_are_shown_resent_and_purged(console: Console, dead: str) -> None:
    letters = console.get(f"/dead-letters/{dead}")
    assert sorted(each["body"] for each in letters) == ["dead 0", "dead 1", "dead 2"]
    assert {each["origin"] for each in letters} == {dead}
    assert [each["offset"] for each in letters if each["broker"] == letters[-1]["broker"]][-1] == 0
    page = console.request("GET", f"{API}/dead-letters/{dead}?limit=2")[1]
    assert (page["data"], page["total"], page["command"].split()[1:6]) == (
        letters[:2],
        3,
        ["dlq", "list", dead, "--max", "2"],
    )
    rest = console.request("GET", f"{API}/dead-letters/{dead}?before={page['next']}")[1]
    assert (rest["data"], rest["total"], rest["next"]) == ([letters[2]], 3, None)
    letters.reverse()
    path = f"/dead-letters/{dead}"
    preview = console.send("POST", f"{path}/resend", {"message": letters[0]["id"]})
    assert preview["what"] == f"would send 1 dead letter of {dead} to the group"
    assert [each["keys"] for each in preview["rows"]] == [letters[0]["keys"]]
    assert len(console.get(path)) == 3
    console.send("POST", f"{path}/resend", {"message": letters[0]["id"], "dry_run": False})
    assert [each["id"] for each in console.get(path)] == [each["id"] for each in letters[:0:-1]]
    preview = console.send("POST", f"{path}/purge", {})
    assert preview["what"].startswith(f"would purge 2 dead letters of {dead}")
    console.send("POST", f"{path}/purge", {"dry_run": False})
    assert console.get(path) == []
    assert len(console.get(f"{path}?handled=true")) == 3


@pytest.mark.parametrize(
    ("action", "given", "status", "part"),
    [
        ("resend", {"message": "nosuch"}, 404, "has no dead letter 'nosuch'"),
        ("resend", {"to": "elsewhere"}, 400, "parameter to is 'elsewhere'"),
        ("resend", {"limit": 0}, 400, "parameter limit is 0"),
        ("purge", {"until": "soon"}, 400, "'soon' is not a valid time"),
        ("purge", {"until": "1764344566"}, 400, "1764344566 is 1970-01-21"),
        ("purge", {"unti": "now"}, 400, "parameter 'unti' is unknown"),
    ],
)
def test_invalid_requests_for_dead_letters_are_refused(
    console: Console, action: str, given: dict[str, object], status: int, part: str
) -> None:
    found, text = console.refused(f"/dead-letters/some/{action}", "POST", given)
    assert (found, part in text) == (status, True), text


def test_clients_are_listed_with_the_stacks_of_a_member(console: Console, cluster: Cluster) -> None:
    name = cluster.topic(queues=1)
    config = ProducerConfig(group="console-producers", heartbeat_ms=100)
    with Producer(cluster.address, config=config) as producer:
        producer.send(name, "x")
        member_config = PushConfig(heartbeat_ms=100)
        with PushConsumer(cluster.address, name, lambda _messages: None, config=member_config) as consumer:
            consumer.subscribe(name)

            def roles() -> set[tuple[str, str]]:
                return {(each["role"], each["group"]) for each in console.get("/clients")["clients"]}

            eventually(lambda: {("producer", "console-producers"), ("consumer", name)} <= roles())
            [member] = [each for each in console.get("/clients")["clients"] if each["group"] == name]
            client_id = member["client_id"].replace("#", "%23")
            path = f"/groups/{name}/members/{client_id}"
            eventually(lambda: {each["topic"] for each in console.get(path)["queues"]} >= {name})
            assert console.get(path)["stack"] is None
            assert "TID:" in console.get(f"{path}?stack=true")["stack"]
    status, text = console.refused(f"/groups/{name}/members/nosuch")
    assert (status, "no member 'nosuch'" in text) == (404, True)


def test_pending_timers_are_counted_by_topic(console: Console, cluster: Cluster) -> None:
    name = cluster.topic(queues=1)
    with Producer(cluster.address, group="console-test") as producer:
        producer.send(Message(name, b"later", delay_ms=3_600_000))
    eventually(lambda: sum(console.get(f"/brokers/{each}/timers").get(name, 0) for each in "ab") == 1)


def test_users_and_rules_are_changed_without_showing_secrets(protected: Console) -> None:
    given = {"user": "alice", "secret": "alice-secret"}
    preview = protected.send("POST", "/users", given)
    assert (preview["what"], "alice-secret" in str(preview)) == ("would create user alice", False)
    assert [each["user"] for each in protected.get("/users")] == ["root"]
    protected.send("POST", "/users", {**given, "dry_run": False})
    rule = {"resources": ["Topic:orders"], "actions": ["Pub"]}
    preview = protected.send("POST", "/users/alice/rules", rule)
    assert preview["what"] == "would allow alice Pub on Topic:orders, instead of 0 earlier rules"
    assert protected.get("/rules") == []
    protected.send("POST", "/users/alice/rules", {**rule, "dry_run": False})
    [found] = protected.get("/rules")
    assert [found[name] for name in ("user", "resource", "actions", "decision")] == [
        "alice", "Topic:orders", ["Pub"], "Allow",
    ]  # fmt: skip
    protected.send("DELETE", "/users/alice/rules?resource=Topic:orders&dry_run=false")
    assert protected.get("/rules") == []
    protected.send("DELETE", "/users/alice?dry_run=false")
    assert [each["user"] for each in protected.get("/users")] == ["root"]
    changes = protected.get("/changes")
    assert len(changes) == 4
    assert "alice-secret" not in str(changes)
    status, text = protected.refused("/users", "POST", {"user": "bob", "dry_run": False})
    assert (status, "give a secret key" in text) == (400, True)
