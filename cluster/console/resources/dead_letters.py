"""Resources of dead letters: counts, the letters of a group, and their resending and purging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError
from cluster.console.resources.messages import Bodies, shown_message
from cluster.console.routes import ListPart, Name, Prepared, Short, plan, route
from cluster.counted import counted
from cluster.views import dead_letters as views
from cluster.views.dead_letters import DeadLetter, DeadLetterCount
from cluster.views.times import parse_time_ms
from store.plausible_time import date_of

Shown = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
Before = Annotated[str, msgspec.Meta(max_length=65_536)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_SHOWN = ("store_ms", "broker", "queue", "offset", "origin", "tags", "keys")


class DeadLetterResources:
    """The dead letters."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    @route("GET", "/dead-letters", "dlq list")
    def groups(self, admin: Admin) -> Sequence[DeadLetterCount]:
        """Return the groups with dead letters. Raises ClientError."""
        return views.dead_letter_counts(admin)

    @route(
        "GET",
        "/dead-letters/{group}",
        "dlq list {group} --max={limit} --before={before} {handled?--all}",
        is_search=True,
    )
    def letters(
        self, admin: Admin, group: Name, limit: Shown = 200, before: Before | None = None,
        handled: bool = False,
    ) -> ListPart[Mapping[str, Any]]:  # fmt: skip
        """Return the newest dead letters of a group, or those older than `before`. Raises ClientError."""
        page = views.dead_letter_page(admin, group, limit, before, include_handled=handled)
        return ListPart([self._row(each) for each in page.letters], page.total, page.before)

    @route(
        "POST", "/dead-letters/{group}/resend", "dlq resend {group} --to={to} --id={message} --max={limit}"
    )
    def resend(
        self, admin: Admin, group: Name, to: Literal["group", "topic"] = "group", message: Name | None = None,
        limit: Limit = 1_000,
    ) -> Prepared:  # fmt: skip
        """Send the oldest pending dead letters again, or the one with an id. Raises ClientError, ApiError."""
        if message is None:
            found = views.dead_letters(admin, group, limit)
        else:
            found = views.dead_letters_with_id(admin, group, message)
            if not found:
                what = f"group {group!r} has no dead letter {message[:80]!r}"
                raise ApiError(404, what, "Choose one of its page.")
        rows = [{name: self._row(each).get(name) for name in _SHOWN} for each in found]
        target = "the group" if to == "group" else "their topics, so all groups receive them"
        send = partial(admin.resend_dead_letters, group, [each.message for each in found], to=to)
        return plan("send", f"{counted(len(found), 'dead letter')} of {group} to {target}", send, rows)

    @route("POST", "/dead-letters/{group}/purge", "dlq purge {group} --until={until}")
    def purge(self, admin: Admin, group: Name, until: Short | None = None) -> Prepared:
        """Mark pending dead letters as handled, all or those stored before a time. Raises ClientError."""
        until_ms = None if until is None else parse_time_ms(until)
        count = admin.purge_dead_letters(group, until_ms, dry_run=True)
        before = "" if until_ms is None else f" stored before {date_of(until_ms)}"
        kept = f"dead letters of {group}{before}; they stay readable until their log file is deleted"
        purge = partial(admin.purge_dead_letters, group, until_ms)
        return Prepared(f"would purge {count} {kept}", purge, lambda number: f"purged {number} {kept}")

    def _row(self, letter: DeadLetter) -> dict[str, Any]:
        return shown_message(letter.message, self._bodies) | {"origin": letter.origin}
