"""Bodies of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): LockBatchRequestBody and LockBatchResponseBody."""

from collections.abc import Iterable
from typing import Any

from actors.remoting.bodies.body import QueueField, ShapedBody, encode_json, queue_json, queue_of, wire
from store.message.message_queue import MessageQueue


class LockRequest(ShapedBody):
    """Request body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: the client, its group and the queues."""

    title = "lock request"

    group: str = wire(name="consumerGroup", default="")
    client_id: str = ""
    queues: list[QueueField] = wire(name="mqSet", default_factory=list)
    only_this_broker: bool = False

    def __post_init__(self) -> None:
        self.queues = [queue_of(queue) for queue in self.queues]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON fields, with each queue as an object."""
        return {**super().to_json(), "mqSet": [queue_json(queue) for queue in self.queues]}


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """Return the response body of LOCK_BATCH_MQ: the queues that are locked by the client."""
    return encode_json({"lockOKMQSet": [queue_json(queue) for queue in queues]})
