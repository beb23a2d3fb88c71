"""Message, as a producer makes it, and MessageExt, as it comes back from a broker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from store.message.hosts import Host
from store.message.message_id import offset_message_id
from store.message.properties import KEY_SEPARATOR, MessageConst

UNKNOWN_HOST = Host("0.0.0.0", 0)
# Producers make and consumers read millions: a name of this module is found in one step.
_TAGS, _KEYS, _UNIQ_KEY = MessageConst.TAGS, MessageConst.KEYS, MessageConst.UNIQ_KEY


@dataclass(slots=True, init=False)
class Message:
    """A topic, a body and properties, among which RocketMQ keeps tags, keys and the delay level too.

    Raises TypeError for tags, keys or properties that are no texts.
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
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.properties = given = _texts(properties) if properties else {}
        if tags is not None:
            if not isinstance(tags, str):
                raise TypeError(f"tags are {tags!r}: give a text")
            given[_TAGS] = tags
        if keys is not None:
            given[_KEYS] = keys if isinstance(keys, str) else _joined(keys)
        if delay_level:
            self.delay_level = delay_level

    @property
    def tags(self) -> str | None:
        """What consumers filter by."""
        return self.properties.get(_TAGS)

    @tags.setter
    def tags(self, tags: str) -> None:
        self.properties[_TAGS] = tags

    @property
    def keys(self) -> str | None:
        """What queries find the message by: any number of keys, separated by blanks."""
        return self.properties.get(_KEYS)

    @keys.setter
    def keys(self, keys: str) -> None:
        self.properties[_KEYS] = keys

    @property
    def delay_level(self) -> int:
        """1 to 18, or 0 for none."""
        return int(self.properties.get(MessageConst.DELAY, "0"))

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        self.properties[MessageConst.DELAY] = str(level)

    @property
    def uniq_key(self) -> str | None:
        """The id that the producer gave the message."""
        return self.properties.get(_UNIQ_KEY)


def _joined(keys: Sequence[str]) -> str:
    try:
        return KEY_SEPARATOR.join(keys)
    except TypeError as error:
        raise TypeError(f"keys are {keys!r}: give a text or texts") from error


def _texts(properties: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(properties, Mapping):
        raise TypeError(f"properties are {properties!r}: give a mapping of names to values")
    given = dict(properties)
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"properties are {name!r}: {value!r} …: give names and values as texts")
    return given


@dataclass(slots=True)
class MessageExt(Message):
    """A stored message: `body` is as stored (see `compression.plain_body`), timestamps are in ms."""

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

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of the message: where it is stored."""
        return offset_message_id(self.store_host, self.commit_log_offset)

    @property
    def msg_id(self) -> str:
        """The producer's id of the message, or the broker's where the producer gave none."""
        return self.properties.get(_UNIQ_KEY) or self.offset_msg_id
