"""Headers of SEND_MESSAGE and PULL_MESSAGE: the hot path, decoded by hand-written code.

Decoding a SEND_MESSAGE_V2 header takes 0.6 µs instead of 0.8 µs with msgspec, which cannot know that some
fields with a default are required on the wire.
"""

from collections.abc import Mapping
from typing import Self

from actors.wire.header import (
    FrameText,
    Group,
    Header,
    Int,
    Long,
    Name,
    Topic,
    missing_field,
    read_bool,
    wire,
)
from store.message.validate import MAX_GROUP_CHARS


class SendMessageHeader(Header):
    """Header of SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320), whose fields have one-letter keys."""

    producer_group: Group = wire(name="a")
    topic: FrameText = wire(name="b")
    queue_id: Int = wire(name="e")
    properties: FrameText = wire(name="i", default="")
    sys_flag: Int = wire(name="f", default=0)
    born_timestamp: Long = wire(name="g", default=0)
    flag: Int = wire(name="h", default=0)
    reconsume_times: Int = wire(name="j", default=0)
    batch: bool = wire(name="m", default=False)
    default_topic: Topic = wire(name="c", default="TBW102")
    default_topic_queue_nums: Int = wire(name="d", default=4)
    unit_mode: bool = wire(name="k", default=False)
    max_reconsume_times: Int | None = wire(name="l", default=None)

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or is not valid."""
        get = ext.get
        try:
            group, topic, default_topic, limit = ext["a"], ext["b"], ext["c"], get("l")
            if len(group) + len(default_topic) > MAX_GROUP_CHARS:  # one of them may be too long
                cls.refuse_long_fields(ext)
            return cls(
                group,
                topic,
                int(ext["e"]),
                get("i", ""),
                int(ext["f"]),
                int(ext["g"]),
                int(ext["h"]),
                int(get("j", 0)),
                read_bool(get("m", "")),
                default_topic,
                int(ext["d"]),
                read_bool(get("k", "")),
                int(limit) if limit else None,
            )
        except KeyError as error:
            raise missing_field(error.args[0]) from None
        except (ValueError, TypeError):
            return super().from_ext(ext)

    def long_ext(self) -> dict[str, str]:
        """Return the fields with the long keys of SEND_MESSAGE."""
        return {LONG_NAMES[letter]: value for letter, value in Header.to_ext(self).items()}


LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


class SendMessageHeaderV1(SendMessageHeader):
    """Header of SEND_MESSAGE (10): the same fields with long keys; librocketmq sends only this form."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or is not valid."""
        for letter in "abcdefgh":
            if LONG_NAMES[letter] not in ext:
                raise missing_field(LONG_NAMES[letter])
        return super().from_ext({letter: ext[name] for letter, name in LONG_NAMES.items() if name in ext})

    def to_ext(self) -> dict[str, str]:
        """Return the header as string fields with the long keys of SEND_MESSAGE."""
        return self.long_ext()


class PullMessageHeader(Header):
    """Header of PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: Group
    topic: FrameText
    queue_id: Int
    queue_offset: Long
    max_msg_nums: Int = 32
    sys_flag: Int = 0
    commit_offset: Long = 0
    suspend_timeout_millis: Long = 0
    sub_version: Long = 0
    expression_type: Name = "TAG"
    subscription: FrameText | None = None
    max_msg_bytes: Long | None = None
    lite_topic: FrameText | None = None

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or is not valid."""
        get = ext.get
        try:
            group, topic, limit = ext["consumerGroup"], ext["topic"], get("maxMsgBytes")
            kind, subscription = get("expressionType") or "TAG", get("subscription")
            if len(group) + len(kind) > MAX_GROUP_CHARS:
                cls.refuse_long_fields(ext)  # one of them may be too long
            return cls(
                group,
                topic,
                int(ext["queueId"]),
                int(ext["queueOffset"]),
                int(ext["maxMsgNums"]),
                int(ext["sysFlag"]),
                int(ext["commitOffset"]),
                int(ext["suspendTimeoutMillis"]),
                int(ext["subVersion"]),
                kind,
                subscription,
                None if limit is None else int(limit),
                get("liteTopic"),
            )
        except KeyError as error:
            raise missing_field(error.args[0]) from None
        except (ValueError, TypeError):
            return super().from_ext(ext)
