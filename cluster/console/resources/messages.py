"""Resources of messages: by id, by key, and a bounded search that says what it did not read."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from cluster.client import Admin, MessageExt, MessageQueue
from cluster.console.api_errors import ApiError
from cluster.console.resources.topics import Name
from cluster.console.routes import Parameters, Route, option
from cluster.views import offsets
from cluster.views.messages import find_messages, message_json
from cluster.views.scan import Scan, ScanLimits, matcher, scan
from cluster.views.times import parse_position
from store.clock import Clock

Bodies = Literal["shown", "masked", "hidden"]
BODY_CHARACTERS_MAX = 65_536
"""Characters of a body in a list; a single message has its whole body."""
MASKED_CHARACTERS = 4
CURSORS_MAX = 200
Words = Annotated[str, msgspec.Meta(max_length=8_192)]


class MessageParameters(Parameters, frozen=True):
    """A message: the id of its producer or of its broker."""

    topic: Name
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class KeyParameters(Parameters, frozen=True):
    """A message key."""

    topic: Name
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=8_192)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=64)] = 32


class SearchParameters(Parameters, frozen=True, kw_only=True):
    """A search.

    It begins at `since` (earliest, latest or a time), or with the `last` messages of each queue; or it
    continues at a `cursor`. With `follow` it ends at the present end of the queues.
    """

    topic: Name
    since: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    until: Annotated[str, msgspec.Meta(max_length=40)] | None = None
    last: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    tags: Words | None = None
    sql: Annotated[str, msgspec.Meta(max_length=100_000)] | None = None
    key: Words | None = None
    contains: Words | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=500)] = 50
    follow: bool = False
    cursor: Annotated[str, msgspec.Meta(max_length=64)] | None = None


@dataclass(frozen=True, slots=True)
class Found:
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


class _Cursors:
    """The positions at which searches stopped, by name; the oldest are dropped."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[str, Scan, Mapping[MessageQueue, int]]] = OrderedDict()

    def keep(self, topic: str, result: Scan, ends: Mapping[MessageQueue, int]) -> str:
        name = secrets.token_urlsafe(12)
        self._found[name] = (topic, result, ends)
        while len(self._found) > CURSORS_MAX:
            self._found.popitem(last=False)
        return name

    def of(self, name: str, topic: str) -> tuple[Mapping[MessageQueue, int], Mapping[MessageQueue, int]]:
        found = self._found.get(name)
        if found is None or found[0] != topic:
            raise ApiError(410, f"the cursor {name!r} is no longer known", "Start the search again.")
        return found[1].positions, found[2]


class MessageResources:
    """Messages."""

    def __init__(self, clock: Clock, bodies: Bodies) -> None:
        self._clock = clock
        self._bodies = bodies
        self._cursors = _Cursors()

    def routes(self) -> Sequence[Route]:
        """Return the rows of the route table."""
        rows = Sequence[Mapping[str, Any]]
        return (
            Route(
                "GET", "/topics/{topic}/messages", self.search, SearchParameters, Found, "Search messages.",
                _search_command,
            ),
            Route(
                "GET", "/topics/{topic}/messages/{id}", self.message, MessageParameters, rows,
                "The message with an id.",
                lambda given: ("message", "get", given.topic, "--id", given.id),
            ),
            Route(
                "GET", "/topics/{topic}/keys", self.by_key, KeyParameters, rows, "Messages with a key.",
                lambda given: (
                    "message", "query", given.topic, "--key", given.key, *option("--max", given.limit),
                ),
            ),
        )  # fmt: skip

    def message(self, admin: Admin, given: MessageParameters) -> Sequence[Mapping[str, Any]]:
        """Return the message with an id, with its whole body. Raises ClientError, ApiError."""
        found = find_messages(admin, given.topic, given.id)
        if not found:
            raise ApiError(
                404,
                f"topic {given.topic!r} has no message {given.id[:80]!r}",
                "Check the topic; ids are those of the producer or of the broker.",
            )
        return [shown(each, self._bodies, whole=True) for each in found]

    def by_key(self, admin: Admin, given: KeyParameters) -> Sequence[Mapping[str, Any]]:
        """Return the messages with a key, from the brokers' index. Raises ClientError."""
        found = admin.messages_by_key(given.topic, given.key, max_messages=given.limit)
        return [shown(each, self._bodies) for each in found]

    def search(self, admin: Admin, given: SearchParameters) -> Found:
        """Search messages, at most 20,000 and 5 s. Raises ClientError, ApiError."""
        if given.contains and self._bodies != "shown":
            raise ApiError(
                403,
                f"bodies are {self._bodies} here, and a search would reveal them",
                "Search by key, tag or property.",
            )
        if given.follow and given.until is not None:
            raise ApiError(400, "`follow` and `until` exclude each other", "Omit one of them.")
        keep = matcher(tags=given.tags, sql=given.sql, key=given.key, contains=given.contains)
        begins, ends = self._range(admin, given)
        result = scan(admin, begins, ends, keep, ScanLimits(found=given.limit), self._clock)
        return Found(
            [shown(each, self._bodies) for each in result.messages],
            result.scanned,
            result.total,
            result.unreadable,
            result.stopped,
            self._cursors.keep(given.topic, result, ends),
        )

    def _range(
        self, admin: Admin, given: SearchParameters
    ) -> tuple[Mapping[MessageQueue, int], Mapping[MessageQueue, int]]:
        """Return the first offset and the end offset of each queue."""
        if given.cursor is not None:
            begins, ends = self._cursors.of(given.cursor, given.topic)
            return begins, admin.end_offsets(given.topic) if given.follow else ends
        until = "latest" if given.until is None else parse_position(given.until)
        ends = offsets.offsets_at(admin, given.topic, until)
        if given.since is not None:
            return offsets.offsets_at(admin, given.topic, parse_position(given.since)), ends
        oldest = admin.beginning_offsets(given.topic)
        return {queue: max(end - given.last, oldest.get(queue, 0)) for queue, end in ends.items()}, ends


def shown(message: MessageExt, bodies: Bodies, *, whole: bool = False) -> dict[str, Any]:
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


def _search_command(given: SearchParameters) -> Sequence[str | None]:
    begin = option("--from", given.since) if given.since is not None else option("--last", given.last)
    tags = (None, None) if given.sql else option("--tags", given.tags)
    follow = None if given.follow else "--no-follow"
    return ("tail", given.topic, *begin, *tags, *option("--sql", given.sql), follow)
