"""RayMQ's own requests of a user that has all rights on topics and groups, and none on the cluster."""

from __future__ import annotations

from pathlib import Path

from actors.wire.codes import RayMQRequestCode
from tests.actors.broker.core.auth.access_peers import DENIED, Connect, SigningPeer, with_access
from tests.actors.header_names import least_fields

FOR_CLIENTS = {
    RayMQRequestCode.PULL_RECORDS, RayMQRequestCode.SYNC_GROUP, RayMQRequestCode.COMMIT_OFFSETS,
    RayMQRequestCode.DESCRIBE_SPLITS, RayMQRequestCode.SEND_RUNS, RayMQRequestCode.APPEND_BATCH,
    RayMQRequestCode.CHECK_USER, RayMQRequestCode.PROVE_PEER, RayMQRequestCode.GET_TOPIC_COUNTERS,
}  # fmt: skip
"""Requests about topics and groups; CHECK_USER reports only what its own user may do, PROVE_PEER nothing."""


def test_requests_of_processes_and_administrators_need_rights_on_the_cluster(tmp_path: Path) -> None:
    """A new request is refused here, or it is named above."""

    async def story(inner: SigningPeer, connect: Connect) -> None:
        await inner.create_user("alice")
        await inner.permit("alice", "Topic:*", "All")
        await inner.permit("alice", "Group:*", "All")
        alice, answered = connect("alice"), set()
        rows = inner.loop.requests.rows
        walked = [RayMQRequestCode(code) for code in rows if code in set(RayMQRequestCode)]
        for code in walked:
            header = rows[code].header_type
            ext = {} if header is None else least_fields(header)
            if (await alice.ask(code, ext, b"{}")).code != DENIED:
                answered.add(code)
        assert answered == FOR_CLIENTS
        assert {RayMQRequestCode.RAFT_MESSAGE, RayMQRequestCode.CHANGE_RAFT_MEMBERS} <= set(walked)

    with_access(story, tmp_path)
