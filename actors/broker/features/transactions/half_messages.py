"""Half messages: the stored form of transactional messages before their commit.

    SEND_MESSAGE with TRAN_MSG = true  →  RMQ_SYS_TRANS_HALF_TOPIC, queue 0, with REAL_TOPIC and REAL_QID
    END_TRANSACTION, commit            →  REAL_TOPIC, queue REAL_QID, with the same properties

The sysFlag of a half message has no transaction bits. The sysFlag of the committed message has COMMIT, and
its `preparedTransactionOffset` is the CommitLog offset of the half message
(docs/store-format.md#half-messages).

Before each check the broker appends a copy of the half message, which replaces all earlier copies. In a copy,
property TRAN_PREPARED_QUEUE_OFFSET is the queue offset of the first half message, and TRANSACTION_CHECK_TIMES
is the number of checks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from actors.broker.core.metadata.topics import TRANSACTION_HALF_TOPIC
from actors.broker.core.sending.interceptors import SendDraft
from actors.broker.core.sending.moved import moved
from actors.broker.core.sending.stored_properties import (
    PropertyWriter,
    delay_level,
    is_prepared,
    is_timed,
    uniq_key_of,
)
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.message import MessageExt
from store.message.properties import MessageConst, decode_properties, properties_text
from store.message.record import RecordDraft
from store.message.sys_flag import TRANSACTION_COMMIT, TRANSACTION_MASK
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from store.store_errors import MessageInvalid

HALF_QUEUE_ID = 0
FIRST_HALF_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
_QUEUE_ID = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,18}")
# Only brokers set these properties. A client could otherwise refer to the transaction of another client.
_OF_BROKER = (
    FIRST_HALF_OFFSET,
    MessageConst.TRANSACTION_CHECK_TIMES,
    MessageConst.REAL_TOPIC,
    MessageConst.REAL_QUEUE_ID,
    MessageConst.TRANSACTION_ID,
)


class HalfMessages:
    """Send interceptor that redirects transactional messages to the half topic."""

    property_names = (MessageConst.TRANSACTION_PREPARED,)

    def __init__(self, properties: PropertyWriter) -> None:
        """Create the interceptor; `properties` generates a UNIQ_KEY for a message without one."""
        self._properties = properties

    def before_append(self, draft: SendDraft) -> None:
        """Redirect a message to the half topic if property TRAN_MSG is true.

        Retries and dead letters are not redirected: a consumer sends them, with the properties of the message
        that it received, TRAN_MSG included.

        Raises:
            Refused: sysFlag marks a transaction but TRAN_MSG does not, or the message is delayed.
        """
        header, record = draft.header, draft.record
        if not is_prepared(draft.properties):
            if header.sys_flag & TRANSACTION_MASK:
                raise Refused(
                    ResponseCode.NO_PERMISSION,
                    f"sysFlag {header.sys_flag} marks a transaction, but property "
                    f"{MessageConst.TRANSACTION_PREPARED} is not true: set it, or clear these bits",
                )
            return
        is_delayed = delay_level(draft.properties) > 0
        if record.topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)) or (
            header.reconsume_times > 0 and is_delayed
        ):
            record.sys_flag &= ~TRANSACTION_MASK
            return
        if is_delayed or is_timed(draft.properties):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a transactional message cannot be delayed: remove properties {MessageConst.DELAY} and "
                "TIMER_…",
            )
        draft.properties = self._half_properties(draft)
        record.topic, record.queue_id = TRANSACTION_HALF_TOPIC, HALF_QUEUE_ID
        record.sys_flag &= ~TRANSACTION_MASK

    def _half_properties(self, draft: SendDraft) -> str:
        """Return the property string of the half message of `draft`."""
        text, header, record = draft.properties, draft.header, draft.record
        uniq_key = uniq_key_of(text)
        if uniq_key and _lacks_only_broker_properties(text, header.producer_group):
            return (
                f"{text}{MessageConst.TRANSACTION_ID}\x01{uniq_key}\x02"
                f"{MessageConst.REAL_TOPIC}\x01{record.topic}\x02"
                f"{MessageConst.REAL_QUEUE_ID}\x01{record.queue_id}\x02"
            )
        properties = decode_properties(text.encode("utf-8", "replace"))
        uniq_key = uniq_key or self._properties.next_uniq_key()
        for name in _OF_BROKER:
            properties.pop(name, None)
        properties.setdefault(MessageConst.PRODUCER_GROUP, header.producer_group)
        properties |= {
            MessageConst.UNIQ_KEY: uniq_key,
            MessageConst.TRANSACTION_ID: uniq_key,
            MessageConst.REAL_TOPIC: record.topic,
            MessageConst.REAL_QUEUE_ID: str(record.queue_id),
        }
        return properties_text(properties)


def _lacks_only_broker_properties(text: str, group: str) -> bool:
    """Return True if a property string, as clients send it, only lacks the properties of the broker."""
    return (
        text[-1] == "\x02"
        and f"\x02{MessageConst.PRODUCER_GROUP}\x01{group}\x02" in text
        and text.count(MessageConst.PRODUCER_GROUP) == text.count(MessageConst.UNIQ_KEY) == 1
        and not any(name in text for name in _OF_BROKER)
    )


def real_queue(half: MessageExt) -> tuple[str, int]:
    """Return the topic and queue id to which the producer has sent a half message.

    Raises MessageInvalid if the properties REAL_TOPIC and REAL_QID are missing or invalid.
    """
    topic = half.properties.get(MessageConst.REAL_TOPIC)
    queue_id = half.properties.get(MessageConst.REAL_QUEUE_ID, "")
    if not topic or not _QUEUE_ID.fullmatch(queue_id):
        raise MessageInvalid(
            f"the half message cannot be committed: REAL_TOPIC is {topic!r}, REAL_QID is {queue_id[:40]!r}"
        )
    return topic, int(queue_id)


def number_property(half: MessageExt, name: str) -> int | None:
    """Return the value of a property as a number, or None if it is missing or not a number."""
    text = half.properties.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def first_offset(half: MessageExt) -> int:
    """Return the half-queue offset of the first half message of the transaction, before any copies."""
    first = number_property(half, FIRST_HALF_OFFSET)
    return half.queue_offset if first is None else min(first, half.queue_offset)


def committed_draft(half: MessageExt, topic: str, queue_id: int, half_position: int) -> RecordDraft:
    """Return the committed message of a half message, to be appended to its real topic.

    Args:
        half: the half message or any of its copies.
        topic: its real topic, as `real_queue` returns it.
        queue_id: its real queue.
        half_position: CommitLog offset of the newest copy.
    """
    draft = stored_draft(half, topic, queue_id, {})
    draft.sys_flag |= TRANSACTION_COMMIT
    draft.prepared_transaction_offset = half_position
    return draft


def stored_draft(half: MessageExt, topic: str, queue_id: int, added: Mapping[str, str]) -> RecordDraft:
    """Return a record for the given queue, with the content of a half message and the `added` properties."""
    draft = moved(half, topic, queue_id, {**half.properties, **added})
    draft.sys_flag &= ~TRANSACTION_MASK
    return draft
