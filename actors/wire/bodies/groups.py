"""Bodies about consumer groups: heartbeats, member lists and SYNC_GROUP."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeVar

import msgspec

from actors.wire.bodies.body import Body, ShapedBody, wire
from actors.wire.codes import ResponseCode
from actors.wire.command import Buffer
from actors.wire.header import (
    EXPRESSION_CHARS_MAX,
    FRAME_ITEMS_MAX,
    I64_MAX,
    ITEMS_MAX,
    AnyListOf,
    ClientId,
    Expression,
    FrameText,
    Group,
    ListOf,
    Long,
    LongListOf,
    Name,
    TableOf,
    Topic,
)
from actors.wire.json_fields import get_str
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

BROADCASTING: Final = "BROADCASTING"
CONSUME_POP: Final = "CONSUME_POP"
"""Consume type of members that only pop: no queues are assigned to them."""

# Java clients send the name of an enum value, C++ clients its number (see `json_fields`).
_ConsumeType = Annotated[
    Name, msgspec.Meta(extra={"names": ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", CONSUME_POP)})
]
_MessageModel = Annotated[Name, msgspec.Meta(extra={"names": (BROADCASTING, "CLUSTERING")})]
_ConsumeFrom = Annotated[
    Name,
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


_T = TypeVar("_T")
_TagsOf = Annotated[list[_T], msgspec.Meta(max_length=EXPRESSION_CHARS_MAX)]
"""A list with an entry per tag of an expression."""


class SubscriptionData(Body):
    """Subscription of a group to one topic."""

    topic: Topic = ""
    sub_string: FrameText = "*"
    tags_set: _TagsOf[Expression] = wire(default_factory=list)
    code_set: _TagsOf[Long] = wire(default_factory=list)
    sub_version: Long = 0
    expression_type: Name = "TAG"
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        if not self.expression_type:
            self.expression_type = "TAG"
        # As in RocketMQ the heartbeat is accepted, and pulls are refused: the rest is still too long.
        self.sub_string = self.sub_string[: EXPRESSION_CHARS_MAX + 1]


class ConsumerData(Body):
    """One consumer group of a client."""

    group_name: Group = ""
    consume_type: _ConsumeType = "CONSUME_PASSIVELY"
    message_model: _MessageModel = "CLUSTERING"
    consume_from_where: _ConsumeFrom = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: ListOf[SubscriptionData] = wire(name="subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


class _ProducerData(Body):
    group_name: Group = ""


if TYPE_CHECKING:
    _ProducerGroup = str
else:
    _ProducerGroup = (
        _ProducerData  # the type that msgspec decodes; `__post_init__` replaces it by its group name
    )


def _is_valid(row: Any, kind: type[Body]) -> bool:
    try:
        return isinstance(row, dict) and bool(kind.from_json(row))
    except Refused:
        return False


@lru_cache(maxsize=1_000)
def _log_skipped(remark: str) -> None:
    """Log an invalid entry once: clients repeat their heartbeats every 30 s."""
    _log.warning("heartbeat_entry_skipped", error=remark)


class HeartbeatData(ShapedBody):
    """Body of HEART_BEAT: the client id, its consumer groups and its producer groups."""

    values_max = 100_000

    client_id: ClientId = wire(name="clientID", default="")
    consumers: ListOf[ConsumerData] = wire(name="consumerDataSet", default_factory=list)
    producer_groups: ListOf[_ProducerGroup] = wire(name="producerDataSet", default_factory=list)
    fingerprint: Long = wire(name="heartbeatFingerprint", default=0)
    is_without_sub: bool = wire(name="withoutSub", default=False)

    def __post_init__(self) -> None:
        given: list[Any] = self.producer_groups
        self.producer_groups = [each if isinstance(each, str) else each.group_name for each in given]

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the heartbeat in `body`. Raises Refused if it is invalid or has no client id.

        An entry that is invalid, such as one with a group name that is too long, is left out if another one
        of its list is valid: the other groups must not lose their member.
        """
        try:
            found = super().decode(body)
        except Refused as error:
            found = cls._without_invalid(body, error)
        if not found.client_id:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the heartbeat has no `clientID`")
        return found

    @classmethod
    def _without_invalid(cls, body: Buffer, error: Refused) -> Self:
        content = cls.load(body)
        for key, kind in (("consumerDataSet", ConsumerData), ("producerDataSet", _ProducerData)):
            rows = content.get(key)
            if isinstance(rows, list) and len(rows) <= ITEMS_MAX:
                content[key] = [each for each in rows if _is_valid(each, kind)]
                if rows and not content[key]:
                    raise error
        found = cls.from_json(content)
        _log_skipped(error.remark)
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each producer group as an object."""
        producers = [{"groupName": group} for group in self.producer_groups]
        return {**super().to_json(), "producerDataSet": producers}


class GroupMembers(Body):
    """The members of a consumer group.

    If `is_self_assigning`, the members assign the queues among themselves by this list. Response body of
    GET_CONSUMER_LIST_BY_GROUP and GROUP_MEMBERS, and request body of GROUP_CHANGED. Java clients read only
    `consumerIdList`.
    """

    title = "member list"
    values_max = 200_000

    members: Annotated[tuple[ClientId, ...], msgspec.Meta(max_length=FRAME_ITEMS_MAX)] = wire(
        name="consumerIdList", default=()
    )
    is_self_assigning: bool = wire(name="selfAssign", default=False)


@dataclass(frozen=True, slots=True, order=True)
class AssignedQueue:
    """A queue and the generation under which it was assigned to a member."""

    queue: MessageQueue
    generation: int

    @classmethod
    def of_row(cls, row: Any) -> "AssignedQueue":
        """Return the queue of a JSON row `[topic, broker, queueId, generation]`.

        A row without generation gets generation 0. Raises Refused if the row is invalid.
        """
        match row:
            case AssignedQueue():
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
                    f"{str(row)[:100]!r} is not a valid queue: use [topic, broker, queueId, generation]",
                )

    def to_json(self) -> list[Any]:
        """Return the JSON row `[topic, broker, queueId, generation]`."""
        return [*self.queue, self.generation]


_sequence = count(1)
if TYPE_CHECKING:
    _Row = AssignedQueue
else:
    _Row = Any  # the type that msgspec decodes; `__post_init__` converts it to an AssignedQueue


class SyncGroupRequest(ShapedBody):
    """Request body of SYNC_GROUP: the queues that a member owns and the topics that it subscribes to.

    `generation` is the highest generation in any response to the member. `owned` lists all queues that the
    member still consumes. `lease_left_ms` is the remaining time of the lease by the member's clock (0 or
    less: it has suspended its queues), or None if unknown. `sequence` increases with each request of a
    member, so that the rebalancer can ignore requests that arrive out of order; 0 if unknown.
    """

    title = "SYNC_GROUP request"
    values_max = 280_000

    group: Group
    client_id: ClientId
    generation: Long = 0
    subscriptions: TableOf[Topic, Expression] = wire(default_factory=dict)
    owned: LongListOf[_Row] = wire(default_factory=list)
    strategy: Name | None = None
    lease_ms: Long | None = None
    lease_left_ms: Long | None = None
    is_leaving: bool = wire(name="leaving", default=False)
    allow_subscription_change: bool = False
    sequence: Long = wire(default_factory=lambda: next(_sequence))

    def __post_init__(self) -> None:
        self.owned = [AssignedQueue.of_row(row) for row in self.owned]
        self.strategy = self.strategy or None

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Return the request in `body`. Raises Refused if it is invalid or names no group or client."""
        content = {"sequence": 0, **cls.load(body)}
        if not get_str(content, "group") or not get_str(content, "clientId"):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, "the SYNC_GROUP request must have `group` and `clientId`"
            )
        return cls.from_json(content)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each queue as a row."""
        return {**super().to_json(), "owned": [each.to_json() for each in self.owned]}


class SyncGroupReply(ShapedBody):
    """Response body of SYNC_GROUP.

    The member may consume only the queues in `assigned`. It releases all others; `revoke` lists those that
    the rebalancer waits for. The lease starts when the member sends its request and lasts `lease_ms`.
    """

    title = "SYNC_GROUP response"

    generation: Long = 0
    assigned: AnyListOf[_Row] = wire(name="granted", default_factory=list)
    revoke: AnyListOf[_Row] = wire(default_factory=list)
    members: AnyListOf[ClientId] = wire(default_factory=list)
    is_self_assigning: bool = wire(name="selfAssign", default=False)
    lease_ms: Long = 0

    def __post_init__(self) -> None:
        self.assigned = [AssignedQueue.of_row(row) for row in self.assigned]
        self.revoke = [AssignedQueue.of_row(row) for row in self.revoke]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each queue as a row."""
        rows = {"granted": self.assigned, "revoke": self.revoke}
        return {
            **super().to_json(),
            **{key: [each.to_json() for each in queues] for key, queues in rows.items()},
        }
