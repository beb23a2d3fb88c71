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
from actors.remoting.command import RemotingCommand
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

# As plain numbers: an enum's attribute costs more on the hot path.
_ONE = int(RequestCode.SEND_MESSAGE_V2)
_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)

# The broker adds MSG_REGION, TRACE_ON and CLUSTER to what a client sends.
BROKER_PROPERTIES_BYTES = 128


class Outbound(NamedTuple):
    """One request to be sent to one queue, whichever that will be. `properties` is the header's text."""

    topic: str
    code: int
    group: str
    queue_nums: str
    born_timestamp: int
    flag: int
    properties: str
    body: bytes
    msg_id: str

    def command(self, queue_id: int) -> RemotingCommand:
        """The request that puts it into the queue with this id. A new one for each attempt."""
        ext = {
            "a": self.group,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": self.queue_nums,
            "e": str(queue_id),
            "f": "0",
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
        }
        if self.code == _BATCH:
            ext["m"] = "true"
        return RemotingCommand(self.code, ext, self.body)


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
        return self._outbound(message.topic, _ONE, message.flag, properties, message.body, msg_id)

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
        return self._outbound(topic, _BATCH, 0, "", body, ",".join(ids))

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

    def _outbound(
        self, topic: str, code: int, flag: int, properties: str, body: bytes, msg_id: str
    ) -> Outbound:
        now_ms = self._clock.wall_ms()
        return Outbound(
            topic, code, self._config.group, self._queue_nums, now_ms, flag, properties, body, msg_id
        )

    def _properties(self, message: Message) -> tuple[str, str]:
        """The property text with its UNIQ_KEY. The caller's message stays as it is: it may be sent again."""
        properties = message.properties
        msg_id = properties.get(MessageConst.UNIQ_KEY)
        if msg_id is None:
            msg_id = self.uniq_keys.next()
            added = f"{MessageConst.UNIQ_KEY}\x01{msg_id}\x02"
            if not properties:
                return added, msg_id
        else:
            added = ""
        encoded = encode_properties(properties)
        check_properties(encoded, BROKER_PROPERTIES_BYTES + len(added))
        return encoded.decode() + added, msg_id

    @staticmethod
    def _with_id(message: Message, msg_id: str) -> Message:
        if MessageConst.UNIQ_KEY in message.properties:
            return message
        properties = {**message.properties, MessageConst.UNIQ_KEY: msg_id}
        return Message(message.topic, message.body, properties=properties, flag=message.flag)


def rejected(error: MessageIllegal) -> MessageRejected:
    """The client's error for a message that fails its checks before it is sent."""
    return MessageRejected(ResponseCode.MESSAGE_ILLEGAL, str(error), "", False)
