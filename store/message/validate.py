"""Checks of topics, groups, bodies and properties (docs/store-format.md#limits).

Each function raises MessageInvalid if its check fails.
"""

import re

from store.message.buffers import Buffer
from store.message.record import MAX_PROPERTIES_BYTES
from store.store_errors import MessageInvalid

MAX_MESSAGE_BYTES = 4 << 20
MAX_TOPIC_CHARS = 127
MAX_RETRY_TOPIC_CHARS = 255
MAX_GROUP_CHARS = 255  # as in RocketMQ's clients

RETRY_TOPIC_PREFIX = "%RETRY%"
DLQ_TOPIC_PREFIX = "%DLQ%"
LMQ_TOPIC_PREFIX = "%LMQ%"

# Groups that RocketMQ's tools and services use without creating them (MixAll).
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_LITE_QUEUE = re.compile(rf"{LMQ_TOPIC_PREFIX}\$([^$]+)\$([a-zA-Z0-9_-]{{1,64}})")


def is_system_group(name: str) -> bool:
    """Return True for groups of RocketMQ's own tools and services."""
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def lite_topic_of(name: str) -> tuple[str, str] | None:
    """Return topic and name of the lite topic with the queue `%LMQ%$topic$name`; None for other names."""
    found = _LITE_QUEUE.fullmatch(name) if name.startswith(LMQ_TOPIC_PREFIX) else None
    return None if found is None else (found[1], found[2])


def check_topic(topic: str) -> None:
    """Check a topic name: 1 to 127 letters, digits and %|_- (255 for a retry or dead-letter topic)."""
    if not isinstance(topic, str):
        raise MessageInvalid(f"the topic is {topic!r}: give a string")
    long_names = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
    _check_name("topic", topic, MAX_RETRY_TOPIC_CHARS if long_names else MAX_TOPIC_CHARS)


def check_group(group: str) -> None:
    """Check the name of a producer or consumer group: 1 to 255 letters, digits and %|_-."""
    if not isinstance(group, str):
        raise MessageInvalid(f"the group is {group!r}: give a string")
    _check_name("group", group, MAX_GROUP_CHARS)


def check_body(body: Buffer, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
    """Check the body of a message to send: 1 to `max_message_bytes` bytes."""
    if not body:
        raise MessageInvalid("the body is empty: as in RocketMQ, a message needs a body of at least 1 byte")
    if len(body) > max_message_bytes:
        raise MessageInvalid(
            f"body of {len(body):,} bytes is over max_message_bytes {max_message_bytes:,} "
            "(raise it on the broker or compress the body)"
        )


def check_properties(properties: bytes, reserved_bytes: int = 0) -> None:
    """Check a property string: at most 32,767 bytes, less `reserved_bytes`.

    `reserved_bytes` is the size of the properties that the broker adds when it stores the message.
    """
    limit_bytes = MAX_PROPERTIES_BYTES - reserved_bytes
    if len(properties) > limit_bytes:
        raise MessageInvalid(
            f"properties of {len(properties):,} bytes are over the limit of {limit_bytes:,} bytes "
            "(move data to the body)"
        )


def _check_name(kind: str, name: str, max_chars: int) -> None:
    if not name:
        raise MessageInvalid(f"the {kind} is empty")
    if len(name) > max_chars:
        raise MessageInvalid(f"{kind} {name[:40]!r}… has {len(name)} characters, the limit is {max_chars}")
    if not _NAME.match(name):
        raise MessageInvalid(
            f"{kind} {name!r} contains characters other than letters, digits and %|_-: rename it"
        )
