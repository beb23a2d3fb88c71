"""Headers and bodies of RayMQ's own requests (codes 7102 to 7112, and 7206 to 7217).

Clients import this module too, so it must not import the broker. Header fields are strings on the wire, as in
every remoting command; bodies are JSON unless stated otherwise.

PULL_RECORDS 7102    Like PULL_MESSAGE, but returns as many records as fit into maxBytes (at most 4 MiB)
                     instead of 32. `PullRecordsHeader`, `PullRecordsResponse`; the response body is the
                     records; response codes of PULL_MESSAGE. A reader without a group leaves consumerGroup
                     empty.

SYNC_GROUP 7103      The broker forwards it unchanged to the group's rebalancer; see actors.rebalancer.

COMMIT_OFFSETS 7104  Commits offsets under the generation in which each queue was assigned.
    body             {"group": g, "clientId": c, "offsets": [[topic, queueId, offset, generation,
                     history], ...]}. An offset beyond the end of what was read in another past of the log is
                     lowered to it (actors.broker.core.loop.log_history).
    response         {"refused": [[topic, queueId, generation, offset], ...]}: the refused commits, whose
                     generation is older than the broker's, with the broker's current generation and offset
                     (-1: no offset). All other offsets are committed.

DESCRIBE_SPLITS 7105 Locates a topic's messages for a bulk reader, which reads them from the files or over
                     the socket.
    request header   topic
    response         `SplitsBody`

SEND_RUNS 7106       The body is V1 records of queues of one topic, encoded by the client, as one run for each
                     queue (store.message.runs). The broker stores all of them or none. It fills in CRC, both
                     offsets, storeTimestamp and both hosts. `SendRunsHeader`, `SendRunsResponse`
                     (actors.wire.headers); response codes of SEND_MESSAGE_V2.

APPEND_BATCH 7107    Sent by `append` of the actor handle. Like SEND_BATCH_MESSAGE, but the response also has
                     count and store timestamp. `AppendBatchHeader`, `AppendBatchResponse`; the response body
                     is the offset message ids, comma-separated.

DESCRIBE_BROKER 7108 Sent by `describe` of the actor handle.
    response         JSON object with the broker's identity, its address and the positions of its store.

REPLACE_QUEUE_FILE 7109
                     Sent by `raymq reindex live`: replaces a full consume queue file by the file that the job
                     wrote into raymq.reindex/new of the store's directory, after the broker has compared its
                     units with the log. `ReplaceQueueFileHeader` (actors.wire.admin_headers);
                     INVALID_PARAMETER if the file cannot be replaced.

RESTART_BROKER 7110  Sent by the console: the broker responds, stops cleanly, and is started again by Ray with
                     the same settings. `RestartBrokerHeader`; SYSTEM_ERROR if it is not an actor.

DRAIN_BROKER 7111    Sent by the console and `raymq broker drain`: starts, cancels or shows a drain without a
                     lease (actors.broker.core.drain). `DrainBrokerHeader`; INVALID_PARAMETER for another
                     step.
    response         JSON object: state ("active", "draining", "closed"), up_s, messages_in, producers, and
                     groups: [{"group": g, "members": n, "unread": n, "topics": {topic: n}}, ...]

GET_TOPIC_COUNTERS 7112
                     Sent by the console and `raymq top`: the counters of all topics of the receiver in one
                     response (actors.wire.bodies.progress).

FIND_REQUEST 7206    Sent by a broker to the others: SUCCESS if a request message with this correlation id has
                     passed the receiver and waits for its reply, else QUERY_NOT_FOUND. `FindRequestHeader`.

CHECK_USER 7207      Sent by a gateway on behalf of the user of a call, see `actors.wire.signing`: SUCCESS
                     if the user's key has signed the text in the header and the user has permission for all
                     targets in the body, else NO_PERMISSION. `CheckUserHeader`; a request without text
                     checks the targets only.
    body             [[resource, name, action], ...], or empty

GET_ALL_USERS 7208   Sent by a slave to its master, signed as the inner user: NO_PERMISSION for all others.
    response         Users with their secret keys, and policies: the content of `raymqAccess.json`
                     (actors.access.access_file)

GET_ALL_GENERATIONS 7209
                     Sent by a slave to its master.
    response         The generation of each queue in each group: the content of `raymqGenerations.json`
                     (actors.broker.core.metadata.tables)

RAFT_MESSAGE 7210    One-way. Sent by a replica of a Raft group to another one, signed as the inner user.
                     `RaftMessageHeader`; the body is one message
                     (actors.broker.replication.raft.message_codec).

GET_ALL_QUEUE_LOCKS 7211
                     Sent by a slave to its master.
    response         The locks of ordered consumers (actors.wire.bodies.locks)

GET_TABLE_VERSIONS 7212
                     Sent by a slave to its master every second.
    response         {code: version, ...}: for the request code of each table that a slave copies at once, a
                     number that increases with each change until the master restarts

CHANGE_RAFT_MEMBERS 7213
                     Sent by `raymq replica` to the leader of a Raft group: makes at most one step to the
                     group with `addStoreId` and without `removeStoreId`, and says whether it is reached.
                     `ChangeRaftMembersHeader` (actors.wire.admin_headers); SERVICE_NOT_AVAILABLE with
                     the leader's address if the receiver does not lead, SYSTEM_ERROR if the step is not safe
                     now.
    response         `RaftChange` (actors.wire.bodies.raft_members)

GET_RAFT_MEMBERS 7214
                     Sent to any replica of a Raft group, by `raymq replica` and by other replicas.
    response         `RaftMembers`: the members as the receiver knows them

TRANSFER_LEADERSHIP 7215
                     Sent to the leader of a Raft group: replica `toReplica` becomes the leader.
    response         when it leads; `leader` is its address. With `dryRun` at once: the present leader's

GET_QUEUE_ENDS 7216  Sent by a slave to its master.
    response         The ends of queues of which the master's log has no record
                     (actors.wire.bodies.queue_ends)

PROVE_PEER 7217      Sent by each process of a cluster to each other one as the first request of a connection,
                     and by clients before a request with a secret key: SUCCESS. Its signature is the proof
                     (actors.wire.signing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import orjson

from actors.wire.bodies.body import Body
from actors.wire.codes import ResponseCode
from actors.wire.header import ClientId, Group, Header, Int, Long, Name, QueuesOf, Topic
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, Resource, Target

PULL_RECORDS_BYTES_MAX = 4 * 1024 * 1024
GROUP_EPOCH = "-g"
"""End of the id of an epoch of a Raft group, which is the same at all replicas."""
FROM_OTHER = "?"
"""Added to such an id by a client that has it from another replica: the response names the epoch then."""
_CheckedTargets = Annotated[list[tuple[Resource, Name, Action]], msgspec.Meta(max_length=2048)]

FOLLOWING = "following"
"""DESCRIBE_BROKER: the `replication_state` of a slave that copies its master's log."""
STOPPED = "stopped"
"""Beginning of the `replication_state` of a slave whose log differs from its master's; the reason follows."""
IN_SYNC_BYTES = 256 * 1024 * 1024
"""A replica that lacks more of the log is not in sync (RocketMQ's haMaxGapNotInSync)."""


