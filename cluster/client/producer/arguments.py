"""Validation of the arguments of a send, and the choice of the queue that they describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster.client.errors import ClientError, ConfigInvalid
from cluster.client.producer.sender import Choose
from cluster.client.selectors import MessageQueueSelector, queue_index
from cluster.client.transport.topic_route import TopicRoute
from store.message.message import Message
from store.message.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class KeyedChoice:
    """Chooses the queue of a sharding key by its hash."""

    key: str

    def __call__(self, route: TopicRoute) -> MessageQueue:
        """Return the queue of the key. Raises ClientError if no queue is writable."""
        return keyed_queues(route)[queue_index(self.key, len(route.keyed))]


def as_message(
    message: Message | str,
    body: bytes | str | None,
    tags: str | None,
    keys: str | Sequence[str] | None,
    properties: dict[str, str] | None,
) -> Message:
    """Return `message` if it is a Message; else build one from the topic `message` and the other arguments.

    Raises ConfigInvalid if both a Message and other arguments are given, or if an argument is invalid.
    """
    if isinstance(message, Message):
        if body is not None or tags is not None or keys is not None or properties is not None:
            raise ConfigInvalid("give either a Message, or a topic with body, tags, keys and properties")
        return message
    if body is None:
        raise ConfigInvalid(f"send to topic {message!r} without a body: give bytes or a string")
    data = body.encode() if isinstance(body, str) else body
    try:
        return Message(message, data, tags, keys, properties)
    except TypeError as error:
        raise ConfigInvalid(f"message to topic {message!r}: {error}") from error


def check_queue(topic: str, queue: object) -> None:
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

    Raises ConfigInvalid if one of `sharding_key`, `queue` and `selector` is invalid, or several are given.
    """
    if (sharding_key is not None) + (queue is not None) + (selector is not None) > 1:
        raise ConfigInvalid("give only one of sharding_key, queue and selector")
    if queue is not None:
        check_queue(message.topic, queue)
        return lambda _route: queue
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
