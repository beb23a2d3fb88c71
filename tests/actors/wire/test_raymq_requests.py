"""Bodies of RayMQ's own requests round-trip, and invalid ones are refused."""

from __future__ import annotations

from actors.wire.raymq_requests import (
    CommitOffsetsBody,
    CommitOffsetsReply,
    OffsetCommit,
    QueueRange,
    RefusedCommit,
    SplitsBody,
)


def test_commit_offsets_body_round_trips_as_json() -> None:
    body = CommitOffsetsBody("G", "c@1", [OffsetCommit("T", 3, 42, 7)])
    assert body.encode() == b'{"clientId":"c@1","group":"G","offsets":[["T",3,42,7,""]]}'
    assert CommitOffsetsBody.decode(body.encode()) == body


def test_commit_offsets_response_round_trips() -> None:
    reply = CommitOffsetsReply([RefusedCommit("T", 3, 8, 50)])
    assert CommitOffsetsReply.decode(reply.encode()) == reply


def test_splits_body_round_trips() -> None:
    splits = SplitsBody(
        "broker-a", "n:10911", "10.0.0.7", "m", "store", "id", 1 << 30, 300_000, 4096, [QueueRange(0, 5, 9)]
    )
    assert SplitsBody.decode(splits.encode()) == splits
