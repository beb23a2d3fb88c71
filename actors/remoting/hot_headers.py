"""Headers of the hot path, written out by hand: a send must not pay for a loop over field tables.

SEND_MESSAGE_V2 names its fields by letters:

    a producerGroup   b topic        c defaultTopic     d defaultTopicQueueNums   e queueId
    f sysFlag         g bornTimestamp  h flag           i properties              j reconsumeTimes
    k unitMode        l maxReconsumeTimes   m batch     n brokerName
"""

from collections.abc import Mapping
from typing import Self

from actors.remoting.header import missing_field, read_bool, unreadable_field, write_bool
from actors.remoting.remoting_errors import Refused


class SendMessageHeader:
    """SEND_MESSAGE_V2 310 and SEND_BATCH_MESSAGE 320; `SendMessageHeaderV1` is SEND_MESSAGE 10, the same
    fields.
    """

    __slots__ = (
        "batch",
        "born_timestamp",
        "default_topic",
        "default_topic_queue_nums",
        "flag",
        "max_reconsume_times",
        "producer_group",
        "properties",
        "queue_id",
        "reconsume_times",
        "sys_flag",
        "topic",
        "unit_mode",
    )

    def __init__(
        self,
        producer_group: str,
        topic: str,
        queue_id: int,
        properties: str = "",
        *,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        flag: int = 0,
        reconsume_times: int = 0,
        batch: bool = False,
        default_topic: str = "TBW102",
        default_topic_queue_nums: int = 4,
        unit_mode: bool = False,
        max_reconsume_times: int | None = None,
    ) -> None:
        self.producer_group = producer_group
        self.topic = topic
        self.queue_id = queue_id
        self.properties = properties
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.flag = flag
        self.reconsume_times = reconsume_times
        self.batch = batch
        self.default_topic = default_topic
        self.default_topic_queue_nums = default_topic_queue_nums
        self.unit_mode = unit_mode
        self.max_reconsume_times = max_reconsume_times

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header that these fields are; raises Refused where one is missing or no number."""
        header = cls.__new__(cls)
        get = ext.get
        try:
            header.producer_group = ext["a"]
            header.topic = ext["b"]
            header.default_topic = ext["c"]
            header.default_topic_queue_nums = int(ext["d"])
            header.queue_id = int(ext["e"])
            header.sys_flag = int(ext["f"])
            header.born_timestamp = int(ext["g"])
            header.flag = int(ext["h"])
            header.properties = get("i", "")
            header.reconsume_times = int(get("j", 0))
            header.unit_mode = get("k") == "true"
            limit = get("l")
            header.max_reconsume_times = int(limit) if limit else None
            header.batch = read_bool(get("m", ""))
        except KeyError as error:
            raise missing_field(str(error.args[0])) from None
        except (ValueError, TypeError):
            raise _first_unreadable(ext, "defghjl") from None
        return header

    def to_ext(self) -> dict[str, str]:
        """The fields of a SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": write_bool(self.unit_mode),
            "m": write_bool(self.batch),
        }
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        return ext

    def long_ext(self) -> dict[str, str]:
        """The same under the long names."""
        return {_V1_NAMES[letter]: value for letter, value in SendMessageHeader.to_ext(self).items()}


_V1_NAMES = {
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
    """SEND_MESSAGE 10: the same fields under their long names; librocketmq sends no other."""

    __slots__ = ()

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header that these fields are; raises Refused where one is missing or no number."""
        short = {letter: ext[name] for letter, name in _V1_NAMES.items() if name in ext}
        for letter in "abcdefgh":
            if letter not in short:
                raise missing_field(_V1_NAMES[letter])
        return super().from_ext(short)

    def to_ext(self) -> dict[str, str]:
        """The fields of a SEND_MESSAGE."""
        return self.long_ext()


class PullMessageHeader:
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361."""

    __slots__ = (
        "commit_offset",
        "consumer_group",
        "expression_type",
        "max_msg_bytes",
        "max_msg_nums",
        "queue_id",
        "queue_offset",
        "sub_version",
        "subscription",
        "suspend_timeout_millis",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        consumer_group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_msg_nums: int = 32,
        sys_flag: int = 0,
        commit_offset: int = 0,
        suspend_timeout_millis: int = 0,
        subscription: str | None = None,
        sub_version: int = 0,
        expression_type: str = "TAG",
        max_msg_bytes: int | None = None,
    ) -> None:
        self.consumer_group = consumer_group
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.max_msg_nums = max_msg_nums
        self.sys_flag = sys_flag
        self.commit_offset = commit_offset
        self.suspend_timeout_millis = suspend_timeout_millis
        self.subscription = subscription
        self.sub_version = sub_version
        self.expression_type = expression_type
        self.max_msg_bytes = max_msg_bytes

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """The header that these fields are; raises Refused where one is missing or no number."""
        header = cls.__new__(cls)
        get = ext.get
        try:
            header.consumer_group = ext["consumerGroup"]
            header.topic = ext["topic"]
            header.queue_id = int(ext["queueId"])
            header.queue_offset = int(ext["queueOffset"])
            header.max_msg_nums = int(ext["maxMsgNums"])
            header.sys_flag = int(ext["sysFlag"])
            header.commit_offset = int(ext["commitOffset"])
            header.suspend_timeout_millis = int(ext["suspendTimeoutMillis"])
            header.sub_version = int(ext["subVersion"])
            header.subscription = get("subscription")
            header.expression_type = get("expressionType") or "TAG"
            limit = get("maxMsgBytes")
            header.max_msg_bytes = None if limit is None else int(limit)
        except KeyError as error:
            raise missing_field(str(error.args[0])) from None
        except (ValueError, TypeError):
            raise _first_unreadable(ext, _PULL_NUMBERS) from None
        return header

    def to_ext(self) -> dict[str, str]:
        """The fields of a PULL_MESSAGE."""
        ext = {
            "consumerGroup": self.consumer_group,
            "topic": self.topic,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "maxMsgNums": str(self.max_msg_nums),
            "sysFlag": str(self.sys_flag),
            "commitOffset": str(self.commit_offset),
            "suspendTimeoutMillis": str(self.suspend_timeout_millis),
            "subVersion": str(self.sub_version),
            "expressionType": self.expression_type,
        }
        if self.subscription is not None:
            ext["subscription"] = self.subscription
        if self.max_msg_bytes is not None:
            ext["maxMsgBytes"] = str(self.max_msg_bytes)
        return ext


_PULL_NUMBERS = (
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subVersion",
    "maxMsgBytes",
)


def _first_unreadable(ext: Mapping[str, str], keys: str | tuple[str, ...]) -> Refused:
    for key in keys:
        text = ext.get(key, "0")
        try:
            int(text)
        except (ValueError, TypeError):
            return unreadable_field(key, text)
    return unreadable_field(keys[0], "")
