"""OutboundFactory: validates messages, assigns UNIQ_KEYs and encodes SEND_MESSAGE_V2 requests.

Thread-safe, no I/O.

The header fields of the request have RocketMQ's one-letter names:

    a producerGroup    b topic    c defaultTopic    d defaultTopicQueueNums    e queueId      f sysFlag
    g bornTimestamp    h flag     i properties      j reconsumeTimes           k unitMode     m batch
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from cluster.client.config import ProducerConfig
from cluster.client.errors import ConfigInvalid, MessageRejected
from cluster.client.transport.compiled import CompiledLater
from cluster.client.transport.instance import local_address
from cluster.client.transport.route_cache import AUTO_CREATE_TOPIC
from store.common.clock import Clock
from store.message.batch import encode_elements
from store.message.buffers import owned_bytes
from store.message.compression import MAX_PLAIN_BYTES, compress
from store.message.message import Message
from store.message.message_id import UniqKeyGenerator
from store.message.priority import overruled_by, priority_of
from store.message.properties import MessageConst, properties_text, properties_texts
from store.message.sys_flag import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from store.message.validate import check_body, check_properties, check_topic
from store.plausible_time import DELIVERY_AHEAD_MS, implausible
from store.store_errors import MessageInvalid

# Plain integers, because an attribute of an enum is slower on the hot path.
_ONE = int(RequestCode.SEND_MESSAGE_V2)
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

_TIMES = {MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS, MessageConst.TIMER_DELIVER_MS}
_PRIORITY = f"{MessageConst.PRIORITY}\x01".encode()
_COMPRESSIONS = {"zlib": COMPRESSION_ZLIB, "lz4": COMPRESSION_LZ4, "zstd": COMPRESSION_ZSTD}

# Space for the properties that the broker adds: MSG_REGION, TRACE_ON and CLUSTER.
BROKER_PROPERTIES_BYTES = 128


_Encode: TypeAlias = Callable[[Sequence[Message], Sequence[str], int, int], bytes | None]


def _compiled_encoder() -> _Encode:
    from store.kernels.messages_to_batch import encode_message_batch

    return encode_message_batch


def _needs_slow_path(
    messages: Sequence[Message], ids: Sequence[str], max_body_bytes: int, reserved_bytes: int
) -> bytes | None:
    """Return None, so that the caller encodes the batch message by message. Used until kernels are loaded."""


_encode_ordinary: CompiledLater[[Sequence[Message], Sequence[str], int, int], bytes | None] = CompiledLater(
    _needs_slow_path, _compiled_encoder
)


class Outbound(msgspec.Struct, frozen=True):
    """A validated message or batch whose queue is not chosen yet.

    Attributes:
        topic: The topic.
        code: Request code, SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE.
        group: The producer group.
        queue_nums: Number of queues if the broker creates the topic, as a string.
        born_timestamp: Time of the send in milliseconds since the epoch.
        flag: The message's flag.
        properties: Encoded properties.
        body: Body of the request, compressed if `sys_flag` says so.
        msg_id: UNIQ_KEY; of a batch, the UNIQ_KEYs joined by commas.
        sys_flag: The sysFlag of the message.
    """

    topic: str
    code: int
    group: str
    queue_nums: str
    born_timestamp: int
    flag: int
    properties: str
    body: bytes
    msg_id: str
    sys_flag: int = 0

    def command(self, queue_id: int) -> RemotingCommand:
        """Return a new request for the queue with this id. Each attempt needs its own request."""
        ext = {
            "a": self.group,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": self.queue_nums,
            "e": str(queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
        }
        if self.code == _BATCH:
            ext["m"] = "true"
        return RemotingCommand(self.code, ext, self.body)


class OutboundFactory:
    """Builds the requests of one producer."""

    def __init__(self, config: ProducerConfig, clock: Clock, seed: int | None = None) -> None:
        self._config = config
        self._clock = clock
        salt = random.SystemRandom() if seed is None else random.Random(seed)
        self.uniq_keys = UniqKeyGenerator(local_address(), os.getpid(), clock, salt)
        self._checked_topics: set[str] = set()
        self._queue_nums = str(config.default_topic_queue_nums)

    def message(self, message: Message) -> Outbound:
        """Return the request that sends `message`.

        Raises MessageRejected if the message is invalid, ConfigInvalid if a field of it has the wrong type.
        """
        message = with_owned_body(message)
        self.check_topic(message.topic)
        _check_flag(message)
        try:
            body, sys_flag = self._compressed(message.body)
            check_body(body, self._config.max_message_bytes)
            properties, msg_id = self._properties(message)
        except MessageInvalid as error:
            raise rejected(error) from error
        except TypeError as error:
            raise _wrong_type(message, error) from error
        return self._outbound(message.topic, _ONE, message.flag, properties, body, msg_id, sys_flag)

    def _compressed(self, body: bytes) -> tuple[bytes, int]:
        """Return the body, compressed if that makes it smaller, and its sysFlag.

        Raises MessageInvalid if the body exceeds the size to which consumers decompress one.
        """
        config = self._config
        if len(body) < config.compress_over_bytes or config.compression is None:
            return body, 0
        if len(body) > MAX_PLAIN_BYTES:
            raise MessageInvalid(
                f"body of {len(body):,} bytes exceeds {MAX_PLAIN_BYTES:,} bytes, the maximum that consumers "
                "decompress: split the message"
            )
        packed, sys_flag = compress(body, _COMPRESSIONS[config.compression], config.compression_level)
        return (packed, sys_flag) if len(packed) < len(body) else (body, 0)

    def batch(self, messages: Sequence[Message]) -> Outbound:
        """Return the request that sends `messages` as one batch.

        Raises MessageRejected if a message is invalid, ConfigInvalid if `messages` is not a sequence of
        messages or is empty.
        """
        if not messages:
            raise ConfigInvalid("the batch is empty: give at least one message")
        if not isinstance(messages, Sequence):
            raise ConfigInvalid(f"the batch is a {type(messages).__name__}: give a list of messages")
        messages = with_owned_bodies(messages)
        topic = messages[0].topic
        self.check_topic(topic)
        try:
            body, ids = self._batch_body(messages, topic)
            check_body(body, self._config.max_message_bytes)
        except MessageInvalid as error:
            raise rejected(error) from error
        except TypeError as error:
            raise _wrong_type(messages[0], error) from error
        return self._outbound(topic, _BATCH, 0, "", body, ",".join(ids))

    def _batch_body(self, messages: Sequence[Message], topic: str) -> tuple[bytes, list[str]]:
        new_ids = self.uniq_keys.next_block(len(messages)).keys(len(messages))
        body = _encode_ordinary(messages, new_ids, self._config.max_message_bytes, BROKER_PROPERTIES_BYTES)
        _encode_ordinary.count(len(messages))
        if body is None or _PRIORITY in body:
            return self._careful_batch_body(messages, topic, new_ids)
        return body, new_ids

    def _careful_batch_body(
        self, messages: Sequence[Message], topic: str, new_ids: list[str]
    ) -> tuple[bytes, list[str]]:
        maps = [message.properties for message in messages]
        self._check_batch(messages, maps, topic)
        own_ids = [properties.get(MessageConst.UNIQ_KEY) for properties in maps]
        texts = [
            text if own_id else f"{text}{MessageConst.UNIQ_KEY}\x01{new_id}\x02"
            for text, own_id, new_id in zip(properties_texts(maps), own_ids, new_ids, strict=True)
        ]
        ids = [own_id or new_id for own_id, new_id in zip(own_ids, new_ids, strict=True)]
        return encode_elements(messages, texts, reserved_bytes=BROKER_PROPERTIES_BYTES), ids

    def _check_batch(self, messages: Sequence[Message], maps: Sequence[dict[str, str]], topic: str) -> None:
        max_bytes = self._config.max_message_bytes
        for message, properties in zip(messages, maps, strict=True):
            if message.topic != topic:
                raise MessageInvalid(
                    f"the batch contains topics {topic!r} and {message.topic!r}: send a batch for each topic"
                )
            if properties.get(MessageConst.DELAY, "0") != "0" or not _TIMES.isdisjoint(properties):
                raise MessageInvalid("a batch contains a delayed message: send delayed messages one by one")
            if MessageConst.PRIORITY in properties:
                raise MessageInvalid("a batch contains a message with a priority: send such ones one by one")
            _check_flag(message)
            if not 0 < len(message.body) <= max_bytes:
                check_body(message.body, max_bytes)

    def check_topic(self, topic: str) -> None:
        """Raise MessageRejected unless `topic` is a valid topic name. Valid names are cached."""
        if topic not in self._checked_topics:
            try:
                check_topic(topic)
            except MessageInvalid as error:
                raise rejected(error) from error
            self._checked_topics.add(topic)

    def _outbound(
        self,
        topic: str,
        code: int,
        flag: int,
        properties: str,
        body: bytes,
        msg_id: str,
        sys_flag: int = 0,
    ) -> Outbound:
        now_ms = self._clock.wall_ms()
        group, queue_nums = self._config.group, self._queue_nums
        return Outbound(topic, code, group, queue_nums, now_ms, flag, properties, body, msg_id, sys_flag)

    def _properties(self, message: Message) -> tuple[str, str]:
        """Return the encoded properties and the UNIQ_KEY. The message is not modified."""
        properties = message.properties
        if MessageConst.TIMER_DELIVER_MS in properties:
            self._check_delivery(message)
        if MessageConst.PRIORITY in properties:
            _check_priority(properties)
        msg_id = properties.get(MessageConst.UNIQ_KEY)
        if msg_id is None:
            msg_id = self.uniq_keys.next()
            added = f"{MessageConst.UNIQ_KEY}\x01{msg_id}\x02"
            if not properties:
                return added, msg_id
        else:
            added = ""
        text = properties_text(properties) + added
        encoded = text.encode("utf-8", "replace")
        check_properties(encoded, BROKER_PROPERTIES_BYTES)
        return text if text.isascii() else encoded.decode(), msg_id  # a lone surrogate was replaced by "?"

    def _check_delivery(self, message: Message) -> None:
        """Raise MessageInvalid for a delivery time in seconds or microseconds."""
        given = message.properties[MessageConst.TIMER_DELIVER_MS]
        if not given.isascii() or not given.isdigit():
            return  # the broker refuses it
        why = implausible(int(given), self._clock.wall_ms(), DELIVERY_AHEAD_MS)
        if why is not None:
            raise MessageInvalid(f"the delivery time {why}")


def _check_priority(properties: Mapping[str, str]) -> None:
    """Raise MessageInvalid if the broker would ignore the priority of a message, or remove it."""
    if priority_of(properties) is None:
        raise MessageInvalid(
            f"the priority is {properties[MessageConst.PRIORITY]!r}: it must be an integer from 0 on"
        )
    if (other := overruled_by(properties)) is not None:
        raise MessageInvalid(
            f"the message has a priority and property {other}: delayed messages, transactions and messages "
            "with a sharding key have no priority"
        )


def with_owned_body(message: Message) -> Message:
    """Return `message` if its body is bytes, else a copy with the bytes that its body has now.

    All sends call this in the caller's thread, before the first retry, queue or await: the caller may change
    the buffer after the call. Raises ConfigInvalid if `message` is not a Message or its body is not a buffer.
    """
    if not isinstance(message, Message):
        raise ConfigInvalid(f"{message!r} is not a Message: give cluster.client.Message objects")
    if type(message.body) is bytes:
        return message
    try:
        body = owned_bytes(message.body)
    except TypeError as error:
        raise ConfigInvalid(f"message to topic {message.topic!r}: {error}") from error
    return Message(message.topic, body, properties=message.properties, flag=message.flag)


def with_owned_bodies(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of a batch, each as `with_owned_body` returns it."""
    try:
        if {type(message.body) for message in messages} == {bytes}:
            return messages
    except AttributeError:  # not a Message: named below
        pass
    return [with_owned_body(message) for message in messages]


def _check_flag(message: Message) -> None:
    flag: object = message.flag
    if type(flag) is not int or not -(2**31) <= flag < 2**31:
        raise ConfigInvalid(
            f"the flag of a message to topic {message.topic!r} is {flag!r}: give an integer of 32 bits"
        )


def _wrong_type(message: Message, error: TypeError) -> ConfigInvalid:
    return ConfigInvalid(f"a field of a message to topic {message.topic!r} has the wrong type: {error}")


def rejected(error: MessageInvalid) -> MessageRejected:
    """Return the MessageRejected for a message that the client itself found invalid."""
    return MessageRejected(ResponseCode.MESSAGE_ILLEGAL, str(error), "", False)
