"""Attributes of topics and groups: valid names and values, and changes to them (RocketMQ AttributeUtil).

A change has the key `+name`, which sets the attribute, or `-name`, which removes it. A name without a sign,
as in exported tables, sets the attribute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.topic_config import TopicConfig


class Attribute(NamedTuple):
    """The valid values of one attribute: one of `choices`, or else a number in `numbers`, or any text."""

    choices: tuple[str, ...] = ()
    numbers: range = range(0)
    is_fixed: bool = False
    """True if it cannot be changed after the creation."""


MESSAGE_TYPE = "message.type"
RESERVE_TIME = "reserve.time"
PRIORITY_FACTOR = "priority.factor"
LITE_EXPIRATION = "lite.topic.expiration"
LITE_BIND_TOPIC = "lite.bind.topic"
LITE_MODEL = "lite.sub.model"
LITE_RESET_ON_TAKEOVER = "lite.sub.reset.offset.exclusive"
LITE_RESET_ON_REMOVAL = "lite.sub.reset.offset.unsubscribe"
LITE_QUOTA = "lite.sub.client.quota"
LITE_EVENTS_MAX = "lite.sub.client.max.event.cnt"
LITE_WILDCARD = "lite.sub.wildcard"
PRIORITY_FACTOR_MAX: Final = 100
# The choices are in the order of RocketMQ's error remark.
TOPIC_ATTRIBUTES: Final = {
    MESSAGE_TYPE: Attribute(
        ("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL")
    ),
    LITE_EXPIRATION: Attribute(numbers=range(-1, 43_201)),
    RESERVE_TIME: Attribute(numbers=range(-1, 1 << 63)),
    "queue.type": Attribute(("SimpleCQ", "BatchCQ"), is_fixed=True),
    "cleanup.policy": Attribute(("DELETE", "COMPACTION"), is_fixed=True),
}
GROUP_ATTRIBUTES: Final = {
    PRIORITY_FACTOR: Attribute(numbers=range(PRIORITY_FACTOR_MAX + 1)),
    LITE_BIND_TOPIC: Attribute(),
    LITE_MODEL: Attribute(("Shared", "Exclusive")),
    LITE_RESET_ON_TAKEOVER: Attribute(("true", "false")),
    LITE_RESET_ON_REMOVAL: Attribute(("true", "false")),
    LITE_QUOTA: Attribute(numbers=range(-1, 1 << 31)),
    LITE_EVENTS_MAX: Attribute(numbers=range(10, 1 << 31)),
    LITE_WILDCARD: Attribute(),
}
_NOT_OFFERED: Final = frozenset({"BatchCQ", "COMPACTION"})


def apply_attribute_changes(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return the attributes of a topic or group after `changes`.

    Args:
        known: TOPIC_ATTRIBUTES or GROUP_ATTRIBUTES.
        current: the attributes by name, or None for a new topic or group.
        changes: new values by signed name; the value of a removal is ignored.

    Raises:
        Refused: a change is not valid (with RocketMQ's remark), or this broker does not support the value.
    """
    result = dict(current or {})
    changed: set[str] = set()
    for key, value in changes.items():
        is_removal, name = key.startswith("-"), key.removeprefix("+").removeprefix("-")
        if not name or "+" in name or "-" in name:
            raise _refused("kv string format wrong.")
        if name in changed:
            raise _refused(f"alter duplication key. key: {name}")
        changed.add(name)
        if is_removal and current is None:
            raise _refused(f"only add attribute is supported while creating topic. key: {name}")
        if is_removal and name not in result:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
        if name not in known:
            raise _refused(f"unsupported key: {name}")
        if current is not None and known[name].is_fixed:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if is_removal:
            del result[name]
        else:
            _check(name, known[name], value)
            result[name] = value
    return result


def is_priority_topic(topic: TopicConfig) -> bool:
    """Return True if the ids of the topic's queues are priorities."""
    return topic.attributes.get(MESSAGE_TYPE) == "PRIORITY"


def is_lite_topic(topic: TopicConfig) -> bool:
    """Return True if the messages of the topic are in lite topics."""
    return topic.attributes.get(MESSAGE_TYPE) == "LITE"


def _check(name: str, attribute: Attribute, value: str) -> None:
    choices, numbers = attribute.choices, attribute.numbers
    if choices and value not in choices:
        raise _refused(f"value is not in set: [{', '.join(choices)}]")
    if value in _NOT_OFFERED:
        raise _refused(f"topic attribute {name}={value} is not supported by this broker: leave it out")
    if name == MESSAGE_TYPE and value == "MIXED":
        raise Refused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    if numbers:
        try:
            is_valid = int(value) in numbers
        except ValueError:
            raise _refused(f'For input string: "{value}"') from None
        if not is_valid:
            raise _refused(f"value is not in range({numbers.start}, {numbers.stop - 1})")


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
