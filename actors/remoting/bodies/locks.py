"""Bodies of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): LockBatchRequestBody and LockBatchResponseBody."""

from collections.abc import Iterable
from typing import Any

from actors.remoting.bodies.body import QueueField, ShapedBody, encode_json, queue_json, queue_of, wire
from actors.remoting.codes import ResponseCode
from actors.remoting.header import AnyListOf, ClientId, Group, Long, QueuesOf
from actors.remoting.remoting_errors import Refused
from store.message.message_queue import MessageQueue


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
