"""Validation of the arguments of a send, and the choice of the queue that they describe."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from inspect import signature
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar

from cluster.client.errors import ClientError, ConfigInvalid
from cluster.client.producer.outbound import with_owned_body
from cluster.client.producer.sender import Choose
from cluster.client.selectors import MessageQueueSelector, queue_index
from cluster.client.transport.topic_route import TopicRoute
from store.message.buffers import owned_bytes
from store.message.lite_topics import lite_topic_queue
from store.message.message import Message
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst

P = ParamSpec("P")
T = TypeVar("T")
SelfT = TypeVar("SelfT")


@dataclass(frozen=True, slots=True)
class KeyedChoice:
    """Chooses the queue of a sharding key by its hash."""

    key: str

    def __call__(self, route: TopicRoute) -> MessageQueue:
        """Return the queue of the key. Raises ClientError if no queue is writable."""
        return keyed_queues(route)[queue_index(self.key, len(route.keyed))]


@dataclass(frozen=True, slots=True)
class LiteChoice:
    """Chooses the queue of a lite topic, as RocketMQ's proxy does."""

    name: str

    def __call__(self, route: TopicRoute) -> MessageQueue:
        """Return the queue of the lite topic. Raises ClientError if no queue is writable."""
        return keyed_queues(route)[lite_topic_queue(self.name, len(route.keyed))]


@dataclass(frozen=True, slots=True)
class GivenQueue:
    """Chooses the queue that the caller gave."""

    queue: MessageQueue

    def __call__(self, route: TopicRoute) -> MessageQueue:
        """Return the queue. Raises ConfigInvalid if the route lacks it: a retry would not find it."""
        if reason := route.why_missing(self.queue):
            raise ConfigInvalid(f"{self.queue} does not exist: {reason}")
        return self.queue


def as_message(
    message: Message | str,
    body: bytes | str | None,
    tags: str | None,
    keys: str | Sequence[str] | None,
    properties: dict[str, str] | None,
    priority: int | None = None,
    lite_topic: str | None = None,
) -> Message:
    """Return `message` if it is a Message; else build one from the topic `message` and the other arguments.

    Raises ConfigInvalid if both a Message and other arguments are given, or if an argument is invalid.
    """
    if isinstance(message, Message):
        if body is not None or tags is not None or keys is not None or properties is not None:
            raise ConfigInvalid("give either a Message, or a topic with body, tags, keys and properties")
        if priority is not None or lite_topic is not None:
            raise ConfigInvalid(
                "give either a Message with its priority or lite topic, or a topic with body and these"
            )
        return with_owned_body(message)
    if body is None:
        raise ConfigInvalid(f"send to topic {message!r} without a body: give bytes or a string")
    try:
        return Message(
            message, as_body(body), tags, keys, properties, priority=priority, lite_topic=lite_topic
        )
    except TypeError as error:
        raise ConfigInvalid(f"message to topic {message!r}: {error}") from error


def delay_message(
    message: Message,
    given: object,
    delay_level: int,
    deliver_at: datetime | int | None,
    deliver_after: timedelta | int | None,
) -> None:
    """Set the delay of a message that `as_message` has built from `given`.

    Raises ConfigInvalid if `given` is a Message, or unless exactly one of the others is given and valid.
    """
    if isinstance(given, Message):
        raise ConfigInvalid("give either a Message with its delay, or a topic with body and delay")
    if (deliver_at is not None) + (deliver_after is not None) + (delay_level != 0) != 1:
        raise ConfigInvalid("give only one of delay_level, deliver_at and deliver_after")
    if deliver_at is not None:
        message.deliver_at_ms = _time_ms(deliver_at)
    elif deliver_after is not None:
        message.delay_ms = _duration_ms(deliver_after)
    elif type(delay_level) is not int or delay_level < 0:
        raise ConfigInvalid(f"delay_level is {delay_level!r}: give 1 to 18, or 0 for no delay")
    else:
        message.delay_level = delay_level


def _time_ms(time: object) -> int:
    if isinstance(time, datetime) and time.tzinfo is not None:
        return round(time.timestamp() * 1000)
    if type(time) is int and time > 0:
        return time
    raise ConfigInvalid(
        f"deliver_at is {time!r}: give a datetime with a time zone, or milliseconds since the epoch"
    )


def _duration_ms(duration: object) -> int:
    ms = round(duration.total_seconds() * 1000) if isinstance(duration, timedelta) else duration
    if type(ms) is int and ms > 0:
        return ms
    raise ConfigInvalid(f"deliver_after is {duration!r}: give a timedelta or milliseconds greater than 0")


def as_body(body: object) -> bytes:
    """Return the body given as a string, bytes or another buffer as bytes of its own.

    Raises TypeError for any other value, and for a string that UTF-8 cannot encode.
    """
    if not isinstance(body, str):
        return owned_bytes(body)
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"body is a string that cannot be encoded: {error}") from error


