"""The requests that are RayMQ's own (codes 7101 to 7108): what stands in their headers and bodies.

Clients import this module too, so it knows nothing of the broker. Extension fields are strings on the wire,
as in every remoting command; bodies are JSON unless said otherwise.

SEND_RECORDS 7101    one queue's V1 records, built by the client, back to back as the body; all stored, or
                     nothing. `SendRecordsHeader`, `SendRecordsResponse` (actors.remoting.headers); codes as
                     of SEND_MESSAGE_V2. Records carry their queueId; CRC, both offsets, storeTimestamp and
                     both hosts are the broker's.

PULL_RECORDS 7102    as PULL_MESSAGE, but as many records as fit into maxBytes (at most 4 MiB), not 32.
                     `PullRecordsHeader`, `PullRecordsResponse`; the body is the records; codes as of
                     PULL_MESSAGE. A reader that belongs to no group leaves consumerGroup empty.

SYNC_GROUP 7103      handed on to the group's rebalancer as it is; see actors.rebalancer

COMMIT_OFFSETS 7104  body {"group": g, "clientId": c, "offsets": [[topic, queueId, offset, generation], ...]}
    reply            {"refused": [[topic, queueId, generation, offset], ...]}: commits of an older generation
                     than the broker knows, with the generation and the offset (-1: none) that stand; all
                     others are taken

DESCRIBE_SPLITS 7105 what a bulk reader needs to find a topic's messages, in the files or over the socket
    request ext      topic
    reply            `SplitsBody`

SEND_RUNS 7106       as SEND_RECORDS, for several queues of one topic: a body of runs; all stored, or nothing.
                     `SendRunsHeader`, `SendRunsResponse`; bodies of both: store.message.runs

APPEND_BATCH 7107    what `append` of the actor handle sends: as SEND_BATCH_MESSAGE, but the response also has
                     count and store timestamp. `AppendBatchHeader`, `AppendBatchResponse`; response body:
                     the offset message ids, comma-separated

DESCRIBE_BROKER 7108 what `describe` of the actor handle sends
    response         JSON object: who and where the broker is, and how far its store has come
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

PULL_RECORDS_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """The offset of one queue, committed under the generation in which the queue was granted (0: none)."""

    topic: str
    queue_id: int
    offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class CommitOffsetsBody:
    """The body of COMMIT_OFFSETS."""

    group: str
    client_id: str
    offsets: Sequence[OffsetCommit]

    def encode(self) -> bytes:
        """Give the JSON of the request."""
        rows = [[commit.topic, commit.queue_id, commit.offset, commit.generation] for commit in self.offsets]
        return orjson.dumps({"group": self.group, "clientId": self.client_id, "offsets": rows})

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> CommitOffsetsBody:
        """Read the JSON of the request. Raises ValueError when it is not that."""
        try:
            fields = orjson.loads(body)
            commits = [OffsetCommit(str(t), int(q), int(o), int(g)) for t, q, o, g in fields["offsets"]]
            return cls(str(fields["group"]), str(fields.get("clientId", "")), commits)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a COMMIT_OFFSETS body: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """A commit that came from a former owner: the generation and the offset that stand instead."""

    topic: str
    queue_id: int
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommitOffsetsReply:
    """The reply to COMMIT_OFFSETS."""

    refused: Sequence[RefusedCommit]

    def encode(self) -> bytes:
        """Give the JSON of the reply."""
        rows = [[each.topic, each.queue_id, each.generation, each.offset] for each in self.refused]
        return orjson.dumps({"refused": rows})

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> CommitOffsetsReply:
        """Read the JSON of the reply."""
        return cls([RefusedCommit(*row) for row in orjson.loads(body)["refused"]])


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The readable messages of one queue: [min_offset, max_offset), never past what is confirmed and
    dispatched.
    """

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class SplitsBody:
    """The reply to DESCRIBE_SPLITS.

    `machine_id` tells whether the reader runs where the files are (with `store_root`, and `store_id` as the
    proof that it is this store that lies there). The file sizes are what turns an offset into a file and a
    position.
    """

    broker_name: str
    address: str
    machine_id: str
    store_root: str
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_units: int
    confirmed: int
    queues: Sequence[QueueRange]

    def encode(self) -> bytes:
        """Give the JSON of the reply."""
        return orjson.dumps(
            {
                "brokerName": self.broker_name,
                "address": self.address,
                "machineId": self.machine_id,
                "storeRoot": self.store_root,
                "storeId": self.store_id,
                "commitLogFileBytes": self.commit_log_file_bytes,
                "consumeQueueFileUnits": self.consume_queue_file_units,
                "confirmed": self.confirmed,
                "queues": [[queue.queue_id, queue.min_offset, queue.max_offset] for queue in self.queues],
            }
        )

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> SplitsBody:
        """Read the JSON of the reply."""
        fields = orjson.loads(body)
        return cls(
            fields["brokerName"],
            fields["address"],
            fields["machineId"],
            fields["storeRoot"],
            fields["storeId"],
            fields["commitLogFileBytes"],
            fields["consumeQueueFileUnits"],
            fields["confirmed"],
            [QueueRange(*row) for row in fields["queues"]],
        )
