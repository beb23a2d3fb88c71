"""Resources of messages: by id, by key, and a bounded search that says what it did not read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from actors.bounds import AtLimit, Bound, Newest, Use
from cluster.client import Admin, MessageExt, MessageQueue
from cluster.console.api_errors import ApiError
from cluster.console.routes import Name, Short, route
from cluster.views.messages import find_messages, message_json
from cluster.views.scan import ScanLimits, ScanResult, matcher, scan, search_range
from store.common.clock import Clock

Bodies = Literal["shown", "masked", "hidden"]
BODY_CHARACTERS_MAX = 65_536
"""Characters of a body in a list; a single message has its whole body."""
MASKED_CHARACTERS = 4
CURSORS: Final = Bound("console_cursors", 200, AtLimit.EVICT, "Positions at which searches have stopped.")
Words = Annotated[str, msgspec.Meta(max_length=8_192)]
Sql = Annotated[str, msgspec.Meta(max_length=100_000)]
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=8_192)]
Last = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
Keyed = Annotated[int, msgspec.Meta(ge=1, le=64)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=500)]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        messages: The messages, by store time.
        scanned: Number of messages read.
        total: Number of messages in the range of the search.
        unreadable: Number of messages of the range that were deleted meanwhile.
        stopped: Why the search stopped before the end of its range; None if it read everything.
        cursor: Continues the search.
    """

    messages: Sequence[Mapping[str, Any]]
    scanned: int
    total: int
    unreadable: int
    stopped: str | None
    cursor: str


def _search_command(given: Mapping[str, Any]) -> str:
    """Return the command with the same rows; if a search is continued, with the rows of all its parts."""
    begin = "--last={last}" if given["since"] is None else "--from={since}"
    conditions = "--until={until} --tags={tags} --sql={sql} --key={key} --contains={contains}"
    limit = "" if given["follow"] or given["cursor"] else "--max={limit}"
    return f"tail {{topic}} {begin} {conditions} {limit} {{follow?:--no-follow}}"


class MessageResources:
    """Messages."""

    def __init__(self, clock: Clock, bodies: Bodies) -> None:
        self._clock = clock
        self._bodies = bodies
        self._cursors = Newest[str, tuple[str, ScanResult, Mapping[MessageQueue, int]]](CURSORS)
        """Topic, result and ends of searches that have stopped, by the name of the cursor."""

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._cursors.use(),)

    @route("GET", "/topics/{topic}/messages/{message}", "message get {topic} --id={message}", is_search=True)
    def message(self, admin: Admin, topic: Name, message: Name) -> Sequence[Mapping[str, Any]]:
        """Return the message with an id, with its whole body. Raises ClientError, ApiError."""
        found = find_messages(admin, topic, message)
        if not found:
            remedy = "Check the topic; ids are those of the producer or of the broker."
            raise ApiError(404, f"topic {topic!r} has no message {message[:80]!r}", remedy)
        return [shown_message(each, self._bodies, whole=True) for each in found]

    @route("GET", "/topics/{topic}/keys", "message query {topic} --key={key} --max={limit}", is_search=True)
    def by_key(self, admin: Admin, topic: Name, key: Key, limit: Keyed = 32) -> Sequence[Mapping[str, Any]]:
        """Return the messages with a key, from the brokers' index. Raises ClientError."""
        found = admin.messages_by_key(topic, key, max_messages=limit)
        return [shown_message(each, self._bodies) for each in found]

    @route("GET", "/topics/{topic}/messages", _search_command, is_search=True)
    def search(
        self, admin: Admin, topic: Name, since: Short | None = None, until: Short | None = None,
        last: Last = 50, tags: Words | None = None, sql: Sql | None = None, key: Words | None = None,
        contains: Words | None = None, limit: Limit = 50, follow: bool = False, cursor: Short | None = None,
    ) -> SearchResult:  # fmt: skip
        """Search messages, at most 20,000 and 5 s.

        It begins at `since` (earliest, latest or a time), or with the `last` messages of each queue; or it
        continues at a `cursor`. With `follow` it ends at the present end. Raises ClientError, ApiError.
        """
        if contains and self._bodies != "shown":
            cause = f"bodies are {self._bodies} here, and a search would reveal them"
            raise ApiError(403, cause, "Search by key, tag or property.")
        if follow and until is not None:
            raise ApiError(400, "`follow` and `until` exclude each other", "Omit one of them.")
        keep = matcher(tags=tags, sql=sql, key=key, contains=contains)
        if cursor is not None:
            of_topic, before, ends = self._cursors.get(cursor) or ("", None, {})
            if before is None or of_topic != topic:
                raise ApiError(410, f"the cursor {cursor!r} is no longer known", "Start the search again.")
            begins, ends = before.positions, admin.end_offsets(topic) if follow else ends
        else:
            begins, ends = search_range(admin, topic, since, until, last)
        result = scan(admin, begins, ends, keep, ScanLimits(found=limit), self._clock)
        messages = [shown_message(each, self._bodies) for each in result.messages]
        kept = secrets.token_urlsafe(12)
        self._cursors[kept] = (topic, result, ends)
        return SearchResult(messages, result.scanned, result.total, result.unreadable, result.stopped, kept)


def shown_message(message: MessageExt, bodies: Bodies, *, whole: bool = False) -> dict[str, Any]:
    """Return a message as JSON values, with as much of its body as `bodies` permits.

    The body of a list is cut to BODY_CHARACTERS_MAX, unless `whole`.
    """
    found = message_json(message) | {"body_bytes": len(message.body)}
    text = found.get("body", found.get("body_base64", ""))
    if bodies != "shown":
        found.pop("body_base64", None)
        found["body"] = None if bodies == "hidden" else f"{text[:MASKED_CHARACTERS]}…"
        found["bodies"] = bodies
    elif not whole and len(text) > BODY_CHARACTERS_MAX:
        name = "body" if "body" in found else "body_base64"
        found[name] = text[:BODY_CHARACTERS_MAX]
        found["is_cut"] = True
    return found
