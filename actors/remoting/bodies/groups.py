"""Bodies about consumer groups: heartbeats, member lists, and our own SYNC_GROUP."""

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import msgspec

from actors.remoting.bodies.body import Body, ShapedBody, wire
from actors.remoting.codes import ResponseCode
from actors.remoting.command import Buffer
from actors.remoting.header import I64_MAX, Long
from actors.remoting.json_fields import get_str, load_object
from actors.remoting.remoting_errors import Refused
from store.message.message_queue import MessageQueue

BROADCASTING: Final = "BROADCASTING"

# Java writes enums by name, C++ by number (`json_fields`).
_ConsumeType = Annotated[
    str, msgspec.Meta(extra={"names": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")})
]
_MessageModel = Annotated[str, msgspec.Meta(extra={"names": (BROADCASTING, "CLUSTERING")})]
_ConsumeFrom = Annotated[
    str,
    msgspec.Meta(
        extra={
            "names": (
                "CONSUME_FROM_LAST_OFFSET",
                "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
                "CONSUME_FROM_MIN_OFFSET",
                "CONSUME_FROM_MAX_OFFSET",
                "CONSUME_FROM_FIRST_OFFSET",
                "CONSUME_FROM_TIMESTAMP",
            )
        }
    ),
]


class SubscriptionData(Body):
    """What a group wants of one topic."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = wire(default_factory=list)
    code_set: list[Long] = wire(default_factory=list)
    sub_version: Long = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        if not self.expression_type:
            self.expression_type = "TAG"


class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: str = ""
    consume_type: _ConsumeType = "CONSUME_PASSIVELY"
    message_model: _MessageModel = "CLUSTERING"
    consume_from_where: _ConsumeFrom = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: list[SubscriptionData] = wire(name="subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


class _ProducerData(Body):
    group_name: str = ""


if TYPE_CHECKING:
    _ProducerGroup = str
else:
    _ProducerGroup = _ProducerData  # what msgspec decodes; `__post_init__` takes the name out of it


class HeartbeatData(ShapedBody):
    """The body of HEART_BEAT: who a client is and what it consumes and produces."""

    client_id: str = wire(name="clientID", default="")
    consumers: list[ConsumerData] = wire(name="consumerDataSet", default_factory=list)
    producer_groups: list[_ProducerGroup] = wire(name="producerDataSet", default_factory=list)
    fingerprint: Long = wire(name="heartbeatFingerprint", default=0)
    is_without_sub: bool = wire(name="withoutSub", default=False)

    def __post_init__(self) -> None:
        given: list[Any] = self.producer_groups
        self.producer_groups = [each if isinstance(each, str) else each.group_name for each in given]

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the heartbeat in `body`. Raises Refused, also if it does not name the client."""
        found = super().decode(body)
        if not found.client_id:
            raise Refused(ResponseCode.SYSTEM_ERROR, "a heartbeat without `clientID`")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the producer groups as objects."""
        producers = [{"groupName": group} for group in self.producer_groups]
        return {**super().to_json(), "producerDataSet": producers}


class GroupMembers(Body):
    """Who is in a group; when `is_self_assigning`, members share the queues out among themselves by this
    list.

    The body of the responses of GET_CONSUMER_LIST_BY_GROUP and GROUP_MEMBERS, and of GROUP_CHANGED. Java
    reads `consumerIdList` and ignores the rest.
    """

    title = "member list"

    members: tuple[str, ...] = wire(name="consumerIdList", default=())
    is_self_assigning: bool = wire(name="selfAssign", default=False)


@dataclass(frozen=True, slots=True, order=True)
class GrantedQueue:
    """A queue and the generation under which it was given to a member."""

    queue: MessageQueue
    generation: int

    @classmethod
    def of_row(cls, row: Any) -> "GrantedQueue":
        """Return the queue of `[topic, broker, queueId, generation]`; a row of three has generation 0."""
        match row:
            case GrantedQueue():
                return row
            case [str(topic), str(broker), int(queue_id), int(generation)] if (
                max(abs(queue_id), abs(generation)) <= I64_MAX
            ):
                return cls(MessageQueue(topic, broker, queue_id), generation)
            case [str(topic), str(broker), int(queue_id)] if abs(queue_id) <= I64_MAX:
                return cls(MessageQueue(topic, broker, queue_id), 0)
            case _:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{str(row)[:100]!r} is no queue: [topic, broker, queueId, generation]",
                )

    def to_json(self) -> list[Any]:
        """Return the row."""
        return [*self.queue, self.generation]


_sequence = count(1)
if TYPE_CHECKING:
    _Row = GrantedQueue
else:
    _Row = Any  # what msgspec decodes; `__post_init__` makes it a GrantedQueue


class SyncGroupRequest(ShapedBody):
    """The body of SYNC_GROUP: what a member holds and wants.

    `generation` is the highest that a response named. `owned` is everything the member still works on.
    `lease_left_ms` is how long its own count of the lease still runs (0 or less: it has suspended its
    queues); None if it does not say. `sequence` tells a member's later requests from its earlier ones,
    which may arrive after them; 0 if it does not say.
    """

    title = "SYNC_GROUP request"

    group: str
    client_id: str
    generation: Long = 0
    subscriptions: dict[str, str] = wire(default_factory=dict)
    owned: list[_Row] = wire(default_factory=list)
    strategy: str | None = None
    lease_ms: Long | None = None
    lease_left_ms: Long | None = None
    is_leaving: bool = wire(name="leaving", default=False)
    allow_subscription_change: bool = False
    sequence: Long = wire(default_factory=lambda: next(_sequence))

    def __post_init__(self) -> None:
        self.owned = [GrantedQueue.of_row(row) for row in self.owned]
        self.strategy = self.strategy or None

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the request in `body`. Raises Refused, also if it does not name group and client."""
        content = {"sequence": 0, **load_object(body, cls.title)}
        if not get_str(content, "group") or not get_str(content, "clientId"):
            raise Refused(ResponseCode.INVALID_PARAMETER, "SYNC_GROUP needs `group` and `clientId`")
        return cls.from_json(content)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the queues as rows."""
        return {**super().to_json(), "owned": [each.to_json() for each in self.owned]}


class SyncGroupReply(ShapedBody):
    """The response: `granted` is all that the member may work on; it releases the rest, `revoke` above all.

    The lease starts when the member sent its request, and runs for `lease_ms`.
    """

    title = "SYNC_GROUP answer"

    generation: Long = 0
    granted: list[_Row] = wire(default_factory=list)
    revoke: list[_Row] = wire(default_factory=list)
    members: list[str] = wire(default_factory=list)
    is_self_assigning: bool = wire(name="selfAssign", default=False)
    lease_ms: Long = 0

    def __post_init__(self) -> None:
        self.granted = [GrantedQueue.of_row(row) for row in self.granted]
        self.revoke = [GrantedQueue.of_row(row) for row in self.revoke]

    def to_json(self) -> dict[str, Any]:
        """Return the fields, with the queues as rows."""
        rows = {"granted": self.granted, "revoke": self.revoke}
        return {
            **super().to_json(),
            **{key: [each.to_json() for each in queues] for key, queues in rows.items()},
        }
