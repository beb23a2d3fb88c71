"""JSON form of a message, and the search of a message by id, for the command line and a web console."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from store.message.message_id import decode_message_id

if TYPE_CHECKING:
    from cluster.client import Admin, MessageExt, MessageQueue

_ID_DIGITS = (32, 56)
"""Lengths of an offset id, with an IPv4 and with an IPv6 address."""

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


def find_messages(admin: Admin, topic: str, identifier: str) -> list[MessageExt]:
    """Return the message of `topic` with this id, as a list that may be empty.

    The id is that of the producer (UNIQ_KEY) or of the broker. Both may have the same format, so UNIQ_KEY is
    tried first. Raises `ClientError`; ConfigInvalid for an id of another cluster, because the
    lookup connects to the address inside the id.
    """
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ConfigInvalid

    found = admin.messages_by_key(topic, identifier, max_messages=1, unique=True)
    if found or len(identifier) not in _ID_DIGITS or set(identifier) - set("0123456789abcdefABCDEF"):
        return found
    host, _ = decode_message_id(identifier)
    known = {
        address: name
        for name, data in admin.cluster_info().brokers.items()
        for address in data.broker_addrs.values()
    }
    if str(host) not in known:
        raise ConfigInvalid(
            f"id {identifier} names the broker {host}, which is not in this cluster: its brokers are "
            f"{', '.join(sorted(known))}"
        )
    message = admin.message_by_id(identifier)
    message.broker_name = known[str(host)]
    return [message] if message.topic == topic else []
