"""GetConsumerStatusBody: the consume offsets that the members of a group report.

    {"consumerTable": {client: {queue: offset}}, "messageQueueTable": {queue: offset}}

A member responds with `messageQueueTable`. The broker copies the tables of all members unchanged into
`consumerTable`.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from actors.wire.bodies.body import queue_map
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.message_queue import MessageQueue

_TABLE = b'"messageQueueTable":'
_OPEN, _CLOSE, _QUOTE, _ESCAPE = b'{}"\\'


def encode_of_member(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return a member's response body of GET_CONSUMER_STATUS_FROM_CLIENT."""
    return orjson.dumps({"consumerTable": {}, "messageQueueTable": queue_map(offsets)})


def encode_of_group(tables: Mapping[str, bytes]) -> bytes:
    """Return the broker's response body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS.

    `tables` has each client's table in the form that `table_of_member` returns.
    """
    members = b",".join(b"%s:%s" % (orjson.dumps(client), table) for client, table in tables.items())
    return b'{"consumerTable":{%s},%s{}}' % (members, _TABLE)


def table_of_member(body: bytes) -> bytes:
    """Return the JSON of `messageQueueTable` in a member's response body. Raises Refused if it is missing."""
    start = body.find(_TABLE) + len(_TABLE)
    if start < len(_TABLE) or body[start : start + 1] != b"{":
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            "the body is not a valid GetConsumerStatusBody: it has no `messageQueueTable`",
        )
    depth, position, is_text = 0, start, False
    while position < len(body):
        byte = body[position]
        if is_text:
            position += byte == _ESCAPE
            is_text = byte != _QUOTE
        elif byte == _QUOTE:
            is_text = True
        elif byte in (_OPEN, _CLOSE):
            depth += 1 if byte == _OPEN else -1
            if not depth:
                return body[start : position + 1]
        position += 1
    raise Refused(ResponseCode.SYSTEM_ERROR, "the body is not a valid GetConsumerStatusBody: it is truncated")
