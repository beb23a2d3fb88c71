"""Resources of dead letters: counts, the letters of a group, and their resending and purging."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from cluster.client import Admin
from cluster.console.api_errors import ApiError
from cluster.console.resources.messages import Bodies, shown
from cluster.console.resources.topics import Name
from cluster.console.routes import Change, NoParameters, Parameters, Route, Write, option
from cluster.views import dead_letters as views
from cluster.views.dead_letters import DeadLetter, DeadLetterCount
from cluster.views.times import parse_time_ms

Limit = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_SHOWN = ("store_ms", "broker", "queue", "offset", "origin", "tags", "keys")


class LettersParameters(Parameters, frozen=True):
    """The oldest dead letters of a group, at most `limit` of each broker; with `all` also handled ones."""

    group: Name
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    all: bool = False


class ResendLetters(Write, frozen=True, kw_only=True):
    """Send the oldest pending dead letters again, or the one with an id: to the group, or to their topic."""

    group: Name
    to: Literal["group", "topic"] = "group"
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    limit: Limit = 1_000


class PurgeLetters(Write, frozen=True, kw_only=True):
    """Mark the pending dead letters as handled; with `until` only those stored before this time."""

    group: Name
    until: Annotated[str, msgspec.Meta(max_length=40)] | None = None


class DeadLetterResources:
    """The dead letters."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        return (
            Route(
                "GET", "/dead-letters", lambda admin, _given: views.dead_letter_counts(admin), NoParameters,
                Sequence[DeadLetterCount], "Groups with dead letters.", lambda _given: ("dlq", "list"),
            ),
            Route(
                "GET", "/dead-letters/{group}", self.letters, LettersParameters, Sequence[Mapping[str, Any]],
                "Dead letters of a group.",
                lambda given: (
                    "dlq", "list", given.group, "--max", str(given.limit), "--all" if given.all else None,
                ),
            ),
            Route(
                "POST", "/dead-letters/{group}/resend", self.resend, ResendLetters, Change,
                "Send dead letters again.",
                lambda given: (
                    "dlq", "resend", given.group, "--to", given.to, *option("--id", given.id),
                    *option("--max", None if given.id else given.limit),
                ),
            ),
            Route(
                "POST", "/dead-letters/{group}/purge", self.purge, PurgeLetters, Change, "Purge letters.",
                lambda given: ("dlq", "purge", given.group, *option("--until", given.until)),
            ),
        )  # fmt: skip

    def letters(self, admin: Admin, given: LettersParameters) -> Sequence[Mapping[str, Any]]:
        """Return dead letters. Raises ClientError."""
        return [
            self._row(each)
            for each in views.dead_letters(admin, given.group, given.limit, include_handled=given.all)
        ]

    def resend(self, admin: Admin, given: ResendLetters) -> Change:
        """Send dead letters again. Raises ClientError, ApiError."""
        if given.id is None:
            found = views.dead_letters(admin, given.group, given.limit)
        else:
            found = views.dead_letters_with_id(admin, given.group, given.id)
            if not found:
                raise ApiError(
                    404,
                    f"group {given.group!r} has no dead letter {given.id[:80]!r}",
                    "Choose one of its page.",
                )
        rows = [{name: self._row(each).get(name) for name in _SHOWN} for each in found]
        target = "the group" if given.to == "group" else "their topics, so all groups receive them"
        what = f"{len(found)} dead letters of {given.group} to {target}"
        if given.dry_run:
            return Change(f"would send {what}", rows)
        admin.resend_dead_letters(given.group, [each.message for each in found], to=given.to)
        return Change(f"sent {what}", rows, done=True)

    def purge(self, admin: Admin, given: PurgeLetters) -> Change:
        """Mark dead letters as handled. Raises ClientError."""
        until_ms = None if given.until is None else parse_time_ms(given.until)
        count = admin.purge_dead_letters(given.group, until_ms, dry_run=given.dry_run)
        kept = "they stay readable until their log file is deleted"
        verb = "would purge" if given.dry_run else "purged"
        return Change(f"{verb} {count} dead letters of {given.group}; {kept}", done=not given.dry_run)

    def _row(self, letter: DeadLetter) -> dict[str, Any]:
        return shown(letter.message, self._bodies) | {"origin": letter.origin}
