"""LiteSends: gives each lite message its offset in its lite topic, before the append."""

from __future__ import annotations

from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.attributes import is_lite_topic
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.stored_properties import without
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.lite.lite_index import LiteIndex, lmq_name
from store.lite.lite_table import Arrays
from store.message.lite_topics import NAME_BYTES_MAX, is_valid_name
from store.message.priority import overruled_by
from store.message.properties import MessageConst, decode_properties
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.message_store import MessageStore

_OF_BROKER = (f"{MessageConst.INNER_MULTI_DISPATCH}\x01", f"{MessageConst.INNER_MULTI_QUEUE_OFFSET}\x01")


class LiteSends:
    """Send interceptor for messages to topics of type LITE, each of which needs the name of a lite topic."""

    property_names = (
        MessageConst.LITE_TOPIC,
        MessageConst.INNER_MULTI_DISPATCH,
        MessageConst.INNER_MULTI_QUEUE_OFFSET,
    )

    def __init__(
        self, store: MessageStore, reads: Reads, topics: Topics, index: LiteIndex, settings: BrokerSettings
    ) -> None:
        self._store = store
        self._reads = reads
        self._topics = topics
        self._index = index
        self._settings = settings
        self._known_from = 0

    async def start(self) -> None:
        """Assign offsets from now on; another process may have appended what is not dispatched yet."""
        self.recount()
        self._index.is_sole_writer = True

    async def stop(self) -> None:
        """Assign no offsets any more: this replica gets the messages of another one."""
        self._index.is_sole_writer = False

    def recount(self) -> None:
        """Take the offsets from the log again, once all that it has now is dispatched."""
        self._index.forget_appended()
        self._known_from = self._store.positions.written

    def add_topic(self, topic: str) -> int:
        """Return the number of a topic in the table."""
        return self._index.add_topic(topic)

    def is_known(self) -> bool:
        """Return True if the index has all messages that were in the log when this broker became master."""
        return self._store.positions.dispatched >= self._known_from

    def table(self) -> Arrays | None:
        """Return the table of lite topics; None if offsets are unknown, or a new one may be refused."""
        return self._index.table.arrays if self.is_known() and not self._is_full() else None

    def _is_full(self) -> bool:
        settings = self._settings
        return settings.lite_topic_quota_enabled and len(self._index) >= settings.max_lite_topics

    def before_append(self, draft: SendDraft) -> None:
        """Add the lite topic and the offset to the properties of a lite message.

        As in RocketMQ, what a client says about them is removed. Raises Refused if the message has no lite
        topic or an invalid one, another type than LITE, or a topic of another type.
        """
        name = draft.header.topic
        config = self._topics.find(name)
        is_lite = config is not None and is_lite_topic(config)
        if not is_lite and not any(each in draft.properties for each in self.property_names):
            return
        draft.properties = without(draft.properties, _OF_BROKER)
        properties = decode_properties(draft.properties.encode("utf-8", "replace"))
        lite_topic = properties.get(MessageConst.LITE_TOPIC)
        if is_lite:
            self._add_offset(draft, name, lite_topic, properties)
        elif lite_topic is not None and not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            raise _refused(
                f"the message has the lite topic {lite_topic[:100]!r}, but topic {name!r} is not of type LITE"
                ": send it to another topic"
            )

    def _add_offset(self, draft: SendDraft, topic: str, name: str | None, properties: dict[str, str]) -> None:
        if name is None or not is_valid_name(name):
            given = "missing" if name is None else f"{name[:100]!r}"
            raise _refused(
                f"the lite topic of a message to topic {topic!r} is {given}: give property "
                f"{MessageConst.LITE_TOPIC} with 1 to {NAME_BYTES_MAX} of the characters a-z, A-Z, 0-9, _, -"
            )
        other = overruled_by(properties)
        if other is None and MessageConst.PRIORITY in properties:
            other = MessageConst.PRIORITY
        if other is not None:
            raise _refused(f"a lite message cannot have property {other}: lite topics are ordered, remove it")
        self._check_known()
        offset = self._index.next_offset(topic, name)
        if offset == 0 and self._is_full():
            raise Refused(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"lite topic {name!r} would be number {len(self._index) + 1:,}, and max_lite_topics is "
                f"{self._settings.max_lite_topics:,}: raise it, or set lite.topic.expiration of topics",
            )
        dispatch, number = _OF_BROKER
        draft.properties += f"{dispatch}{lmq_name(topic, name)}\x02{number}{offset}\x02"
        draft.appended = partial(self._index.appended, topic, name, offset)

    def _check_known(self) -> None:
        """Raise Refused while the offsets of messages that another process has appended are unknown."""
        if not self.is_known():
            self._reads.catch_up()
            if not self.is_known():
                raise Refused(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "the broker has just started, and the offsets of lite topics are not known yet: retry",
                )


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
