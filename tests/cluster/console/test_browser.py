"""The pages in Chromium: they load without errors, show what the API returns, and change the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cluster.client import Admin, MessageQueue, Producer
from store.message.group_config import SubscriptionGroupConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.browsers import CHROMIUM, Visitor
from tests.cluster.console.conftest import Console
from tests.eventually import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "<img src=x onerror=\"document.title='hacked'\">'\"&{{7*7}}\u202e\x1b[2J"
"""A text that would run a script, or mislead the reader, if it were not shown as text."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


def test_each_page_loads_without_errors(visitor: Visitor, filled: str) -> None:
    visitor.console.await_sample()
    for address, shown in (
        ("", "Busiest topics"),
        ("topics", "Create topic"),
        (f"topics/{filled}", "6 messages stored"),
        (f"topics/{filled}?tab=groups", filled),
        (f"topics/{filled}?tab=settings", "write queues"),
        ("groups", "Create group"),
        (f"groups/{filled}", "lag 4"),
        (f"groups/{filled}?tab=members", "no member is online"),
        (f"groups/{filled}?tab=owners", "no queue has been assigned"),
        (f"groups/{filled}?tab=settings", "retryMaxTimes"),
        (f"messages?topic={filled}", "scanned 6 of 6"),
        (f"messages?topic={filled}&mode=key&key=k3", "body 3"),
        ("dead-letters", "failed to consume"),
        (f"dead-letters/{filled}", "no dead letter is pending"),
        ("waiting", "Timers of a by topic"),
        ("clients", "connected"),
        ("brokers", "dead letters"),
        ("brokers/a", "brokerVersionDesc"),
        ("brokers/a?tab=settings", "fileReservedTime"),
        ("changes", "made through this console"),
    ):
        text = visitor.visit(address, shown)
        assert "hacked" not in text
        if address != "changes":
            assert "same on the command line" in text, address


def test_topic_is_created_and_deleted_after_a_preview(visitor: Visitor, admin: Admin) -> None:
    visitor.visit("topics", "Create topic")
    preview, done = visitor.change("Create topic…", {"name": "from-browser", "queues on each broker": "2"})
    assert (preview, done) == (
        "would create topic from-browser on a, b",
        "created topic from-browser on a, b",
    )
    assert [each.write_queue_nums for each in admin.topic_configs("from-browser").values()] == [2, 2]
    visitor.visit("topics/from-browser", "4 queues")
    preview, _ = visitor.change("Delete…")
    assert preview == "would delete topic from-browser: 0 messages in 4 queues"
    eventually(lambda: "from-browser" not in admin.topics())


def test_message_with_a_hostile_body_is_shown_as_text(visitor: Visitor, cluster: Cluster) -> None:
    name = cluster.topic(queues=1)
    with Producer(cluster.address, group="browser") as producer:
        producer.send(
            name, HOSTILE, tags=HOSTILE[:40], keys="<b>key</b>", properties={"<i>p</i>": HOSTILE[:60]}
        )
    visitor.visit(f"messages?topic={name}&since=earliest", "1 found")
    page = visitor.page
    assert page.locator("main img").count() == 0
    assert "\\u{202e}" in page.locator("td.body").inner_text()
    page.locator("button.cell").click()
    detail = page.locator(".detail")
    detail.wait_for()
    assert HOSTILE[:20] in detail.inner_text()
    assert "\\u{1b}" in detail.inner_text()
    assert detail.locator("img, b b, i i").count() == 0
    assert page.title() == "Messages · RayMQ"


@pytest.mark.extended
def test_group_is_changed_after_previews(visitor: Visitor, admin: Admin, filled: str) -> None:
    def committed() -> int | None:
        return admin.committed_offsets(filled, filled)[MessageQueue(filled, "a", 0)]

    visitor.visit(f"groups/{filled}", "lag 4")
    preview, _ = visitor.change("Reset…", {"to": "earliest"})
    assert "2 messages consumed again" in preview
    assert committed() == 0
    visitor.change("Skip…", {"topic": filled})
    assert committed() == 6
    visitor.change("Clone…", {"to the group": f"{filled}-2"})
    visitor.visit(f"groups/{filled}", "lag 0")
    visitor.change("Change…", {"retries before a message is a dead letter": "3"})
    assert admin.groups()[filled].retry_max_times == 3
    preview, _ = visitor.change("Delete…")
    assert preview == f"would delete group {filled}"
    eventually(lambda: filled not in admin.groups())


