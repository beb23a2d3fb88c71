"""LiteAdmin: the requests of mqadmin about lite topics, their groups and clients."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import orjson

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import LITE_EXPIRATION, is_lite_topic
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.features.lite.lite_groups import LiteGroups
from actors.broker.features.lite.lite_lags import UNKNOWN, LiteLag, LiteLags
from actors.broker.features.lite.lite_sessions import LiteSessions
from actors.broker.features.lite.subscriptions import LiteGroup
from actors.transport.request import RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.bodies.lite import (
    LiteClientHeader,
    LiteDispatchHeader,
    LiteGroupHeader,
    LiteTopicHeader,
    ParentTopicHeader,
)
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.targets import Action, each_of, on_cluster, on_group, on_topic
from store.common.clock import NS_PER_MS, Clock
from store.lite.lite_index import LiteIndex, lmq_name

LISTED_MAX: Final = 10_000
_NAMES_PER_STEP: Final = 1_000


class LiteAdmin:
    """Request handler for administrators of lite topics."""

    def __init__(
        self,
        index: LiteIndex,
        sessions: LiteSessions,
        groups: LiteGroups,
        lags: LiteLags,
        tables: BrokerTables,
        clock: Clock,
        settings: BrokerSettings,
    ) -> None:
        self._settings = settings
        self._index = index
        self._sessions = sessions
        self._groups = groups
        self._behind = lags
        self._tables = tables
        self._clock = clock

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode
        group = on_group(Action.GET, "group")
        parent = on_topic(Action.GET, "parent_topic")
        row = partial(RequestRow, needs_services=True)
        update = on_group(Action.UPDATE, "group")
        return (
            row(code.GET_BROKER_LITE_INFO, self.broker, None, on_cluster(Action.GET)),
            row(code.GET_PARENT_TOPIC_INFO, self.parent_topic, ParentTopicHeader, on_topic(Action.GET)),
            row(code.GET_LITE_TOPIC_INFO, self.lite_topic, LiteTopicHeader, parent),
            row(code.GET_LITE_CLIENT_INFO, self.client, LiteClientHeader, each_of(group, parent)),
            row(code.GET_LITE_GROUP_INFO, self.group, LiteGroupHeader, group),
            row(code.TRIGGER_LITE_DISPATCH, self.dispatch, LiteDispatchHeader, update),
        )

    def broker(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_BROKER_LITE_INFO: return the numbers of lite topics, subscriptions and batches."""
        sessions, topics = self._sessions, self._tables.topics.table.topics.values()
        by_topic: dict[str, list[str]] = {}
        for group in self._groups.all():
            by_topic.setdefault(group.topic, []).append(group.name)
        return _json(
            {
                "storeType": "default",
                "maxLmqNum": self._settings.max_lite_topics,
                "currentLmqNum": len(self._index),
                "liteSubscriptionCount": sessions.subscriptions.count
                + sum(each.is_wildcard for each in sessions.subscriptions.clients),
                "orderInfoCount": sessions.orders.batches,
                "cqTableSize": len(topics) + len(self._index),
                "offsetTableSize": sum(1 for _ in self._tables.offsets.table),
                "eventMapSize": sum(bool(each.events) for each in sessions.subscriptions.clients),
                "topicMeta": {
                    each.topic_name: _expiration(each.attributes) for each in topics if is_lite_topic(each)
                },
                "groupMeta": by_topic,
            }
        )

    def parent_topic(self, context: RequestContext) -> None:
        """Handle GET_PARENT_TOPIC_INFO: return the groups of a topic and the number of its lite topics."""
        header: ParentTopicHeader = context.header
        config = self._groups.topic(header.topic)

        limit, match = min(max(header.max_count, 0), LISTED_MAX), header.match.casefold()

        def count() -> Steps:
            names, matches, found = 0, 0, list[str]()
            for names, name in enumerate(self._index.names(header.topic), 1):
                if limit and match in name.casefold():
                    matches += 1
                    found.append(name)
                    if len(found) >= 2 * limit:
                        found = sorted(found)[:limit]
                if names % _NAMES_PER_STEP == 0:
                    yield
            groups = self._groups.of_topic(header.topic)
            content: dict[str, Any] = {
                "topic": header.topic,
                "ttl": _expiration(config.attributes),
                "groups": groups or None,
                "lmqNum": len(self._index),
                "liteTopicCount": names,
            }
            if limit:
                rows = []
                for name in [header.lite_topic] if header.lite_topic else sorted(found)[:limit]:
                    rows.append(self._description(header.topic, name, groups))
                    if len(rows) % _NAMES_PER_STEP == 0:
                        yield
                content |= {"matchCount": matches, "liteTopics": rows}
            return _json(content)

        context.work(count())

    def lite_topic(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_LITE_TOPIC_INFO: return the offsets and subscribers of a lite topic."""
        header: LiteTopicHeader = context.header
        self._groups.topic(header.parent_topic)
        topic, name = header.parent_topic, header.lite_topic
        subscribers = []
        for group, clients in self._sessions.subscriptions.groups_of(topic, name):
            ids = ["*"] if clients[0].is_wildcard else [each.client_id for each in clients]
            subscribers += [{"clientId": each, "group": group} for each in ids]
        return _json(
            {
                "parentTopic": topic,
                "liteTopic": name,
                "shardingToBroker": True,
                "subscriber": subscribers,
                "topicOffset": {
                    "minOffset": self._index.min_offset(topic, name),
                    "maxOffset": self._index.max_offset(topic, name),
                    "lastUpdateTimestamp": self._index.last_store_time(topic, name) or 0,
                },
            }
        )

    def client(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_LITE_CLIENT_INFO: return the lite topics that a client subscribes."""
        header: LiteClientHeader = context.header
        self._groups.topic(header.parent_topic)
        self._groups.for_consuming(self._groups.find(header.group).name, header.parent_topic)
        found: dict[str, Any] = {
            "parentTopic": header.parent_topic, "group": header.group, "clientId": header.client_id,
            "liteTopicCount": UNKNOWN, "lastAccessTime": UNKNOWN, "lastConsumeTime": 0,
        }  # fmt: skip
        client = self._sessions.subscriptions.client(header.group, header.client_id)
        if client is not None:
            idle_ms = (self._clock.monotonic_ns() - client.renewed_ns) // NS_PER_MS
            found["lastAccessTime"] = self._clock.wall_ms() - idle_ms
            names = heapq.nsmallest(min(max(header.max_count, 0), LISTED_MAX), client.names)
            listed = [lmq_name(client.topic, name) for name in names]
            if client.is_wildcard:
                listed = [f"{client.topic}@{client.group}"]
            if listed:
                count = 1 if client.is_wildcard else len(client.names)
                found |= {"liteTopicCount": count, "liteTopicSet": listed}
        return _json(found)

    def group(self, context: RequestContext) -> None:
        """Handle GET_LITE_GROUP_INFO: return how far a group is behind, in one lite topic or all."""
        header: LiteGroupHeader = context.header
        group = self._groups.find(header.group)
        if header.lite_topic:
            context.reply(_json(self._lag_of_topic(group, header.lite_topic)))
        else:
            context.work(self._lags(group, min(max(header.top_k, 0), LISTED_MAX)))

    def dispatch(self, context: RequestContext) -> RemotingCommand:
        """Handle TRIGGER_LITE_DISPATCH: look at all lite topics of the clients of a group again."""
        header: LiteDispatchHeader = context.header
        self._groups.find(header.group)
        for client in list(self._sessions.subscriptions.clients):
            if client.group == header.group and header.client_id in ("", client.client_id):
                self._sessions.events.refresh(client)
        return RemotingCommand.response()

    def _description(self, topic: str, name: str, groups: Iterable[str]) -> dict[str, Any]:
        """Return the offsets and times of a lite topic, and how far each group is behind that consumes it."""
        subscribers = {
            group: len(clients) for group, clients in self._sessions.subscriptions.groups_of(topic, name)
        }
        progress = []
        for group in groups:
            committed = self._tables.offsets.query(group, lmq_name(topic, name), 0)
            if committed is not None or group in subscribers:
                lag = self._behind.of(topic, name, committed or 0)
                progress.append({"group": group, "subscribers": subscribers.get(group, 0)} | lag.to_json())
        first = self._index.read(topic, name, 0, 1)
        return {
            "liteTopic": name,
            "minOffset": self._index.min_offset(topic, name),
            "maxOffset": self._index.max_offset(topic, name),
            "firstUpdateTimestamp": first[0].stored_ms if first else UNKNOWN,
            "lastUpdateTimestamp": self._index.last_store_time(topic, name) or UNKNOWN,
            "groupProgress": progress,
        }

    def _lag_of_topic(self, group: LiteGroup, name: str) -> dict[str, Any]:
        topic = group.topic
        committed = self._tables.offsets.query(group.name, lmq_name(topic, name), 0)
        end = self._index.max_offset(topic, name)
        lag = self._behind.of(topic, name, committed or 0)
        found = {
            "group": group.name,
            "parentTopic": topic,
            "liteTopic": name,
            "totalLagCount": lag.messages if end else UNKNOWN,
            "earliestUnconsumedTimestamp": lag.oldest_ms,
        }
        if end:
            last = self._index.read(topic, name, committed - 1, 1) if committed else ()
            found["liteTopicOffsetWrapper"] = {
                "brokerOffset": end,
                "consumerOffset": UNKNOWN if committed is None else committed,
                "lastTimestamp": last[0].stored_ms if last else 0,
                "pullOffset": 0,
            }
        return found

    def _lags(self, group: LiteGroup, top: int) -> Steps:
        lags: list[LiteLag] = []
        for number, (_, _, lag) in enumerate(self._behind.consumed(group), 1):
            if lag.messages:
                lags.append(lag)
            if number % _NAMES_PER_STEP == 0:
                yield
        oldest = min((each.oldest_ms for each in lags), default=UNKNOWN)
        return _json(
            {
                "group": group.name,
                "parentTopic": group.topic,
                "totalLagCount": sum(each.messages for each in lags),
                "earliestUnconsumedTimestamp": oldest,
                "lagCountTopK": [each.to_json() for each in heapq.nlargest(top, lags)],
                "lagTimestampTopK": [
                    each.to_json() for each in heapq.nsmallest(top, lags, key=lambda each: each.oldest_ms)
                ],
            }
        )


def _expiration(attributes: dict[str, str]) -> int:
    """Return the time to live in minutes, -1: unlimited."""
    return int(attributes.get(LITE_EXPIRATION, UNKNOWN))


def _json(content: dict[str, Any]) -> RemotingCommand:
    return RemotingCommand.response(body=orjson.dumps(content))