def capturing(
    method: Callable[Concatenate[SelfT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SelfT, P], Coroutine[Any, Any, T]]:
    """Decorator of a coroutine method that sends: copy the arguments that may change at the call.

    A coroutine starts to run later than the call, for example in a task. Invalid arguments raise there.
    """

    names = list(signature(method).parameters)[1:]

    @wraps(method)
    def call(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        if _IMMUTABLE.issuperset(map(type, args)) and _IMMUTABLE.issuperset(map(type, kwargs.values())):
            return method(self, *args, **kwargs)  # the hot path: there is nothing to copy
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        own: Any = {name: _CAPTURES.get(name, _as_given)(each) for name, each in given.items()}
        if len(own) < len(args) + len(kwargs):  # an invalid call: raise Python's own error
            return method(self, *args, **kwargs)
        return take(self, **own)

    take: Callable[..., Coroutine[Any, Any, T]] = method
    return call


def captured(value: object) -> object:
    """Return `value`, an argument of a send, or a copy that does not change if the caller changes `value`."""
    if isinstance(value, _TEXTS):
        return value
    with suppress(TypeError):  # it has no valid body: the send itself refuses it
        if isinstance(value, Message):
            # `copy` takes three times as long.
            own = Message(value.topic, b"", flag=value.flag) if type(value) is Message else copy(value)
            own.body, own.properties = owned_bytes(value.body), dict(value.properties)
            return own
        if isinstance(value, list | tuple):
            return list(value) if set(map(type, value)) <= _IMMUTABLE else list(map(captured, value))
        return dict(value) if isinstance(value, Mapping) else owned_bytes(value)
    return value


def _captured_column(values: object) -> object:
    """Return a copy of `values`, one element for each message: a list, an array or another sequence."""
    with suppress(TypeError):  # it cannot be copied, for example a generator
        return captured(values) if isinstance(values, list | tuple | str) else copy(values)
    return values


def _as_given(value: object) -> object:
    return value


_TEXTS = (str, bytes, NoneType)
_IMMUTABLE = frozenset((bytes, str, int, NoneType))
_CAPTURES: Mapping[str, Callable[[object], object]] = {
    **dict.fromkeys(("message", "messages", "request", "body", "properties"), captured),
    **dict.fromkeys(("bodies", "keys", "tags", "sharding_keys"), _captured_column),
}


def check_queue_of_topic(topic: str, queue: object) -> None:
    """Raise ConfigInvalid unless `queue` is a MessageQueue of `topic` with a valid queue id."""
    if not isinstance(queue, MessageQueue):
        raise ConfigInvalid(f"queue is {queue!r}: give one of Producer.queues(topic)")
    if queue.queue_id < 0:
        raise ConfigInvalid(f"{queue} does not exist: give one of Producer.queues(topic)")
    if queue.topic != topic:
        raise ConfigInvalid(f"a message of topic {topic!r} cannot be sent to {queue}: its topic differs")


def chooser(
    message: Message,
    sharding_key: str | None,
    queue: MessageQueue | None,
    selector: MessageQueueSelector | None,
    argument: object,
) -> Choose | None:
    """Return a function that chooses the queue of `message`; None if the message may use any queue.

    Raises ConfigInvalid if one of `sharding_key`, `queue` and `selector` is invalid, or several are given,
    also of the message's own choice: its priority or lite topic.
    """
    lite_topic = message.properties.get(MessageConst.LITE_TOPIC)
    if sharding_key is None and queue is None and selector is None and argument is None:
        return None if lite_topic is None else LiteChoice(lite_topic)  # the hot path
    if lite_topic is not None:
        raise ConfigInvalid("a lite topic has its queue: give no sharding_key, queue or selector with it")
    if (sharding_key is not None) + (queue is not None) + (selector is not None) > 1:
        raise ConfigInvalid("give only one of sharding_key, queue and selector")
    if queue is not None:
        check_queue_of_topic(message.topic, queue)
        return GivenQueue(queue)
    if sharding_key is not None:
        if not isinstance(sharding_key, str):
            raise ConfigInvalid(
                f"sharding_key of a message to topic {message.topic!r} is {sharding_key!r}: give a string"
            )
        return KeyedChoice(sharding_key)
    if selector is not None:
        if not callable(selector) or isinstance(selector, type):
            raise ConfigInvalid(
                f"selector is {selector!r}: give a function with the parameters queues, message and argument "
                "or an instance of a class such as SelectMessageQueueByHash"
            )
        return _selected(selector, message, argument)
    if argument is not None:
        raise ConfigInvalid(f"argument {argument!r} is given without a selector: give a selector too")
    return None


def keyed_queues(route: TopicRoute) -> Sequence[MessageQueue]:
    """Return the queues among which keys choose. Raises ClientError if no queue is writable."""
    if not route.keyed:
        raise ClientError(
            f"topic {route.topic!r} has no writable queue: check its permission and its brokers"
        )
    return route.keyed


def _selected(
    selector: MessageQueueSelector, message: Message, argument: object
) -> Callable[[TopicRoute], MessageQueue]:
    def choose(route: TopicRoute) -> MessageQueue:
        queue = selector(keyed_queues(route), message, argument)
        if not isinstance(queue, MessageQueue) or queue.topic != message.topic:
            raise ConfigInvalid(
                f"the selector returned {queue!r} for a message of topic {message.topic!r}: "
                "it must return one of the queues passed to it"
            )
        return queue

    return choose
