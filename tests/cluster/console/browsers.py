"""A visitor of the console: a page in Chromium that counts its errors."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.eventually import LIMIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.cluster.console.conftest import Console

CHROMIUM = shutil.which("chromium")


class Visitor:
    """A browser's page, and the errors that it reported."""

    def __init__(self, page: Page, console: Console) -> None:
        self.page = page
        self.console = console
        self.errors: list[str] = []
        page.set_default_timeout(LIMIT_S * 1000)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))

    def visit(self, address: str, shown: str | None = None) -> str:
        """Open a page, wait until it shows `shown` or its heading, and return its text."""
        self.page.goto(f"{self.console.url}#/{address}")
        main = self.page.locator("main")
        (main.get_by_text(shown) if shown is not None else main.locator("h1")).first.wait_for()
        return self.page.locator("main").inner_text()

    def change(
        self, button: str, fields: dict[str, str] | None = None, row: str | None = None
    ) -> tuple[str, str]:
        """Press a button, of a row or of the page, fill in the form of its dialog, confirm.

        Returns preview and result.
        """
        place = self.page if row is None else self.page.locator("tbody tr", has_text=row)
        place.get_by_role("button", name=button).click()
        dialog = self.page.locator("dialog[open]")
        for title, value in (fields or {}).items():
            heading = self.page.locator(f"span:text-is('{title}')")
            field = dialog.locator(".field", has=heading).locator("input, select")
            is_choice = field.evaluate("each => each.tagName") == "SELECT"
            field.select_option(value) if is_choice else field.fill(value)
        if fields:
            dialog.get_by_role("button", name="Preview").click()
        preview = dialog.locator(".preview")
        preview.wait_for()
        text = preview.inner_text()
        dialog.get_by_role("button", name="Confirm").click()
        done = dialog.locator(".done")
        done.wait_for()
        result = done.inner_text()
        dialog.get_by_role("button", name="Close").click()
        return text, result