@pytest.mark.extended
def test_broker_is_changed_after_previews(visitor: Visitor, admin: Admin) -> None:
    visitor.visit("brokers/a", "brokerVersionDesc")
    preview, _ = visitor.change("Change setting…", {"setting": "fileReservedTime", "value": "49"})
    assert preview == "would change 1 setting of a"
    assert admin.broker_config("a")["fileReservedTime"] == "49"
    assert "not writable" in visitor.change("Stop writes…")[1]
    assert "a is writable" in visitor.change("Allow writes…")[1]
    assert visitor.page.get_by_role("button", name="Restart…").is_enabled()
    assert "a is being drained and waits: " in visitor.change("Drain…")[1]
    visitor.page.get_by_text("raymq broker drain a --show").wait_for()
    assert visitor.change("Cancel drain…") == ("a would be writable again", "a is not being drained")
    assert visitor.page.get_by_role("button", name="Drain…", exact=True).is_enabled()
    assert "fileReservedTime=49" in visitor.visit("changes", "fileReservedTime=49")


@pytest.mark.extended
def test_users_and_rules_are_changed_after_previews(browser: Browser, protected: Console) -> None:
    context = browser.new_context()
    visitor = Visitor(context.new_page(), protected)
    visitor.page.goto(f"{protected.url}#/access")
    visitor.page.get_by_label("user").fill("root")
    visitor.page.get_by_label("secret key").fill("root-secret")
    visitor.page.get_by_role("button", name="Log in").click()
    visitor.page.get_by_text("Create user…").wait_for()
    secret = {"name": "alice", "secret key": "alice-secret"}
    assert visitor.change("Create user…", secret) == ("would create user alice", "created user alice")
    rule = {"resources": "Topic:orders Topic:bills", "actions": "Pub, Sub"}
    rules = "alice Pub, Sub on Topic:orders, Topic:bills, instead of 0 earlier rules"
    assert visitor.change("add rule…", rule, row="alice") == (f"would allow {rules}", f"allow {rules}")
    denied = visitor.change(
        "add rule…", {"resources": "Topic:bills", "actions": "Pub", "deny": "yes"}, row="alice"
    )
    assert denied[0] == "would deny alice Pub on Topic:bills, instead of 1 earlier rules"
    assert visitor.change("change…", {"enabled": "no"}, row="alice")[0] == "would change user alice"
    assert protected.get("/users")[0]["status"] == "disable"
    visitor.visit("access?tab=rules", "Topic:bills")
    deleted = visitor.change("delete…", row="Topic:orders")
    assert deleted[0] == "would delete the rule of alice for Topic:orders"
    found = [(each["resource"], each["decision"]) for each in protected.get("/rules")]
    assert found == [("Topic:bills", "Deny")]
    visitor.visit("access", "root")
    assert visitor.change("delete…", row="alice")[0] == "would delete user alice and 1 rule"
    assert [each["user"] for each in protected.get("/users")] == ["root"]
    assert "alice-secret" not in visitor.visit("changes", "made through this console")
    context.close()
    assert visitor.errors == []


@pytest.mark.extended
def test_dead_letters_are_resent_and_purged_after_previews(
    visitor: Visitor, console: Console, admin: Admin, dead: str
) -> None:
    visitor.visit(f"dead-letters/{dead}", "3 shown")
    [letter] = [each for each in console.get(f"/dead-letters/{dead}") if each["keys"] == "d1"]
    preview, done = visitor.change("resend…", {"send to": "topic"}, row="dead 1")
    target = f"1 dead letter of {dead} to their topics, so all groups receive them"
    assert (preview, done) == (f"would send {target}", f"sent {target}")
    visitor.page.get_by_text("2 shown").wait_for()
    assert sum(admin.end_offsets(dead).values()) == 4
    assert letter["id"] not in {each["id"] for each in console.get(f"/dead-letters/{dead}")}
    old = visitor.change("Purge…", {"only those stored before": "-1d"})
    assert old[0].startswith(f"would purge 0 dead letters of {dead}")
    preview, done = visitor.change("Purge…", {"only those stored before": ""})
    assert preview.startswith(f"would purge 2 dead letters of {dead}")
    assert done.startswith(f"purged 2 dead letters of {dead}")
    visitor.page.get_by_text("no dead letter is pending").wait_for()
    visitor.page.get_by_role("button", name="show handled ones").click()
    visitor.page.get_by_text("3 shown").wait_for()


