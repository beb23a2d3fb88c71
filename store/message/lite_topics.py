"""Lite topics as producers and consumers know them: valid names, and the queue that gets their messages."""

from __future__ import annotations

import re
from typing import Final

from store.message.tags import java_hash

NAME_BYTES_MAX: Final = 64
NAMES: Final = f"a name has 1 to {NAME_BYTES_MAX} of the characters a-z, A-Z, 0-9, _ and -"
_VALID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_BYTES_MAX}}}")
_MULTIPLIER: Final = 2_862_933_555_777_941_757
_U64: Final = (1 << 64) - 1


def is_valid_name(name: str) -> bool:
    """Return True if a lite topic may have this name."""
    return _VALID.fullmatch(name) is not None


def lite_topic_queue(name: str, queues: int) -> int:
    """Return which of `queues` writable queues gets the messages of a lite topic, as in RocketMQ's proxy.

    They are those of all brokers of the topic, in the order of broker name and queue id.
    """
    return consistent_hash(java_hash(name), queues)


def consistent_hash(number: int, buckets: int) -> int:
    """Return the bucket of a number: few numbers change theirs if a bucket is added (Guava)."""
    state, chosen = number & _U64, 0
    while True:
        state = (state * _MULTIPLIER + 1) & _U64
        following = (chosen + 1) * (1 << 31) / ((state >> 33) + 1)
        if following >= buckets:
            return chosen
        chosen = int(following)
