"""PutAside: keeps the messages that a background service cannot deliver.

    invalid, or its queue does not exist  →  log line with the reason and the CommitLog position
                                          →  copy in rmq_sys_raymq_undelivered, with UNDELIVERED_REASON

The service then continues with the next message: a retry would fail again and delay the others.
"""

from __future__ import annotations

import struct
from typing import Final

from actors.broker.core.metadata.topics import UNDELIVERED_TOPIC, Topics
from actors.broker.core.sending.moved import moved
from actors.wire.remoting_errors import without_paths
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message_store import MessageStore
from store.store_errors import MessageInvalid, RecordTooLarge

_log = get_logger(__name__)

REASON: Final = "UNDELIVERED_REASON"
_REASON_CHARS_MAX: Final = 500


class PutAside:
    """Stores undeliverable messages of one broker in UNDELIVERED_TOPIC."""

    def __init__(self, store: MessageStore, topics: Topics) -> None:
        self._store = store
        self._topics = topics

    def put(self, message: MessageExt, error: Exception) -> None:
        """Store a copy of the message, with its properties and the error.

        Raises StoreError if the store refuses appends at present; then the caller tries again later.
        """
        properties = {**message.properties, REASON: _printable(without_paths(str(error)))}
        topic = self._topics.ensure(UNDELIVERED_TOPIC, 1).topic_name
        try:
            self._store.append(moved(message, topic, 0, properties))
        # It exceeds a limit: only the log line remains.
        except (MessageInvalid, RecordTooLarge, struct.error) as failure:
            _log.warning(
                "undelivered_message_not_kept", position=message.commit_log_offset, error=str(failure)
            )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:_REASON_CHARS_MAX]
