"""LiteGroups: the settings of lite groups, from attributes, and the checks of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from actors.broker.core.metadata.attributes import (
    LITE_BIND_TOPIC,
    LITE_EVENTS_MAX,
    LITE_MODEL,
    LITE_QUOTA,
    LITE_RESET_ON_REMOVAL,
    LITE_RESET_ON_TAKEOVER,
    LITE_WILDCARD,
    is_lite_topic,
)
from actors.broker.core.metadata.groups import Groups
from actors.broker.core.metadata.topics import Topics
from actors.broker.features.lite.subscriptions import LiteGroup
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.group_config import SubscriptionGroupConfig
from store.message.lite_topics import NAME_BYTES_MAX, is_valid_name
from store.message.topic_config import TopicConfig


def check_name(name: str) -> None:
    """Raise Refused if a lite topic may not have this name."""
    if not is_valid_name(name):
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the lite topic {name[:100]!r} has an invalid name: use 1 to {NAME_BYTES_MAX} characters of "
            "a-z, A-Z, 0-9, _ and -",
        )


class LiteGroups:
    """The lite groups of one broker."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups

    def topic(self, name: str) -> TopicConfig:
        """Return a topic of type LITE. Raises Refused if it does not exist or is not readable or LITE."""
        config = self._topics.for_pulling(name)
        if not is_lite_topic(config):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"the topic [{name}] message type not match")
        return config

    def of_topic(self, topic: str) -> list[str]:
        """Return the names of the groups that are bound to a topic."""
        return [each.name for each in self.all() if each.topic == topic]

    def all(self) -> Iterator[LiteGroup]:
        """Yield all lite groups."""
        for config in self._groups.table.groups.values():
            if LITE_BIND_TOPIC in config.attributes:
                yield _lite_group(config)

    def find(self, name: str) -> LiteGroup:
        """Return a lite group. Raises Refused if it does not exist or is not a lite group."""
        config = self._groups.table.groups.get(name)
        if config is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group [{name}] not exist: create it with mqadmin updateSubGroup",
            )
        if LITE_BIND_TOPIC not in config.attributes:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"Group [{name}] is not a LITE group.")
        return _lite_group(config)

    def for_consuming(self, name: str, topic: str) -> LiteGroup:
        """Return a lite group that may consume a topic. Raises Refused otherwise."""
        config = self._groups.for_consuming(name, topic)
        if config.attributes.get(LITE_BIND_TOPIC) != topic:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {name}")
        return _lite_group(config)

    def for_subscribing(self, name: str, topic: str, names: Iterable[str]) -> LiteGroup:
        """Return a lite group whose client may subscribe lite topics. Raises Refused otherwise."""
        for each in names:
            check_name(each)
        try:
            self.topic(topic)
            return self.for_consuming(name, topic)
        except Refused as refusal:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, refusal.remark) from refusal


def _lite_group(config: SubscriptionGroupConfig) -> LiteGroup:
    attributes = config.attributes
    default = LiteGroup(config.group_name, attributes[LITE_BIND_TOPIC])
    return default._replace(
        is_exclusive=attributes.get(LITE_MODEL) == "Exclusive",
        resets_on_takeover=attributes.get(LITE_RESET_ON_TAKEOVER) == "true",
        resets_on_removal=attributes.get(LITE_RESET_ON_REMOVAL) == "true",
        client_quota=int(attributes.get(LITE_QUOTA, default.client_quota)),
        events_max=int(attributes.get(LITE_EVENTS_MAX, default.events_max)),
        is_wildcard=LITE_WILDCARD in attributes,
    )
