"""Labels that several families of metrics share, as on the page of a RocketMQ broker."""

from __future__ import annotations

from typing import Final

from actors.broker.core.metadata.topics import Topics
from store.message.validate import RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX

STORAGE_LABELS: Final = ("storage_type", "storage_medium")
STORAGE: Final = ("local", "disk")
GROUP_LABELS: Final = ("topic", "consumer_group", "is_retry", "is_system")


def claim(is_true: bool) -> str:
    """Return the value of a label that is a claim."""
    return "true" if is_true else "false"


def of_group(topics: Topics, topic: str, group: str) -> tuple[str, str, str, str]:
    """Return the values of GROUP_LABELS."""
    is_system = topics.is_system(topic) or group.startswith(SYSTEM_GROUP_PREFIX)
    return topic, group, claim(topic.startswith(RETRY_TOPIC_PREFIX)), claim(is_system)
