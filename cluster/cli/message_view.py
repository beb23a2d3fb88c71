"""Formats messages: a JSON object, one line, or a page of fields."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cluster.cli.tables import shown

if TYPE_CHECKING:
    from cluster.client import MessageExt, MessageQueue

BODY_SHOWN_BYTES = 200
# Properties written by clients and brokers, or shown as separate fields.
_OWN = frozenset({"TAGS", "KEYS", "UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER"})


def place_of(queue: MessageQueue | MessageExt) -> dict[str, Any]:
    """Return topic, broker and queue id of a queue or of a message."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}


def as_object(message: MessageExt) -> dict[str, Any]:
    """Return a message as a JSON object; a body that is not valid UTF-8 is `body_base64`."""
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
    return found


def as_line(message: MessageExt) -> str:
    """Return a message as one line: store time, queue and offset, tags, keys, start of the body."""
    where = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    marks = " ".join(filter(None, (message.tags, message.keys)))
    return "  ".join(
        filter(None, (shown("store_ms", message.store_timestamp), where, marks, body_text(message)))
    )


def as_page(message: MessageExt) -> dict[str, Any]:
    """Return the fields of a message as texts for a terminal."""
    page = as_object(message)
    page["body"] = page.pop("body_base64", None) or page["body"]
    page["born_host"], page["store_host"] = str(message.born_host), str(message.store_host)
    page["properties"] = ", ".join(f"{name}={text}" for name, text in page["properties"].items())
    return page


def body_text(message: MessageExt) -> str:
    """Return the start of a body as text, with control characters replaced."""
    body = bytes(message.body[: BODY_SHOWN_BYTES + 1])
    text = body[:BODY_SHOWN_BYTES].decode(errors="replace")
    text = "".join(letter if letter.isprintable() else "·" for letter in text)
    return text + ("…" if len(message.body) > BODY_SHOWN_BYTES else "")
