"""What the pages show as the address, the theme, the login and long lists change, in Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cluster.client import Admin, LiteConsumer, Producer
from cluster.control.lake_rows import LakeRow
from store.message.group_config import SubscriptionGroupConfig
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.browsers import CHROMIUM, Visitor
from tests.cluster.console.conftest import Console
from tests.eventually import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


OF_MESSAGES = (
    ("messages?topic={0}", "messages?topic={1}"), ("messages?topic={0}&key=k3", "messages?topic={0}"),
    ("messages?topic={0}&mode=key&key=k3", "messages?topic={0}&mode=key&key=k1"),
    ("messages?topic={0}", "messages"),
)  # fmt: skip
"""Addresses of a page, and those to which its address then changes."""
OF_OTHERS = (
    ("messages?topic={0}&tags=none&since=earliest", "messages?topic={0}&last=2&contains=body"),
    ("messages?topic={0}&sql=TAGS%20IS%20NULL", "messages?topic={1}&until=earliest&since=earliest"),
    ("topics", "topics?match={0}"), ("topics?system=true&page=2", "topics?sort=-queues&match=topic-"),
    ("topics/{0}", "topics/{1}"), ("topics/{0}", "topics/{0}?tab=groups"),
    ("topics/{0}?tab=settings", "topics/{0}"), ("groups", "groups?match={0}"),
    ("groups?sort=lag", "groups?system=true"), ("groups/{0}", "groups/{1}"),
    ("groups/{0}?tab=owners", "groups/{0}?tab=settings&match=retry"),
    ("dead-letters/{0}", "dead-letters/{0}?handled=true"), ("dead-letters/{1}", "dead-letters/{0}"),
    ("brokers", "brokers?match=b&sort=-id"), ("brokers/a", "brokers/b"),
    ("brokers/a?match=boot", "brokers/a?tab=settings"), ("", "overview?span=day"),
    ("clients?match=none", "clients"), ("changes?match=none", "changes"), ("nosuch", "nosuch/too"),
    ("waiting", "waiting?sort=-timers"), ("dead-letters?match=none", "dead-letters"), ("lakes", "lakes?a=b"),
)  # fmt: skip


@pytest.mark.parametrize("pairs", [OF_MESSAGES, pytest.param(OF_OTHERS, marks=pytest.mark.extended)])
def test_each_page_shows_its_address_after_it_changes(
    browser: Browser, visitor: Visitor, filled: str, cluster: Cluster, pairs: tuple[tuple[str, str], ...]
) -> None:
    """After a link, the way back or a typed address a page shows what it shows if it was opened there."""
    other = cluster.topic(queues=2)
    with Admin(cluster.address) as admin:
        admin.put_group(SubscriptionGroupConfig(other))
    visitor.console.await_sample()
    fresh = Visitor(browser.new_context().new_page(), visitor.console)

    def shown(page: Page) -> tuple[str, list[str], str]:
        """Return text without figures that change, values of the fields, and the title."""
        fields = page.locator("main input, main select").evaluate_all("all => all.map((each) => each.value)")
        return re.sub(r"[\d.,:–]+", "#", page.locator("main").inner_text()), fields, page.title()

    for pair in pairs:
        first, following = (each.format(filled, other) for each in pair)
        fresh.page.goto("about:blank")
        fresh.page.goto(f"{fresh.console.url}#/{following}")
        visitor.page.goto("about:blank")
        visitor.page.goto(f"{visitor.console.url}#/{first}")
        visitor.page.locator("main :is(h1, [role=alert])").first.wait_for()
        visitor.page.evaluate("address => { location.hash = address; }", f"#/{following}")
        found: list[Any] = []

        def is_equal(found: list[Any] = found) -> bool:
            found[:] = [shown(fresh.page), shown(visitor.page)]
            return found[0] == found[1] and "Loading…" not in found[0][0]

        try:
            eventually(is_equal)
        except AssertionError:
            pytest.fail(f"{first} → {following}: {found}")
    fresh.page.context.close()
    assert fresh.errors == []


def test_filter_that_was_typed_before_a_link_changes_no_other_page(visitor: Visitor, filled: str) -> None:
    visitor.visit("topics", "Create topic")
    visitor.page.get_by_role("searchbox", name="filter").fill("topic-")
    visitor.page.evaluate("location.hash = '#/groups'")
    visitor.page.get_by_text("Create group…").wait_for()
    visitor.page.wait_for_timeout(400)  # longer than a filter waits for more letters
    assert visitor.page.url.endswith("#/groups")


def test_old_figures_say_how_old_they_are(visitor: Visitor, filled: str) -> None:
    visitor.console.await_sample()

    def answer(route: Any) -> None:
        body = route.fetch().json()
        for rows in (body["data"].get("rows"), body["data"].get("topics"), [body["data"]]):
            for row in rows or ():
                row["stale_ms"] = 100_000
        route.fulfill(json=body)

    assert " ago" not in visitor.visit(f"topics?match={filled}", "1 match")
    visitor.page.route(re.compile("/api/v1/(topics|overview)"), answer)
    visitor.visit(f"topics?match={filled}", "1 min 40 s ago")
    visitor.visit("", "1 min 40 s ago")
    assert visitor.page.locator(".columns").get_by_text("1 min 40 s ago").count() > 0


def test_dead_letters_continue_with_older_ones(visitor: Visitor, dead: str) -> None:
    """The API answers with one of the three letters at a time."""

    def answer(route: Any) -> None:
        url = route.request.url
        route.continue_(url=f"{url}{'&' if '?' in url else '?'}limit=1")

    visitor.page.route(re.compile(f"/api/v1/dead-letters/{dead}"), answer)
    assert "1 of 3 shown, the newest first" in visitor.visit(f"dead-letters/{dead}", "1 of 3 shown")
    visitor.page.get_by_role("button", name="Continue").click()
    visitor.page.get_by_text("2 of 3 shown").wait_for()
    visitor.page.get_by_text("1 older, not shown").wait_for()
    visitor.page.get_by_role("button", name="Continue").click()
    visitor.page.get_by_role("button", name="Continue").wait_for(state="detached")
    assert visitor.page.locator("tbody tr").count() == 3
    assert "of 3 shown" not in visitor.page.locator("main").inner_text()


def test_lakes_page_shows_tables_and_dashes_for_what_is_unknown(
    browser: Browser, visitor: Visitor, consoles: Callable[..., Console], cluster: Cluster
) -> None:
    assert "Unknown here: only a console that is a process" in visitor.visit("lakes", "Unknown")
    behind = LakeRow("lake-0", "orders", 1_000, 12, 8_531_247_129_034_512_001, 61.2, 5, 2, "disk full")
    found = [behind, LakeRow("lake-1", problem="it does not respond")]
    page = Visitor(browser.new_context().new_page(), consoles(cluster, lakes=lambda: found))
    page.visit("lakes", "orders")
    known, unknown = (each.locator("td").all_inner_texts() for each in page.page.locator("tbody tr").all())
    snapshot = "8531247129034512001"  # JavaScript has no number for it
    assert known == ["orders", "lake-0", "1,000", "12", snapshot, "1 min 1 s", "5", "2", "disk full"]
    assert unknown == ["–", "lake-1", *"–" * 6, "it does not respond"]
    assert page.errors == []
    page.page.context.close()


def test_lite_topics_are_found_by_name_and_dashes_show_what_is_unknown(
    visitor: Visitor, cluster: Cluster, admin: Admin
) -> None:
    topic = f"{cluster.topic(queues=1)}-lite"
    assert "Lite topics" not in visitor.visit(f"topics/{topic.removesuffix('-lite')}", "Queues")
    admin.create_topic(topic, attributes={"message.type": "LITE", "lite.topic.expiration": "60"})
    admin.put_group(SubscriptionGroupConfig(topic, attributes={"lite.bind.topic": topic}))
    with Producer(cluster.address) as producer, LiteConsumer(cluster.address, topic, topic) as consumer:
        consumer.subscribe("session-1")
        for name in ("session-1", "session-1", "other"):
            producer.send(topic, b"x", lite_topic=name)
        facts = f"2 lite topics · expire 60 min after their last message · groups: {topic}"
        assert facts in visitor.visit(f"topics/{topic}?tab=lite", "2 rows")
        other, session = (
            each.locator("td").all_inner_texts() for each in visitor.page.locator("tbody tr").all()
        )
        assert (session[0], session[2], session[5:7]) == ("session-1", "2", ["1", "2"])
        assert (other[0], other[2], other[5:]) == ("other", "1", ["0", "–", "–"])
        visitor.page.get_by_role("searchbox", name="filter").fill("SESSION")
        visitor.page.get_by_text("1 match").wait_for()
        assert visitor.page.locator("tbody tr").count() == 1
        assert f"raymq lite list {topic} --match SESSION" in visitor.page.locator("main").inner_text()


def test_access_page_of_an_open_cluster_is_no_error(visitor: Visitor) -> None:
    text = visitor.visit("access", "access control is off")
    assert "docs/security.md" in text
    assert visitor.page.get_by_role("alert").count() == 0
    assert visitor.page.get_by_role("button", name="Create user…").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_first_press_of_the_theme_key_changes_the_colours(visitor: Visitor, scheme: Any) -> None:
    visitor.page.emulate_media(color_scheme=scheme)
    visitor.visit("topics", "Create topic")

    def colour() -> str:
        found: str = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    first = colour()
    visitor.page.keyboard.press("d")
    eventually(lambda: colour() != first)
    visitor.page.keyboard.press("d")
    eventually(lambda: colour() == first)


def test_login_page_has_no_search(browser: Browser, protected: Console) -> None:
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(protected.url)
    page.get_by_role("heading", name="Log in").wait_for()
    assert page.get_by_role("search").count() == 0
    page.locator("body").press("/")
    page.get_by_label("user").fill("root")
    page.get_by_label("secret key").fill("root-secret")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("search").wait_for()
    context.close()
    assert errors == []
