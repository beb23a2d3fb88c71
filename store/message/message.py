"""Message, created by a producer, and MessageExt, a stored message with the fields that the broker added."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from store.message.hosts import Host
from store.message.lite_topics import NAMES, is_valid_name
from store.message.message_id import offset_message_id
from store.message.priority import PRIORITY_MAX, priority_of
from store.message.properties import KEY_SEPARATOR, MessageConst

UNKNOWN_HOST = Host("0.0.0.0", 0)
# Looking up a global is faster than an attribute of MessageConst; this runs for every message.
_TAGS, _KEYS, _UNIQ_KEY = MessageConst.TAGS, MessageConst.KEYS, MessageConst.UNIQ_KEY


@dataclass(slots=True, init=False)
class Message:
    """A message to send: topic, body and properties.

    As in RocketMQ, tags, keys, the delay level, the delivery time, the priority and the lite topic are stored
    as properties.

    Raises:
        TypeError: Tags, keys, or the names or values of the properties are not strings.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int

    def __init__(
        self,
        topic: str,
        body: bytes,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        *,
        flag: int = 0,
        delay_level: int = 0,
        delay_ms: int = 0,
        deliver_at_ms: int = 0,
        priority: int | None = None,
        lite_topic: str | None = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties = given = _checked_properties(properties) if properties else {}
        # The client puts "of a message to …" after the first word of this module's errors: keep their form.
        if tags is not None:
            if not isinstance(tags, str):
                raise TypeError(f"tags are {tags!r}: give a string")
            given[_TAGS] = tags
        if keys is not None:
            given[_KEYS] = keys if isinstance(keys, str) else _join_keys(keys)
        if delay_level:
            self.delay_level = delay_level
        if delay_ms:
            self.delay_ms = delay_ms
        if deliver_at_ms:
            self.deliver_at_ms = deliver_at_ms
        if priority is not None:
            self.priority = priority
        if lite_topic is not None:
            self.lite_topic = lite_topic

    @property
    def tags(self) -> str | None:
        """The tag by which consumers filter messages (property TAGS), or None."""
        return self.properties.get(_TAGS)

    @tags.setter
    def tags(self, tags: str) -> None:
        self.properties[_TAGS] = tags

    @property
    def keys(self) -> str | None:
        """The index keys of the message, separated by spaces (property KEYS), or None."""
        return self.properties.get(_KEYS)

    @keys.setter
    def keys(self, keys: str) -> None:
        self.properties[_KEYS] = keys

    @property
    def delay_level(self) -> int:
        """The delay level, 1 to 18, or 0 if the message is not delayed (property DELAY)."""
        return int(self.properties.get(MessageConst.DELAY) or 0)

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        self.properties[MessageConst.DELAY] = str(level)

    @property
    def delay_ms(self) -> int:
        """How long the broker keeps the message before it delivers it, in ms, or 0 (property TIMER_DELAY_MS).

        A delay level has precedence over this delay, and this delay over `deliver_at_ms`.
        """
        return int(self.properties.get(MessageConst.TIMER_DELAY_MS) or 0)

    @delay_ms.setter
    def delay_ms(self, delay_ms: int) -> None:
        self.properties[MessageConst.TIMER_DELAY_MS] = str(delay_ms)

    @property
    def deliver_at_ms(self) -> int:
        """When the broker delivers the message, in ms since the epoch, or 0 (property TIMER_DELIVER_MS).

        RayMQ's brokers set it in every message that they have delivered at a time of its own.
        """
        return int(self.properties.get(MessageConst.TIMER_DELIVER_MS) or 0)

    @deliver_at_ms.setter
    def deliver_at_ms(self, time_ms: int) -> None:
        self.properties[MessageConst.TIMER_DELIVER_MS] = str(time_ms)

    @property
    def priority(self) -> int | None:
        """The priority, 0 or more, or None (property _SYS_MSG_PRIORITY_): a larger number is more urgent."""
        return priority_of(self.properties)

    @priority.setter
    def priority(self, priority: int) -> None:
        if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
            raise TypeError(f"priority is {priority!r}: give an integer from 0 to {PRIORITY_MAX:,}")
        self.properties[MessageConst.PRIORITY] = str(priority)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic of a message to a topic of type LITE, or None (property __LITE_TOPIC)."""
        return self.properties.get(MessageConst.LITE_TOPIC)

    @lite_topic.setter
    def lite_topic(self, name: str) -> None:
        if not isinstance(name, str) or not is_valid_name(name):
            raise TypeError(f"lite_topic is {name!r:.100}: {NAMES}")
        self.properties[MessageConst.LITE_TOPIC] = name

    @property
    def uniq_key(self) -> str | None:
        """The message id that the producer assigned (property UNIQ_KEY), or None."""
        return self.properties.get(_UNIQ_KEY)


def _join_keys(keys: Sequence[str]) -> str:
    try:
        return KEY_SEPARATOR.join(keys)
    except TypeError as error:
        raise TypeError(f"keys are {keys!r}: give a string or a sequence of strings") from error


def _checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties are {properties!r}: give a mapping of strings to strings")
    given = dict(properties)
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"properties contain {name!r}: {value!r}: give names and values as strings")
    return given


@dataclass(slots=True)
class MessageExt(Message):
    """A stored message, with the fields of its record. Timestamps are in ms since the epoch.

    Consumers receive bodies decompressed. If the sender marked a body as compressed that is not, or one that
    decompresses to more than 64 MiB, `body_error` is the reason and `body` has the stored bytes.
    """

    topic: str
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    broker_name: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    store_size: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    born_host: Host = UNKNOWN_HOST
    store_timestamp: int = 0
    store_host: Host = UNKNOWN_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    body_error: str | None = None

    @property
    def offset_msg_id(self) -> str:
        """The message id that the broker assigned: address of the broker and CommitLog offset, as hex."""
        return offset_message_id(self.store_host, self.commit_log_offset)

    @property
    def msg_id(self) -> str:
        """The message id that the producer assigned, or `offset_msg_id` if the producer assigned none."""
        return self.properties.get(_UNIQ_KEY) or self.offset_msg_id