@pytest.mark.extended
def test_hostile_names_are_shown_as_text_on_every_page(visitor: Visitor, filled: str) -> None:
    """A broker could return any name, so the responses of the API are replaced by hostile ones."""

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: poisoned(each) for name, each in value.items()}
        if isinstance(value, list):
            return [poisoned(each) for each in value]
        return HOSTILE if isinstance(value, str) else value

    def answer(route: Any) -> None:
        body = route.fetch().json()
        route.fulfill(json=poisoned(body))

    visitor.page.route("**/api/v1/**", lambda route: answer(route))
    visitor.page.route("**/api/v1/session", lambda route: route.continue_())
    for address in (
        "", "topics", "topics/TBW102", "groups", f"groups/{filled}", f"groups/{filled}?tab=owners", "brokers",
        "brokers/a", "changes", "messages?topic=TBW102", "dead-letters", f"dead-letters/{filled}", "waiting",
    ):  # fmt: skip
        visitor.visit(address)
        visitor.page.get_by_text("<img src=x").locator("visible=true").first.wait_for()
        assert visitor.page.locator("main img").count() == 0, address
        assert visitor.page.title().endswith("· RayMQ"), address


@pytest.mark.extended
def test_five_thousand_topics_are_usable(
    browser: Browser, consoles: Callable[..., Console], own_cluster: Cluster
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from cluster.client.errors import ClientError

    def create(first: int) -> None:
        with Admin(own_cluster.address) as admin:
            for number in range(first, first + 500):
                try:
                    admin.create_topic(f"many-{number:05}", queues=1, brokers=["a"])
                except ClientError:
                    admin.create_topic(f"many-{number:05}", queues=1, brokers=["a"])

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(create, range(0, 5_000, 500)))
    console = consoles(own_cluster)
    context = browser.new_context()
    visitor = Visitor(context.new_page(), console)
    visitor.visit("topics?match=many", "5,000 match")
    assert visitor.page.locator("tbody tr").count() == 50
    visitor.page.get_by_role("button", name="next page").click()
    visitor.page.get_by_text("many-00050").wait_for()
    visitor.page.get_by_role("searchbox", name="filter").fill("many-04999")
    visitor.page.get_by_text("1 match").wait_for()
    visitor.visit("", "Busiest topics")
    context.close()
    assert visitor.errors == []


@pytest.mark.extended
def test_two_thousand_groups_are_usable(
    browser: Browser, consoles: Callable[..., Console], own_cluster: Cluster
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def create(first: int) -> None:
        with Admin(own_cluster.address) as admin:
            for number in range(first, first + 200):
                admin.put_group(SubscriptionGroupConfig(f"many-{number:04}"))
                admin.commit_offsets(f"many-{number:04}", {queue: number % 7})

    queue = MessageQueue(own_cluster.topic(queues=1), "a", 0)
    with Producer(own_cluster.address, group="browser") as producer:
        for _ in range(9):
            producer.send(queue.topic, "body", queue=queue)
    with ThreadPoolExecutor(10) as threads:
        list(threads.map(create, range(0, 2_000, 200)))
    console = consoles(own_cluster)
    context = browser.new_context()
    visitor = Visitor(context.new_page(), console)
    visitor.visit("groups?match=many", "2,000 match")
    assert visitor.page.locator("tbody tr").count() == 50
    visitor.page.get_by_role("button", name="next page").click()
    visitor.page.get_by_text("many-0050").wait_for()
    visitor.page.get_by_role("button", name="lag", exact=True).click()
    visitor.page.locator("th[aria-sort=descending]").wait_for()
    visitor.page.get_by_text("many-0007").wait_for()
    assert [each["lag"] for each in console.get("/groups?sort=-lag&size=2")["rows"]] == [9, 9]
    visitor.page.get_by_role("searchbox", name="filter").fill("many-1999")
    visitor.page.get_by_text("1 match").wait_for()
    assert "many-1999" in visitor.page.locator("tbody").inner_text()
    visitor.visit("groups/many-1999", "Reset…")
    visitor.visit(f"topics/{queue.topic}?tab=groups", "2,000 rows")
    visitor.visit("clients", "connected")
    visitor.visit("", "Highest lag")
    context.close()
    assert visitor.errors == []


@pytest.mark.extended
def test_lost_console_is_a_sentence_on_the_page(
    browser: Browser, consoles: Callable[..., Console], cluster: Cluster
) -> None:
    console = consoles(cluster, nameservers=["127.0.0.1:1"])
    context = browser.new_context()
    visitor = Visitor(context.new_page(), console)
    visitor.page.goto(f"{console.url}#/topics")
    visitor.page.get_by_text("Start a nameserver").wait_for()
    visitor.page.goto(f"{console.url}#/nosuch/page")
    visitor.page.get_by_text("There is no page nosuch/page").wait_for()
    visitor.page.goto(f"{console.url}#/topics/%E0%A4%A")
    visitor.page.get_by_role("alert").wait_for()
    context.close()
