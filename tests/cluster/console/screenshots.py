"""The pictures of docs/console.md, of a cluster with a shop's messages.

uv run python -m tests.cluster.console.screenshots docs/images
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.client import Admin, Message, Producer, PushConsumer, reconsume_later
from tests.cluster.client.conftest import Cluster
from tests.cluster.console.conftest import FAILING, Console
from tests.cluster.console.test_browser import CHROMIUM, Visitor
from tests.eventually import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

SECONDS = 75
TOPICS = {"orders": 4, "payments": 4, "shipments": 2, "stock-levels": 8, "audit": 1}
TAGS = ("created", "paid", "cancelled")
SIZE = {"width": 1280, "height": 800}
SHORT = {"timers", "clients", "brokers", "changes"}
"""Pages with a few rows here."""


class Shop(threading.Thread):
    """Sends messages at a rate that rises and falls, until it is stopped."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.is_over = threading.Event()

    def run(self) -> None:
        choose = random.Random(7)
        with Producer(self._address, group="shop") as producer:
            number = 0
            while not self.is_over.wait(0.02 + 0.02 * (time.monotonic() % 20 > 10)):
                number += 1
                body = f'{{"order": {number}, "amount": {choose.randint(5, 900)}, "currency": "EUR"}}'
                tag, topic = choose.choice(TAGS), choose.choices(list(TOPICS), (8, 5, 3, 2, 1))[0]
                producer.send(topic, body, tags=tag, keys=f"order-{number}")
                if number == 1:
                    producer.send(Message("orders", b"{}", delay_ms=3_600_000))


def picture(page: Page, folder: Path, name: str) -> None:
    page.wait_for_timeout(500)
    height = SIZE["height"] // 2 if name in SHORT else SIZE["height"]
    page.set_viewport_size({**SIZE, "height": height})
    page.screenshot(path=folder / f"console-{name}.png")
    page.set_viewport_size(SIZE)


def take(visitor: Visitor, folder: Path) -> None:
    page = visitor.page
    for name, address, shown in (
        ("overview", "", "Busiest topics"),
        ("topics", "topics?sort=-put_tps", "Create topic"),
        ("owners", "groups/billing?tab=owners", "generation"),
        ("dead-letters", "dead-letters/fraud-check", "shown"),
        ("timers", "waiting", "Timers of a by topic"),
        ("clients", "clients", "billing"),
        ("brokers", "brokers", None),
        ("changes", "changes", "created group audit-log"),
    ):
        visitor.visit(address, shown)
        picture(page, folder, name)
    visitor.visit("groups/reports", "Reset…")
    page.get_by_role("button", name="Reset…").click()
    page.locator("dialog[open] select").first.select_option("orders")
    page.locator("dialog[open]").get_by_placeholder("earliest, latest").fill("earliest")
    page.get_by_role("button", name="Preview").click()
    page.locator("dialog[open] .preview").wait_for()
    picture(page, folder, "group")
    visitor.visit("messages?topic=orders&sql=TAGS = 'paid'", "found")
    page.locator("button.cell").nth(2).click()
    page.locator(".detail").wait_for()
    picture(page, folder, "messages")
    visitor.visit("brokers/b", "Figures")
    visitor.change("Drain…")
    page.get_by_text("raymq broker drain b --show").wait_for()
    picture(page, folder, "drain")


def main(folder: Path) -> None:
    """Run the shop, and write the pictures to a folder."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as running, tempfile.TemporaryDirectory() as root:
        cluster = Cluster(Path(root))
        running.callback(cluster.stop)
        cluster.await_registration()
        with Admin(cluster.address) as admin:
            for topic, queues in TOPICS.items():
                admin.create_topic(topic, queues=queues)
        console = Console(cluster, sample_interval_ms=1_000)
        running.callback(console.stop)
        console.send("POST", "/topics", {"topic": "returns", "queues": 4, "dry_run": False})
        console.send("POST", "/groups", {"group": "audit-log", "dry_run": False})
        shop = Shop(cluster.address)
        shop.start()
        for group, topic in (("billing", "payments"), ("warehouse", "shipments"), ("billing", "payments")):
            member = running.enter_context(PushConsumer(cluster.address, group, lambda _messages: None))
            member.subscribe(topic)
        fail = reconsume_later(-1)
        with PushConsumer(cluster.address, "fraud-check", lambda _messages: fail, config=FAILING) as failing:
            failing.subscribe("payments", "cancelled")
            eventually(lambda: len(console.get("/dead-letters/fraud-check")) > 8)
        with PushConsumer(cluster.address, "reports", lambda _messages: None) as reports:
            reports.subscribe("orders")
            shop.is_over.wait(SECONDS / 3)
        shop.is_over.wait(SECONDS)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            take(Visitor(page, console), folder)
            browser.close()
        shop.is_over.set()
        shop.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
