"""Bodies of LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42: LockBatchRequestBody and LockBatchResponseBody."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import orjson

from actors.remoting.bodies.flat import queue_json, queue_of
from actors.remoting.command import Buffer
from actors.remoting.json_fields import get_objects, get_str, load_object
from store.message.message_queue import MessageQueue


@dataclass(slots=True)
class LockRequest:
    """Who asks for, or lets go of, which queues."""

    group: str
    client_id: str
    queues: list[MessageQueue]

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """As it stands in a body; raises Refused where it cannot be read."""
        fields = load_object(body, "lock request")
        queues = [queue_of(item) for item in get_objects(fields, "mqSet")]
        return cls(get_str(fields, "consumerGroup"), get_str(fields, "clientId"), queues)

    def encode(self) -> bytes:
        """As clients send it."""
        return orjson.dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": [queue_json(queue) for queue in self.queues],
                "onlyThisBroker": False,
            }
        )


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """The answer: the queues that the client holds."""
    return orjson.dumps({"lockOKMQSet": [queue_json(queue) for queue in queues]})
