"""Bodies about queue locks.

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) have RocketMQ's LockBatchRequestBody and LockBatchResponseBody.
The response of GET_ALL_QUEUE_LOCKS (7211), and the file `raymqQueueLocks.json`, is

    {"locks": [[group, owner, topic, brokerName, queueId, generation, remainingMs], ...]}

`remainingMs` is the time until the lock expires, unless its owner renews it.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import orjson
from msgspec import Meta

from actors.wire.bodies.body import QueueField, ShapedBody, encode_json, queue_json, queue_of, wire
from actors.wire.codes import ResponseCode
from actors.wire.header import (
    CLIENT_ID_CHARS_MAX,
    AnyListOf,
    ClientId,
    Count,
    Group,
    Int,
    Long,
    Name,
    QueuesOf,
    Topic,
)
from actors.wire.remoting_errors import Refused
from store.message.json_fields import typed
from store.message.json_text import parse_rocketmq_json
from store.message.message_queue import MessageQueue

_Owner = Annotated[str, Meta(max_length=2 * CLIENT_ID_CHARS_MAX)]
_HeldRow = tuple[Group, _Owner, Topic, Name, Int, Count, Count]


class LockRequest(ShapedBody):
    """Request body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: the client, its group and the queues.

    `generations` is RayMQ's: one generation per queue, under which the rebalancer assigned it. RocketMQ's
    clients do not send the field, and its brokers ignore it.
    """

    title = "lock request"
    values_max = 120_000

    group: Group = wire(name="consumerGroup", default="")
    client_id: ClientId = ""
    queues: QueuesOf[QueueField] = wire(name="mqSet", default_factory=list)
    only_this_broker: bool = False
    generations: QueuesOf[Long] = wire(default_factory=list)

    def __post_init__(self) -> None:
        self.queues = [queue_of(queue) for queue in self.queues]
        if self.generations and (len(self.generations) != len(self.queues) or min(self.generations) < 0):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"`generations` has {len(self.generations)} numbers for {len(self.queues)} queues: send one "
                "number of 0 or more per queue, or omit the field",
            )

    def locks(self) -> list[tuple[MessageQueue, int]]:
        """Return each queue and its generation; 0 for a member that assigns queues to itself."""
        return list(zip(self.queues, self.generations or [0] * len(self.queues), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each queue as an object."""
        fields = {**super().to_json(), "mqSet": [queue_json(queue) for queue in self.queues]}
        if not self.generations:
            del fields["generations"]
        return fields


class LockedQueues(ShapedBody):
    """Response body of LOCK_BATCH_MQ: the queues that the client holds now."""

    title = "lock response"

    queues: AnyListOf[QueueField] = wire(name="lockOKMQSet", default_factory=list)

    def __post_init__(self) -> None:
        self.queues = [queue_of(queue) for queue in self.queues]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each queue as an object."""
        return {"lockOKMQSet": [queue_json(queue) for queue in self.queues]}


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """Return the response body of LOCK_BATCH_MQ: the queues that are locked by the client."""
    return encode_json({"lockOKMQSet": [queue_json(queue) for queue in queues]})


class HeldLock(NamedTuple):
    """A queue that is locked for a group, `remaining_ms` before the lock expires."""

    group: str
    owner: str
    queue: MessageQueue
    generation: int
    remaining_ms: int


def encode_held_locks(locks: Iterable[HeldLock], **more: int) -> bytes:
    """Return locks as JSON, with the fields `more` beside them."""
    rows = [[each.group, each.owner, *each.queue, each.generation, each.remaining_ms] for each in locks]
    return orjson.dumps({"locks": rows, **more})


def decode_held_locks(body: bytes) -> list[HeldLock]:
    """Return the locks in the response of GET_ALL_QUEUE_LOCKS. Raises ValueError if it is invalid."""
    return held_locks(parse_rocketmq_json(body))


def held_locks(content: Mapping[str, Any]) -> list[HeldLock]:
    """Return the locks in decoded JSON. Raises ValueError if it is invalid."""
    return [
        HeldLock(group, owner, MessageQueue(topic, broker_name, queue_id), generation, remaining_ms)
        for group, owner, topic, broker_name, queue_id, generation, remaining_ms in typed(
            content.get("locks"), list[_HeldRow], "locks"
        )
    ]
