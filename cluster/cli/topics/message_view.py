"""Formats messages: a JSON object, one line, or a page of fields. Decodes the JSON objects again.

Input is decoded strictly: what is not understood is refused, because the message would differ from the input.
"""

from __future__ import annotations

import base64
import binascii
import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cluster.cli.console import Refusal
from cluster.cli.tables import escaped, shown
from cluster.views.messages import message_json

if TYPE_CHECKING:
    from cluster.client import MessageExt

BODY_SHOWN_BYTES = 200
_SENT = ("body", "body_base64", "keys", "tags", "properties")
_IGNORED = (
    "topic", "broker", "queue", "offset", "id", "unique_key", "born_ms", "store_ms", "reconsume_times",
    "origin", "body_error",
)  # fmt: skip
"""Fields that `tail`, `message get` and `dlq show` print, and that a new message does not keep."""


def as_line(message: MessageExt) -> str:
    """Return a message as one line: store time, queue and offset, tags, keys, start of the body."""
    where = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    marks = " ".join(filter(None, (message.tags, message.keys)))
    return "  ".join(
        filter(None, (shown("store_ms", message.store_timestamp), where, marks, body_text(message)))
    )


def as_page(message: MessageExt) -> dict[str, Any]:
    """Return the fields of a message as texts for a terminal."""
    page = message_json(message)
    page["body"] = page.pop("body_base64", None) or page["body"]
    page["born_host"], page["store_host"] = str(message.born_host), str(message.store_host)
    page["properties"] = ", ".join(f"{name}={text}" for name, text in page["properties"].items())
    return page


def body_text(message: MessageExt) -> str:
    """Return the start of a body as text, after the reason if it cannot be decompressed."""
    body = bytes(message.body[: BODY_SHOWN_BYTES + 1])
    text = body[:BODY_SHOWN_BYTES].decode(errors="replace")
    start = escaped(text) + ("…" if len(message.body) > BODY_SHOWN_BYTES else "")
    return start if message.body_error is None else f"[{escaped(message.body_error)}] {start}"


class FieldInvalid(ValueError):
    """A line lacks a field, or has an unknown one or one of a wrong type."""


def decode_line(line: bytes, number: int) -> dict[str, Any]:
    """Return `body` (bytes) and the given ones of `keys`, `tags` and `properties` of a line.

    `number` is the number of the line. Raises Refusal, which names the line and the invalid field.
    """
    try:
        given = json.loads(line.decode(), object_pairs_hook=_unique)
        return _fields(given)
    except RecursionError:
        reason = "its values are nested too deeply"
    except ValueError as error:  # also a JSONDecodeError and a UnicodeError
        reason = str(error)
    raise Refusal(f"line {number} of the input is invalid: {reason}")


def decode_base64(text: str) -> bytes:
    """Decode padded base64 of the standard or the URL-safe alphabet. Raises ValueError for any other text."""
    try:
        data = base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        data = None
    # Encoding it again also finds mixed alphabets, and bits after the last byte.
    if data is None or text not in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        shown = f"{text[:40]}…" if len(text) > 40 else text
        raise ValueError(f"{shown!r} is not base64: use the standard or the URL-safe alphabet, with padding")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise FieldInvalid(f"field {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return found


def _fields(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise FieldInvalid(f"it is a {type(given).__name__}, not an object with `body` or `body_base64`")
    for name in given:
        if name not in (*_SENT, *_IGNORED):
            near = get_close_matches(name, _SENT, 1)
            meant = f": did you mean {near[0]!r}?" if near else f": the fields are {', '.join(_SENT)}"
            raise FieldInvalid(f"unknown field {name!r}{meant}")
    if ("body" in given) == ("body_base64" in given):
        raise FieldInvalid("it must have either `body` or `body_base64`")
    keys, properties = given.get("keys") or "", given.get("properties") or {}
    keys = keys if isinstance(keys, list) else [keys]
    if not isinstance(properties, dict):
        raise FieldInvalid(f"field 'properties' is {properties!r}: it must be an object of strings")
    texts = {"body": given.get("body", ""), "body_base64": given.get("body_base64", "")}
    texts |= {"tags": given.get("tags") or ""}
    texts |= {f"keys[{number}]": key for number, key in enumerate(keys)}
    texts |= {f"properties.{name}": value for name, value in properties.items()}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise FieldInvalid(f"field {name!r} is {text!r}: it must be a string")
        f"{name}{text}".encode()  # raises for a lone surrogate, which a client would send as "?"
    body = texts["body"].encode() if "body" in given else decode_base64(texts["body_base64"])
    found = {
        "body": body,
        "tags": texts["tags"],
        "keys": " ".join(filter(None, keys)),
        "properties": properties,
    }
    return {name: value for name, value in found.items() if value or name in ("body", "properties")}
