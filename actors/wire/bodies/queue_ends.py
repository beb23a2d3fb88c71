"""The body of GET_QUEUE_ENDS (7216): the ends of queues of which a log has no record.

    {"position": 1073741824, "queueEnds": {"orders": [[0, 1000], [1, 998]]}}

`position` is the CommitLog offset that the master had dispatched; [queue id, next queue offset].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from actors.wire.header import Count, Id


class QueueEnds(msgspec.Struct):
    """Ends of queues by topic, each with its queue id."""

    position: Count
    ends: Mapping[str, Sequence[tuple[Id, Count]]] = msgspec.field(name="queueEnds")

    def encode(self) -> bytes:
        """Return the body."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes) -> QueueEnds:
        """Return the content of a body. Raises ValueError if it is invalid."""
        return msgspec.json.decode(body, type=cls)
