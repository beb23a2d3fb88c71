"""Internal topics: those that no pattern for topics selects, such as that of a read, or of a lake."""

from __future__ import annotations

from typing import Final

from actors.broker.core.metadata.topics import KNOWN_SYSTEM_TOPICS, SYSTEM_TOPIC_PREFIX
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

WRITE_MANIFEST_TOPIC: Final = "RAYMQ_WRITE_MANIFESTS"
"""Has the committed offsets of write jobs (`jobs.reading.write_manifest`)."""
_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)


def is_internal(name: str) -> bool:
    """Return True for system topics, retry topics and dead-letter topics."""
    return name == WRITE_MANIFEST_TOPIC or name in KNOWN_SYSTEM_TOPICS or name.startswith(_PREFIXES)
