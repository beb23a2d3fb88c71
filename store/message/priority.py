"""The priority of a message: property _SYS_MSG_PRIORITY_, a number that is the id of its queue.

A message has one type. The property has no effect on transactions, delayed messages and messages with a
sharding key (RocketMQ TopicMessageType).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from store.message.properties import MessageConst

PRIORITY_MAX: Final = (1 << 31) - 1
_NUMBER: Final = re.compile(r"\+?[0-9]{1,10}")
_OTHER_TYPES: Final = (
    MessageConst.DELAY,
    MessageConst.TIMER_DELIVER_MS,
    MessageConst.TIMER_DELAY_SEC,
    MessageConst.TIMER_DELAY_MS,
    MessageConst.SHARDING_KEY,
)


def priority_of(properties: Mapping[str, str]) -> int | None:
    """Return the priority; None if the message has none, or the property is not a number from 0 on."""
    text = properties.get(MessageConst.PRIORITY, "")
    if not _NUMBER.fullmatch(text):
        return None
    priority = int(text)
    return priority if priority <= PRIORITY_MAX else None


def overruled_by(properties: Mapping[str, str]) -> str | None:
    """Return the property that gives the message another type than PRIORITY; None if none does."""
    if properties.get(MessageConst.TRANSACTION_PREPARED) == "true":
        return MessageConst.TRANSACTION_PREPARED
    return next((name for name in _OTHER_TYPES if name in properties), None)
