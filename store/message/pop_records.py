"""Codec of the records of POP: check points and acks in the revive topic, and receipts.

See docs/store-format.md#pop-records.

A pop makes the messages that it returns invisible for some time. RocketMQ stores this claim as a check point
in `rmq_sys_REVIVE_LOG_<cluster>`, and each ack as a further record with the same merge key:

    TAGS   body (JSON with sorted keys)
    ck     {"bm":0,"bn":broker,"c":group,"d":[offset - so, …],"it":ms,"n":count,"pt":ms,"q":queue id,
            "reviveTime":pt + it,"ro":0,"so":start offset,"t":topic}
    ack    {"ao":offset,"bn":…,"c":…,"pt":…,"q":…,"so":…,"t":…}
    bAck   {"ao":-1,"aol":[offset, …],"bn":…,"c":…,"pt":…,"q":…,"so":…,"t":…}

The consumer gets a receipt (property POP_CK) of eight fields, separated by blanks:

    startOffset popTime invisibleTime reviveQid kind brokerName queueId msgOffset
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from store.message.buffers import Buffer
from store.message.validate import RETRY_TOPIC_PREFIX
from store.store_errors import MessageInvalid

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MESSAGES_MAX: Final = 32
"""Limit of the messages of one claim: RocketMQ keeps their acks in 32 bits."""
ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in receipts of ordered messages, which have no check point."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
"""Kinds of the topic of a popped message: the requested one, or one of its retry topics."""

POP_RETRY_SEPARATORS: Final = "_+"
"""Between group and topic in the names of retry topics of POP: version 1 and version 2."""

_I64_MAX: Final = 2**63 - 1
_RECEIPT_FIELDS: Final = 8


class ClaimKey(NamedTuple):
    """The fields that identify a claim on one broker; RocketMQ's merge key has the broker name too."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int


@dataclass(frozen=True, slots=True)
class CheckPoint:
    """A stored claim: the messages of one queue that one pop returned."""

    key: ClaimKey
    invisible_ms: int
    offsets: tuple[int, ...]
    acked: frozenset[int] = frozenset()
    """The offsets that were acked before the check point was stored."""

    @property
    def revive_ms(self) -> int:
        """The wall time at which the messages become visible again."""
        return self.key.pop_ms + self.invisible_ms

    def encode(self, broker_name: str) -> bytes:
        """Return the body of the record."""
        key, start = self.key, self.key.start_offset
        bits = sum(1 << index for index, offset in enumerate(self.offsets) if offset in self.acked)
        content = {
            **_common(key, broker_name),
            "bm": bits,
            "d": [offset - start for offset in self.offsets],
            "it": self.invisible_ms,
            "n": len(self.offsets),
            "reviveTime": self.revive_ms,
            "ro": 0,
        }
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def decode(cls, body: Buffer, broker_name: str) -> CheckPoint | None:
        """Return the check point in a body, or None if it is another broker's.

        Raises MessageInvalid if the body is not a check point.
        """
        content = _load(body)
        if not _is_ours(content, broker_name):
            return None
        key = _key(content)
        count = _number(content, "n")
        if not count <= MESSAGES_MAX:
            raise MessageInvalid(f"a check point has {count} messages, over the limit of {MESSAGES_MAX}")
        deltas = content.get("d")
        if deltas is None:  # written by an old broker: consecutive offsets
            deltas = list(range(count))
        offsets = tuple(key.start_offset + delta for delta in _numbers(deltas, "d"))
        bits = content.get("bm", 0)
        if not isinstance(bits, int):
            raise MessageInvalid(f"bm is {bits!r}: a check point has a number of 32 bits")
        acked = frozenset(offset for index, offset in enumerate(offsets) if bits >> index & 1)
        return cls(key, _number(content, "it"), offsets, acked)

    def unique_key(self, broker_name: str) -> str:
        """Return the UNIQ_KEY of the record."""
        return _unique_key(self.key, self.key.start_offset, broker_name, CHECK_POINT_TAG)


