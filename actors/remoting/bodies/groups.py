"""Bodies about consumer groups: heartbeats, member lists, and our own SYNC_GROUP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Self

import orjson

from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.json_fields import (
    get_bool,
    get_int,
    get_list,
    get_object,
    get_objects,
    get_str,
    get_strings,
    load_object,
)
from actors.remoting.remoting_errors import Refused
from store.message.message_queue import MessageQueue

# Java writes enums by name, C++ by number.
_CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BROADCASTING: Final = "BROADCASTING"
_MESSAGE_MODELS: Final = (BROADCASTING, "CLUSTERING")
_CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


@dataclass(slots=True)
class SubscriptionData:
    """What a group wants of one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """As it stands in a body."""
        return cls(
            get_str(fields, "topic"),
            get_str(fields, "subString", "*"),
            get_strings(fields, "tagsSet"),
            [get_int({"codeSet": code}, "codeSet") for code in get_list(fields, "codeSet")],
            get_int(fields, "subVersion"),
            get_str(fields, "expressionType", "TAG") or "TAG",
            get_bool(fields, "classFilterMode"),
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": self.code_set,
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": self.tags_set,
            "topic": self.topic,
        }


@dataclass(slots=True)
class ConsumerData:
    """One consumer group of a client."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """As it stands in a body."""
        return cls(
            get_str(fields, "groupName"),
            _enum(fields, "consumeType", _CONSUME_TYPES, 1),
            _enum(fields, "messageModel", _MESSAGE_MODELS, 1),
            _enum(fields, "consumeFromWhere", _CONSUME_FROM, 0),
            [SubscriptionData.from_json(item) for item in get_objects(fields, "subscriptionDataSet")],
            get_bool(fields, "unitMode"),
        )

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group_name,
            "messageModel": self.message_model,
            "subscriptionDataSet": [item.to_json() for item in self.subscriptions],
            "unitMode": self.unit_mode,
        }


@dataclass(slots=True)
class HeartbeatData:
    """The body of HEART_BEAT: who a client is and what it consumes and produces."""

    client_id: str
    consumers: list[ConsumerData] = field(default_factory=list)
    producer_groups: list[str] = field(default_factory=list)
    fingerprint: int = 0
    is_without_sub: bool = False

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is no heartbeat."""
        fields = load_object(body, "HeartbeatData")
        client_id = get_str(fields, "clientID")
        if not client_id:
            raise Refused(ResponseCode.SYSTEM_ERROR, "a heartbeat without `clientID`")
        return cls(
            client_id,
            [ConsumerData.from_json(item) for item in get_objects(fields, "consumerDataSet")],
            [get_str(item, "groupName") for item in get_objects(fields, "producerDataSet")],
            get_int(fields, "heartbeatFingerprint"),
            get_bool(fields, "withoutSub"),
        )

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [item.to_json() for item in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.is_without_sub,
            }
        )


def _enum(fields: Mapping[str, Any], key: str, names: Sequence[str], default: int) -> str:
    value = fields.get(key)
    if isinstance(value, str):
        return value
    number = get_int(fields, key, default)
    return names[number] if 0 <= number < len(names) else names[default]


_sequence = count(1)


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """Who is in a group; when `is_self_assigning`, members share the queues out among themselves by this
    list.

    The body of the answers of GET_CONSUMER_LIST_BY_GROUP and GROUP_MEMBERS, and of GROUP_CHANGED.
    """

    members: tuple[str, ...] = ()
    is_self_assigning: bool = False

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        fields = load_object(body, "member list")
        return cls(tuple(get_strings(fields, "consumerIdList")), get_bool(fields, "selfAssign"))

    def encode(self) -> bytes:
        """The body; Java reads `consumerIdList` and ignores the rest."""
        return orjson.dumps({"consumerIdList": self.members, "selfAssign": self.is_self_assigning})


