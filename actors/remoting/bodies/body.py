"""Body: a JSON body, whose fields are declared once; and queues as objects and as keys of maps.

A body as RocketMQ writes it is decoded by msgspec (a heartbeat: 1.5 µs, field by field in Python: 7 µs). What
msgspec refuses, such as the numbers in strings of librocketmq, is read by `json_fields.conform` (15 µs).

RocketMQ writes a queue that is a map key as a bare object; its 5.5 tools (fastjson2) read no other form:

    {{"brokerName":"b","queueId":0,"topic":"T"}:5}

Earlier versions of RayMQ wrote a JSON string that holds the object. Both forms are read.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import orjson

from actors.remoting.command import Buffer
from actors.remoting.header import Long
from actors.remoting.json_fields import conform, load_object
from store.message.message_queue import MessageQueue

wire = msgspec.field


class Body(msgspec.Struct, rename="camel"):
    """Base of JSON objects: a field `broker_name` is `brokerName` in JSON unless it names another key.

    A field that is missing or null has its default.
    """

    title: ClassVar[str] = ""

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the object in `body`. Raises Refused that names field and value."""
        try:
            return msgspec.json.decode(body, type=cls)
        except (ValueError, RecursionError):
            return cls.from_json(load_object(body, cls.title or cls.__name__))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the object in decoded JSON. Raises Refused."""
        return conform(content, cls, cls.title or cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not None, sorted by name."""
        values = zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True)
        return {key: value for key, value in sorted(values, key=itemgetter(0)) if value is not None}

    def encode(self) -> bytes:
        """Return the body, its fields sorted by name as RocketMQ does."""
        return encode_json(self)


class ShapedBody(Body):
    """Base of bodies that leave out what is None, or override `to_json` because JSON has another shape."""

    def encode(self) -> bytes:
        """Return the body."""
        return encode_json(self.to_json())


def encode_json(content: Any) -> bytes:
    """Return the JSON of builtins and bodies, all fields sorted by name."""
    return msgspec.json.encode(content, order="sorted")


class QueueObject(Body):
    """A queue as an object."""

    topic: str = ""
    broker_name: str = ""
    queue_id: Long = 0

    @property
    def queue(self) -> MessageQueue:
        """The queue itself."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


if TYPE_CHECKING:
    QueueField = MessageQueue
    QueueKey = MessageQueue
else:  # what msgspec decodes; `__post_init__` of a body makes it a MessageQueue
    QueueField, QueueKey = QueueObject, Any


def queue_of(queue: Any) -> MessageQueue:
    """Return a queue that msgspec has decoded, or one that is a MessageQueue already."""
    return queue.queue if isinstance(queue, QueueObject) else queue


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """Return a queue as an object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_table(values: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """Return a map from queues to JSON values as RocketMQ writes it, for `encode_json`."""
    entries = (encode_json(queue_json(queue)) + b":" + encode_json(value) for queue, value in values.items())
    return msgspec.Raw(b"{%b}" % b",".join(entries))


def queue_map(values: Mapping[MessageQueue, Any]) -> orjson.Fragment:
    """Return the same for a body that orjson encodes."""
    return orjson.Fragment(bytes(queue_table(values)))


def queue_of_key(key: str | MessageQueue) -> MessageQueue:
    """Return the queue of a key that `load_object` has read. Raises Refused."""
    return key if isinstance(key, MessageQueue) else QueueObject.decode(key.encode()).queue
