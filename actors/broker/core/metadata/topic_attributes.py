"""Topic attributes: valid names and values, and changes to them (RocketMQ TopicAttributes, AttributeUtil).

A change has the key `+name`, which sets the attribute, or `-name`, which removes it. A name without a sign,
as in exported tables, sets the attribute.
"""

from __future__ import annotations

from collections.abc import Mapping

from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused

MESSAGE_TYPE = "message.type"
RESERVE_TIME = "reserve.time"
# In the order of RocketMQ's error remark.
_CHOICES = {
    MESSAGE_TYPE: ("UNSPECIFIED", "TRANSACTION", "FIFO", "MIXED", "DELAY", "NORMAL"),
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "cleanup.policy": ("DELETE", "COMPACTION"),
}
_FIXED = frozenset({"queue.type", "cleanup.policy"})
_NOT_OFFERED = frozenset({"BatchCQ", "COMPACTION"})
_LONG = range(-1, 1 << 63)


def apply_attribute_changes(current: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Return a topic's attributes after `changes`.

    Args:
        current: the topic's attributes by name, or None for a new topic.
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
        if name not in _CHOICES and name != RESERVE_TIME:
            raise _refused(f"unsupported key: {name}")
        if current is not None and name in _FIXED:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if is_removal:
            del result[name]
        else:
            _check(name, value)
            result[name] = value
    return result


def _check(name: str, value: str) -> None:
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise _refused(f"value is not in set: [{', '.join(choices)}]")
    if value in _NOT_OFFERED:
        raise _refused(f"topic attribute {name}={value} is not supported by this broker: leave it out")
    if name == MESSAGE_TYPE and value == "MIXED":
        raise Refused(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
    if name == RESERVE_TIME:
        try:
            is_long = int(value) in _LONG
        except ValueError:
            raise _refused(f'For input string: "{value}"') from None
        if not is_long:
            raise _refused(f"value is not in range({_LONG.start}, {_LONG.stop - 1})")


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