@dataclass(frozen=True, slots=True)
class ClaimAck:
    """Acks of messages of one stored claim."""

    key: ClaimKey
    offsets: tuple[int, ...]

    @property
    def tag(self) -> str:
        """The TAGS of the record: that of a single ack, or of several."""
        return ACK_TAG if len(self.offsets) == 1 else BATCH_ACK_TAG

    def encode(self, broker_name: str) -> bytes:
        """Return the body of the record."""
        content = _common(self.key, broker_name)
        if len(self.offsets) == 1:
            content["ao"] = self.offsets[0]
        else:
            content |= {"ao": -1, "aol": list(self.offsets)}
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def decode(cls, body: Buffer, broker_name: str) -> ClaimAck | None:
        """Return the acks in a body, or None if they are another broker's.

        Raises MessageInvalid if the body has no acks.
        """
        content = _load(body)
        if not _is_ours(content, broker_name):
            return None
        listed = content.get("aol")
        offsets = _numbers(listed, "aol") if listed is not None else [_number(content, "ao")]
        return cls(_key(content), tuple(offsets))

    def unique_key(self, broker_name: str) -> str:
        """Return the UNIQ_KEY of the record; RocketMQ writes offset -1 for several acks."""
        offset = self.offsets[0] if len(self.offsets) == 1 else -1
        return _unique_key(self.key, offset, broker_name, ACK_TAG)


class Receipt(NamedTuple):
    """The receipt of a popped message, by which the consumer acks it (RocketMQ's extraInfo)."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker_name: str
    queue_id: int
    offset: int

    def encode(self) -> str:
        """Return the receipt as text."""
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Return the receipt in a text; fields after the eighth are ignored. Raises MessageInvalid."""
        fields = text.split(" ")
        if len(fields) < _RECEIPT_FIELDS:
            raise MessageInvalid(
                f"the receipt {text[:100]!r} has {len(fields)} fields: it must be that of a popped message"
            )
        start, popped, invisible, revive_queue, kind, broker_name, queue_id, offset = fields[:8]
        numbers = (start, popped, invisible, revive_queue, queue_id, offset)
        if not all(each.isascii() and each.isdigit() and int(each) <= _I64_MAX for each in numbers):
            raise MessageInvalid(f"the receipt {text[:100]!r} has a field that is not a number")
        if kind not in (NORMAL, RETRY_V1, RETRY_V2):
            raise MessageInvalid(
                f"the receipt {text[:100]!r} has the topic kind {kind[:10]!r}: it is 0, 1 or 2"
            )
        return cls(
            int(start), int(popped), int(invisible), int(revive_queue), kind, broker_name, int(queue_id),
            int(offset),
        )  # fmt: skip


def pop_retry_topic(group: str, topic: str, kind: str = RETRY_V1) -> str:
    """Return the topic to which the messages of a topic that a group has popped, but not acked, return."""
    return f"{RETRY_TOPIC_PREFIX}{group}{'+' if kind == RETRY_V2 else '_'}{topic}"


def real_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic of a receipt's messages: `topic`, or its retry topic of the receipt's kind."""
    return topic if kind == NORMAL else pop_retry_topic(group, topic, kind)


def _common(key: ClaimKey, broker_name: str) -> dict[str, Any]:
    return {
        "bn": broker_name,
        "c": key.group,
        "pt": key.pop_ms,
        "q": key.queue_id,
        "so": key.start_offset,
        "t": key.topic,
    }


def _unique_key(key: ClaimKey, offset: int, broker_name: str, tag: str) -> str:
    parts = (key.topic, key.queue_id, offset, key.group, key.pop_ms, broker_name, tag)
    return "@".join(map(str, parts))


def _load(body: Buffer) -> Mapping[str, Any]:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MessageInvalid(f"a record of the revive topic is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise MessageInvalid(f"a record of the revive topic is {content!r:.100}: it must be an object")
    return content


def _is_ours(content: Mapping[str, Any], broker_name: str) -> bool:
    return not content.get("bn") or content["bn"] == broker_name


def _key(content: Mapping[str, Any]) -> ClaimKey:
    topic, group = content.get("t"), content.get("c")
    if not isinstance(topic, str) or not isinstance(group, str):
        raise MessageInvalid(
            f"a record of the revive topic has topic {topic!r:.100} and group {group!r:.100}"
        )
    return ClaimKey(topic, group, _number(content, "q"), _number(content, "so"), _number(content, "pt"))


def _number(content: Mapping[str, Any], name: str) -> int:
    number = content.get(name)
    if type(number) is not int or not 0 <= number <= _I64_MAX:
        raise MessageInvalid(f"{name} of a record of the revive topic is {number!r:.100}, not a number")
    return number


def _numbers(values: Any, name: str) -> Iterable[int]:
    if not isinstance(values, list) or not 0 < len(values) <= MESSAGES_MAX:
        raise MessageInvalid(f"{name} of a record of the revive topic is {values!r:.100}, not a list")
    return [_number({name: each}, name) for each in values]