class CheckUserHeader(Header):
    """Header of CHECK_USER: a signed text, and its HMAC-SHA1 in hexadecimal digits."""

    text: Name = ""
    signature: Name = ""


def encode_targets(targets: Iterable[Target]) -> bytes:
    """Return the body of CHECK_USER."""
    return msgspec.json.encode(list(targets))


def decode_targets(body: bytes | bytearray | memoryview) -> list[Target]:
    """Return the targets in the body of CHECK_USER. Raises Refused if it is invalid."""
    try:
        rows = msgspec.json.decode(body or b"[]", type=_CheckedTargets)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"the body is not a valid list of targets: {error}"
        ) from None
    return [Target(*row) for row in rows]


class OffsetCommit(Body, array_like=True):
    """The offset to commit for one queue, and the generation under which the queue was assigned (0: none).

    `history` is the epoch of the log in which the messages were read, as in `PullRecordsHeader`.
    """

    topic: Topic
    queue_id: Int
    offset: Long
    generation: Long
    history: Name = ""


class CommitOffsetsBody(Body):
    """Request body of COMMIT_OFFSETS."""

    title = "COMMIT_OFFSETS request"
    values_max = 100_000

    group: Group
    client_id: ClientId
    offsets: QueuesOf[OffsetCommit]


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """A refused commit of a former owner, with the queue's current generation and committed offset."""

    topic: str
    queue_id: int
    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommitOffsetsReply:
    """Response body of COMMIT_OFFSETS."""

    refused: Sequence[RefusedCommit]

    def encode(self) -> bytes:
        """Return the response body as JSON."""
        rows = [[each.topic, each.queue_id, each.generation, each.offset] for each in self.refused]
        return orjson.dumps({"refused": rows})

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> CommitOffsetsReply:
        """Return the response in `body`."""
        return cls([RefusedCommit(*row) for row in orjson.loads(body)["refused"]])


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offset range [min_offset, max_offset) of the readable messages of one queue.

    These are the messages that are confirmed and dispatched.
    """

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class SplitsBody:
    """Response body of DESCRIBE_SPLITS.

    A reader maps the files under `store_root` if its machine has the same `machine_id` and that store has the
    same `store_id`. `node_ip` is the Ray node on which a reader can do that; it is empty outside of Ray. The
    file sizes convert an offset to a file and a position in it. `history` is the id of the present epoch of
    the log (PULL_RECORDS); empty if the broker has none.
    """

    broker_name: str
    address: str
    node_ip: str
    machine_id: str
    store_root: str
    store_id: str
    commit_log_file_bytes: int
    consume_queue_file_units: int
    confirmed: int
    queues: Sequence[QueueRange]
    history: str = ""

    def encode(self) -> bytes:
        """Return the response body as JSON."""
        return orjson.dumps(
            {
                "brokerName": self.broker_name,
                "address": self.address,
                "nodeIp": self.node_ip,
                "machineId": self.machine_id,
                "storeRoot": self.store_root,
                "storeId": self.store_id,
                "commitLogFileBytes": self.commit_log_file_bytes,
                "consumeQueueFileUnits": self.consume_queue_file_units,
                "confirmed": self.confirmed,
                "queues": [[queue.queue_id, queue.min_offset, queue.max_offset] for queue in self.queues],
                "history": self.history,
            }
        )

    @classmethod
    def decode(cls, body: bytes | bytearray | memoryview) -> SplitsBody:
        """Return the response in `body`."""
        fields = orjson.loads(body)
        return cls(
            fields["brokerName"],
            fields["address"],
            fields["nodeIp"],
            fields["machineId"],
            fields["storeRoot"],
            fields["storeId"],
            fields["commitLogFileBytes"],
            fields["consumeQueueFileUnits"],
            fields["confirmed"],
            [QueueRange(*row) for row in fields["queues"]],
            fields.get("history", ""),
        )
