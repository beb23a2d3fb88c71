"""What the bodies that tools read are made of: queues as objects and as keys, and objects of plain fields.

RocketMQ writes a queue that is a map key as a bare object; its 5.5 tools (fastjson2) read no other form:

    {{"brokerName":"b","queueId":0,"topic":"T"}:5}

Earlier versions of RayMQ wrote a JSON string that holds the object. Both forms are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import orjson

from actors.remoting.json_fields import get_bool, get_float, get_int, get_str, load_object
from store.message.message_queue import MessageQueue


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """A queue as an object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_of(content: Mapping[str, Any]) -> MessageQueue:
    """The queue that an object says. Raises Refused."""
    return MessageQueue(
        get_str(content, "topic"), get_str(content, "brokerName"), get_int(content, "queueId")
    )


def queue_map(values: Mapping[MessageQueue, Any]) -> orjson.Fragment:
    """Return a map from queues to JSON values as RocketMQ writes it, for a body that orjson encodes."""
    entries = (
        orjson.dumps(queue_json(queue)) + b":" + orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        for queue, value in values.items()
    )
    return orjson.Fragment(b"{%b}" % b",".join(entries))


def queue_of_key(key: str) -> MessageQueue:
    """Return the queue of a key that `load_object` has read. Raises Refused."""
    return queue_of(load_object(key.encode(), "queue"))


@dataclass(slots=True)
class Flat:
    """An object of numbers, texts and truth values, whose fields are ours in camelCase."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """As it stands in a body; what is missing has its default. Raises Refused."""
        return cls(**{each.name: _READ[each.type](content, _camel(each.name)) for each in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {_camel(each.name): getattr(self, each.name) for each in fields(self)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


_READ: Final[dict[Any, Any]] = {int: get_int, float: get_float, str: get_str, bool: get_bool}
