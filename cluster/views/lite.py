"""Views of lite topics: the list with the progress of groups, one lite topic, and a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.client import Admin, MessageExt


@dataclass(frozen=True, slots=True)
class LiteProgress:
    """How far a group is behind in a lite topic. `oldest_ms` is when its next message was stored, or None."""

    group: str
    lite_topic: str
    broker: str
    lag: int | None
    oldest_ms: int | None
    subscribers: int | None


@dataclass(frozen=True, slots=True)
class LiteTopic:
    """A lite topic on one broker, with the groups that have consumed or subscribe it.

    Times are those of its first and last message, or None. `lag` is the highest of a group, or None.
    """

    lite_topic: str
    broker: str
    messages: int
    min_offset: int
    max_offset: int
    oldest_ms: int | None
    last_ms: int | None
    lag: int | None
    subscribers: int
    groups: Sequence[LiteProgress]


@dataclass(frozen=True, slots=True)
class LiteTopics:
    """The first lite topics of a topic with a text in their names.

    Attributes:
        groups: The groups that are bound to the topic.
        expires_after_min: Minutes without a message until a lite topic is removed; None: never.
        count: Number of lite topics, which count for each broker that has messages of them.
        matches: Number of those with the text in their names.
    """

    topic: str
    groups: Sequence[str]
    expires_after_min: int | None
    count: int
    matches: int
    rows: Sequence[LiteTopic]


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """How far a group is behind in all lite topics that it has consumed, and in which ones most."""

    group: str
    topic: str
    lag: int
    oldest_ms: int | None
    largest: Sequence[LiteProgress]
    oldest: Sequence[LiteProgress]


def list_lite_topics(
    admin: Admin, topic: str, match: str = "", limit: int = 100, *, name: str = ""
) -> LiteTopics:
    """Return lite topics of a topic: the first ones with `match` in their names, or that with `name`.

    Raises `ClientError`; NotSupported for brokers of RocketMQ.
    """
    found = admin.lite_topics(topic, match, limit, name=name)
    rows = [_topic(broker, each) for broker, content in found.items() for each in content["liteTopics"]]
    return LiteTopics(
        topic,
        sorted({group for content in found.values() for group in content["groups"] or ()}),
        max(_known(content["ttl"]) or 0 for content in found.values()) or None,
        sum(content["liteTopicCount"] for content in found.values()),
        sum(content["matchCount"] for content in found.values()),
        sorted(rows, key=lambda row: (row.lite_topic, row.broker))[:limit],
    )


def lite_messages(admin: Admin, topic: str, name: str, offset: int, count: int) -> list[MessageExt]:
    """Return messages of a lite topic from an offset on, of all brokers that have some.

    Raises `ClientError`.
    """
    # Imported here, because the command line imports views before it needs a client.
    from store.message.message_queue import MessageQueue

    return [
        message
        for each in list_lite_topics(admin, topic, name=name).rows
        if each.max_offset > max(offset, each.min_offset)
        for message in admin.messages_at(
            MessageQueue(topic, each.broker, 0), max(offset, each.min_offset), count, lite_topic=name
        )
    ]


def describe_lite_group(admin: Admin, group: str, top: int) -> LiteGroup:
    """Return how far a group is behind in its lite topics. Raises `ClientError`."""
    found = admin.lite_group(group, top=top)

    def worst(name: str) -> list[LiteProgress]:
        lags = [(broker, each) for broker, content in found.items() for each in content[name] or ()]
        return [_progress(broker, {"group": group} | each) for broker, each in lags]

    times = [_known(content["earliestUnconsumedTimestamp"]) for content in found.values()]
    return LiteGroup(
        group,
        next(content["parentTopic"] for content in found.values()),
        sum(content["totalLagCount"] for content in found.values()),
        min((each for each in times if each is not None), default=None),
        sorted(worst("lagCountTopK"), key=lambda each: -(each.lag or 0))[:top],
        sorted(worst("lagTimestampTopK"), key=lambda each: each.oldest_ms or 0)[:top],
    )


def _topic(broker: str, content: Mapping[str, Any]) -> LiteTopic:
    name, first, end = content["liteTopic"], content["minOffset"], content["maxOffset"]
    groups = [_progress(broker, each) for each in content["groupProgress"]]
    return LiteTopic(
        name, broker, end - first, first, end,
        _known(content["firstUpdateTimestamp"]),
        _known(content["lastUpdateTimestamp"]),
        max((each.lag for each in groups if each.lag is not None), default=None),
        sum(each.subscribers or 0 for each in groups),
        groups,
    )  # fmt: skip


def _progress(broker: str, content: Mapping[str, Any]) -> LiteProgress:
    oldest_ms = _known(content["earliestUnconsumedTimestamp"])
    lag, subscribers = _known(content["lagCount"]), content.get("subscribers")
    return LiteProgress(content["group"], content["liteTopic"], broker, lag, oldest_ms, subscribers)


def _known(value: int) -> int | None:
    """Return a number, or None for RocketMQ's -1, which says that it is unknown."""
    return None if value < 0 else value
