"""Body: base class of JSON bodies with declared fields, and the JSON forms of message queues.

msgspec decodes bodies as RocketMQ writes them (a heartbeat takes 1.5 µs; field by field in Python, 7 µs).
Bodies that msgspec rejects, such as those of librocketmq with numbers in strings, are decoded by
`json_fields.conform` (15 µs).

RocketMQ writes a queue that is a map key as an unquoted object; the tools of RocketMQ 5.5 (fastjson2) read no
other form:

    {{"brokerName":"b","queueId":0,"topic":"T"}:5}
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
import orjson

from actors.wire.command import Buffer
from actors.wire.header import Int, Name, Topic, refuse_unbounded
from actors.wire.json_fields import check_values, conform, load_object, load_request
from store.message.message_queue import MessageQueue

wire = msgspec.field


class Body(msgspec.Struct, rename="camel"):
    """Base class of JSON bodies.

    A field `broker_name` is `brokerName` in JSON unless it declares another key. A field that is missing or
    null gets its default.
    """

    title: ClassVar[str] = ""
    values_max: ClassVar[int | None] = None
    """Maximum number of JSON values in a request with this body; None for the body of a response."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise TypeError for a text or list whose length is not bounded."""
        super().__init_subclass__(**options)
        refuse_unbounded(cls, {str, list, tuple, dict, set, frozenset})

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the object encoded in `body`. Raises Refused that names the invalid field and its value."""
        if cls.values_max is not None:
            check_values(body, cls.title or cls.__name__, cls.values_max)
        try:
            return msgspec.json.decode(body, type=cls)
        except (ValueError, RecursionError):
            return cls.from_json(cls.load(body))

    @classmethod
    def load(cls, body: Buffer) -> dict[str, Any]:
        """Return the JSON object in `body`. Raises Refused if it is not a JSON object."""
        what = cls.title or cls.__name__
        return load_object(body, what) if cls.values_max is None else load_request(body, what, cls.values_max)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the object for decoded JSON. Raises Refused if a field has the wrong type."""
        return conform(content, cls, cls.title or cls.__name__)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON keys and values, sorted by key, without fields that are None."""
        values = zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True)
        return {key: value for key, value in sorted(values, key=itemgetter(0)) if value is not None}

    def encode(self) -> bytes:
        """Return the body as JSON, with the keys sorted as in RocketMQ."""
        return encode_json(self)


class ShapedBody(Body):
    """Base class of bodies whose JSON differs from the declared fields.

    Null fields are omitted; a subclass may override `to_json`.
    """

    def encode(self) -> bytes:
        """Return the body as JSON, built from `to_json`."""
        return encode_json(self.to_json())


def encode_json(content: Any) -> bytes:
    """Return `content`, built-in types or bodies, as JSON with sorted keys."""
    return msgspec.json.encode(content, order="sorted")


class QueueObject(Body):
    """A message queue as a JSON object."""

    topic: Topic = ""
    broker_name: Name = ""
    queue_id: Int = 0

    @property
    def queue(self) -> MessageQueue:
        """The queue as a MessageQueue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


if TYPE_CHECKING:
    QueueField = MessageQueue
    QueueKey = MessageQueue
else:  # the types that msgspec decodes; `__post_init__` of a body converts them to MessageQueue
    QueueField, QueueKey = QueueObject, Any


def queue_of(queue: Any) -> MessageQueue:
    """Return a decoded queue as a MessageQueue; a MessageQueue is returned unchanged."""
    return queue.queue if isinstance(queue, QueueObject) else queue


def queue_json(queue: MessageQueue) -> dict[str, Any]:
    """Return the JSON object of a queue."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_table(values: Mapping[MessageQueue, Any]) -> msgspec.Raw:
    """Return a map with queues as keys in the form that RocketMQ writes, for `encode_json`."""
    entries = (encode_json(queue_json(queue)) + b":" + encode_json(value) for queue, value in values.items())
    return msgspec.Raw(b"{%b}" % b",".join(entries))


def queue_map(values: Mapping[MessageQueue, Any]) -> orjson.Fragment:
    """Return a map with queues as keys in the form that RocketMQ writes, for orjson."""
    return orjson.Fragment(bytes(queue_table(values)))


def queue_of_key(key: str | MessageQueue) -> MessageQueue:
    """Return the queue of a map key that `load_object` has decoded. Raises Refused if it is not a queue."""
    return key if isinstance(key, MessageQueue) else QueueObject.decode(key.encode()).queue
