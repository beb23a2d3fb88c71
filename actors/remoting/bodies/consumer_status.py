"""GetConsumerStatusBody: the offsets that the members of a group say they are at.

    {"consumerTable": {client: {queue: offset}}, "messageQueueTable": {queue: offset}}

A member fills the second table, a broker the first with the tables of its members, as they came.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from actors.remoting.bodies.body import queue_map
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.message.message_queue import MessageQueue

_TABLE = b'"messageQueueTable":'
_OPEN, _CLOSE, _QUOTE, _ESCAPE = b'{}"\\'


def encode_of_member(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The answer of GET_CONSUMER_STATUS_FROM_CLIENT."""
    return orjson.dumps({"consumerTable": {}, "messageQueueTable": queue_map(offsets)})


def encode_of_group(tables: Mapping[str, bytes]) -> bytes:
    """The answer of INVOKE_BROKER_TO_GET_CONSUMER_STATUS; `tables` by client, from `table_of_member`."""
    members = b",".join(b"%s:%s" % (orjson.dumps(client), table) for client, table in tables.items())
    return b'{"consumerTable":{%s},%s{}}' % (members, _TABLE)


def table_of_member(body: bytes) -> bytes:
    """The table in what a member has answered, braces included. Raises Refused where there is none."""
    start = body.find(_TABLE) + len(_TABLE)
    if start < len(_TABLE) or body[start : start + 1] != b"{":
        raise Refused(ResponseCode.SYSTEM_ERROR, "the body is no GetConsumerStatusBody")
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
    raise Refused(ResponseCode.SYSTEM_ERROR, "the body is a GetConsumerStatusBody that is cut off")
