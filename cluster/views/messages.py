"""JSON form of a message, which the command line and a web console show."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.client import MessageExt, MessageQueue

# Properties written by clients and brokers, or shown as separate fields.
_OWN = frozenset({"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER"})


def place_of(queue: MessageQueue | MessageExt) -> dict[str, Any]:
    """Return topic, broker and queue id of a queue or of a message."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def message_json(message: MessageExt) -> dict[str, Any]:
    """Return a message as JSON values; a body that is not valid UTF-8 is `body_base64`.

    A body that cannot be decompressed is returned as it is stored, with the reason as `body_error`.
    """
    found: dict[str, Any] = {
        **place_of(message),
        "offset": message.queue_offset,
        "id": message.offset_msg_id,
        "unique_key": message.uniq_key,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp,
        "store_ms": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
        "properties": {name: text for name, text in message.properties.items() if name not in _OWN},
    }
    try:
        found["body"] = bytes(message.body).decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(message.body).decode()
    return found if message.body_error is None else found | {"body_error": message.body_error}