@dataclass(frozen=True, slots=True, order=True)
class GrantedQueue:
    """A queue and the generation under which it was given to a member."""

    queue: MessageQueue
    generation: int

    @classmethod
    def from_json(cls, row: object) -> Self:
        """`[topic, broker, queueId, generation]`; a row of three has generation 0."""
        match row:
            case [str(topic), str(broker), int(queue_id), int(generation)]:
                return cls(MessageQueue(topic, broker, queue_id), generation)
            case [str(topic), str(broker), int(queue_id)]:
                return cls(MessageQueue(topic, broker, queue_id), 0)
            case _:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{str(row)[:100]!r} is no queue: [topic, broker, queueId, generation]",
                )

    def to_json(self) -> list[Any]:
        """The row."""
        return [*self.queue, self.generation]


@dataclass(slots=True)
class SyncGroupRequest:
    """The body of SYNC_GROUP: what a member holds and wants.

    `generation` is the highest that an answer told it. `owned` is everything it still works on.
    `lease_left_ms` is how long its own count of the lease still runs (0 or less: it has suspended its
    queues); None where it does not say. `sequence` tells a member's later requests from its earlier ones,
    which may come after them; 0 where it does not say.
    """

    group: str
    client_id: str
    generation: int = 0
    subscriptions: dict[str, str] = field(default_factory=dict)
    owned: list[GrantedQueue] = field(default_factory=list)
    strategy: str | None = None
    lease_ms: int | None = None
    lease_left_ms: int | None = None
    is_leaving: bool = False
    allow_subscription_change: bool = False
    sequence: int = field(default_factory=lambda: next(_sequence))

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        fields = load_object(body, "SYNC_GROUP request")
        group, client_id = get_str(fields, "group"), get_str(fields, "clientId")
        if not group or not client_id:
            raise Refused(ResponseCode.INVALID_PARAMETER, "SYNC_GROUP needs `group` and `clientId`")
        subscriptions = get_object(fields, "subscriptions")
        return cls(
            group,
            client_id,
            get_int(fields, "generation"),
            {topic: get_str(subscriptions, topic, "*") for topic in subscriptions},
            [GrantedQueue.from_json(row) for row in get_list(fields, "owned")],
            get_str(fields, "strategy") or None,
            _optional_int(fields, "leaseMs"),
            _optional_int(fields, "leaseLeftMs"),
            get_bool(fields, "leaving"),
            get_bool(fields, "allowSubscriptionChange"),
            get_int(fields, "sequence"),
        )

    def encode(self) -> bytes:
        """The body."""
        fields: dict[str, Any] = {
            "group": self.group,
            "clientId": self.client_id,
            "generation": self.generation,
            "subscriptions": self.subscriptions,
            "owned": [item.to_json() for item in self.owned],
            "leaving": self.is_leaving,
            "allowSubscriptionChange": self.allow_subscription_change,
            "sequence": self.sequence,
        }
        optional = {"strategy": self.strategy, "leaseMs": self.lease_ms, "leaseLeftMs": self.lease_left_ms}
        fields.update({key: value for key, value in optional.items() if value is not None})
        return orjson.dumps(fields)


@dataclass(slots=True)
class SyncGroupReply:
    """The answer: `granted` is all that the member may work on; the rest it lets go, `revoke` above all.

    The lease starts when the member asked, and runs for `lease_ms`.
    """

    generation: int = 0
    granted: list[GrantedQueue] = field(default_factory=list)
    revoke: list[GrantedQueue] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    is_self_assigning: bool = False
    lease_ms: int = 0

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        fields = load_object(body, "SYNC_GROUP answer")
        return cls(
            get_int(fields, "generation"),
            [GrantedQueue.from_json(row) for row in get_list(fields, "granted")],
            [GrantedQueue.from_json(row) for row in get_list(fields, "revoke")],
            get_strings(fields, "members"),
            get_bool(fields, "selfAssign"),
            get_int(fields, "leaseMs"),
        )

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "generation": self.generation,
                "granted": [item.to_json() for item in self.granted],
                "revoke": [item.to_json() for item in self.revoke],
                "members": self.members,
                "selfAssign": self.is_self_assigning,
                "leaseMs": self.lease_ms,
            }
        )


def _optional_int(fields: Mapping[str, Any], key: str) -> int | None:
    return None if fields.get(key) is None else get_int(fields, key)
