"""A message made ready to be sent: checked, given its id, and put into a SEND_MESSAGE_V2 header.
Thread-safe, no I/O.

The header's fields have RocketMQ's one-letter names (protocols.md, B.4):

    a producerGroup    b topic    c defaultTopic    d defaultTopicQueueNums    e queueId      f sysFlag
    g bornTimestamp    h flag     i properties      j reconsumeTimes           k unitMode     m batch
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import NamedTuple

from actors.remoting.codes import RequestCode, ResponseCode
from cluster.client.config import ProducerConfig
from cluster.client.core.instance import local_address
from cluster.client.core.route_table import AUTO_CREATE_TOPIC
from cluster.client.errors import ConfigInvalid, MessageRejected
from store.clock import Clock
from store.errors import MessageIllegal
from store.message.batch import encode_batch
from store.message.message import Message
from store.message.message_id import UniqKeyGenerator
from store.message.properties import MessageConst, encode_properties
from store.message.validate import check_body, check_group, check_properties, check_topic

# The broker adds MSG_REGION, TRACE_ON and CLUSTER to what a client sends.
BROKER_PROPERTIES_BYTES = 128


class Outbound(NamedTuple):
    """One request to be sent to one queue: `ext` lacks the queue id."""

    topic: str
    code: int
    ext: dict[str, str]
    body: bytes
    msg_id: str


class OutboundFactory:
    """Makes requests of one producer."""

    def __init__(self, config: ProducerConfig, clock: Clock, seed: int | None = None) -> None:
        try:
            check_group(config.group)
        except MessageIllegal as error:
            raise ConfigInvalid(f"producer group: {error}") from error
        self._config = config
        self._clock = clock
        salt = random.SystemRandom() if seed is None else random.Random(seed)
        self.uniq_keys = UniqKeyGenerator(local_address(), os.getpid(), clock, salt)
        self._checked_topics: set[str] = set()
        self._queue_nums = str(config.default_topic_queue_nums)

    def message(self, message: Message) -> Outbound:
        """The request that sends one message. Raises MessageRejected when the broker would refuse it."""
        try:
            self.check_topic(message.topic)
            check_body(message.body, self._config.max_message_bytes)
            properties, msg_id = self._properties(message)
        except MessageIllegal as error:
            raise rejected(error) from error
        ext = self._ext(message.topic, message.flag)
        ext["i"] = properties.decode()
        return Outbound(message.topic, RequestCode.SEND_MESSAGE_V2, ext, message.body, msg_id)

    def batch(self, messages: Sequence[Message]) -> Outbound:
        """The request that stores `messages` in one queue, all or nothing. Raises MessageRejected,
        ConfigInvalid.
        """
        if not messages:
            raise ConfigInvalid("the batch is empty: give at least one message")
        topic = messages[0].topic
        ids = []
        try:
            self.check_topic(topic)
            ready = []
            for message in messages:
                self._check_member(message, topic)
                _, msg_id = self._properties(message)
                ids.append(msg_id)
                ready.append(self._with_id(message, msg_id))
            body = encode_batch(ready)
            check_body(body, self._config.max_message_bytes)
        except MessageIllegal as error:
            raise rejected(error) from error
        ext = self._ext(topic, 0)
        ext["i"] = ""
        ext["m"] = "true"
        return Outbound(topic, RequestCode.SEND_BATCH_MESSAGE, ext, body, ",".join(ids))

    def _check_member(self, message: Message, topic: str) -> None:
        if message.topic != topic:
            raise MessageIllegal(f"the batch holds topics {topic!r} and {message.topic!r}: send them apart")
        if message.delay_level:
            raise MessageIllegal("a delayed message cannot be part of a batch: send it alone")
        check_body(message.body, self._config.max_message_bytes)

    def check_topic(self, topic: str) -> None:
        """Raise MessageIllegal unless `topic` is a possible name; remembers those that are."""
        if topic not in self._checked_topics:
            check_topic(topic)
            self._checked_topics.add(topic)

    def _ext(self, topic: str, flag: int) -> dict[str, str]:
        return {
            "a": self._config.group,
            "b": topic,
            "c": AUTO_CREATE_TOPIC,
            "d": self._queue_nums,
            "f": "0",
            "g": str(self._clock.wall_ms()),
            "h": str(flag),
        }

    def _properties(self, message: Message) -> tuple[bytes, str]:
        """The property string with its UNIQ_KEY. The caller's message stays as it is: it may be sent
        again.
        """
        properties = message.properties
        msg_id = properties.get(MessageConst.UNIQ_KEY)
        if msg_id is None:
            msg_id = self.uniq_keys.next()
            properties = {**properties, MessageConst.UNIQ_KEY: msg_id}
        encoded = encode_properties(properties)
        check_properties(encoded, BROKER_PROPERTIES_BYTES)
        return encoded, msg_id

    @staticmethod
    def _with_id(message: Message, msg_id: str) -> Message:
        if MessageConst.UNIQ_KEY in message.properties:
            return message
        properties = {**message.properties, MessageConst.UNIQ_KEY: msg_id}
        return Message(message.topic, message.body, properties=properties, flag=message.flag)


def rejected(error: MessageIllegal) -> MessageRejected:
    """The client's error for a message that fails its checks before it is sent."""
    return MessageRejected(ResponseCode.MESSAGE_ILLEGAL, str(error), "", False)
