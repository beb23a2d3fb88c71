"""What disturbs a broker while `interference` measures it: each in a process of its own, until told to end.

    python -m cluster.bench.disturbances NAME ADDRESS TOPIC NUMBER

says GO when it has begun, ends when its standard input does, and says in one line of JSON what it did.
"""

from __future__ import annotations

import json
import random
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.headers import (
    PullRecordsHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicQueueHeader,
)
from actors.remoting.hot_headers import SendMessageHeader
from actors.remoting.raymq_requests import CommitOffsetsBody, OffsetCommit
from cluster.bench.raw_peer import RawPeer
from cluster.bench.sending import QUEUES

PULL_BYTES = 1024 * 1024
ROLL_BODY_BYTES = 256 * 1024
ROLL_BYTES_PER_S = 32 * 1024 * 1024
COMMITS_A_REQUEST = 500
COMMIT_PAUSE_S = 0.05
UNREAD_PULLS = 256

Outcome = dict[str, float]


def stop_requested(wait_s: float = 0) -> bool:
    """Whether standard input has ended; waits so long for it."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable)


def backlog(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Pull all queues of a topic from their beginnings on, a mebibyte at a time."""
    offsets = dict.fromkeys(range(QUEUES), 0)
    pulled_bytes = pulls = 0
    started = time.perf_counter()
    longest_s = 0.0
    while offsets and not stop_requested():
        for queue_id, offset in list(offsets.items()):
            asked = time.perf_counter()
            header = PullRecordsHeader(topic, queue_id, offset, "disturbance", max_bytes=PULL_BYTES)
            answer = peer.ask(RayMQRequestCode.PULL_RECORDS, header.to_ext())
            longest_s = max(longest_s, time.perf_counter() - asked)
            pulled_bytes += len(answer.body)
            pulls += 1
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                del offsets[queue_id]
            offsets.update({queue_id: int(answer.ext["nextBeginOffset"])} if queue_id in offsets else {})
    seconds = time.perf_counter() - started
    return {
        "pulled_bytes": pulled_bytes,
        "pulls": pulls,
        "pulled_bytes_per_s": pulled_bytes / seconds,
        "longest_pull_ms": longest_s * 1e3,
    }


def roll(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Send `number` bytes at a steady rate, which fills the log file up; then have the oldest one deleted."""
    body = random.Random(1).randbytes(ROLL_BODY_BYTES)
    sent_bytes = 0
    deleted = False
    started = time.perf_counter()
    while not stop_requested():
        if sent_bytes < number:
            header = SendMessageHeader("disturbance", topic, 0, "")
            peer.succeed(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
            sent_bytes += len(body)
        elif not deleted:
            peer.succeed(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            deleted = True
        ahead_s = sent_bytes / ROLL_BYTES_PER_S - (time.perf_counter() - started)
        if stop_requested(max(ahead_s, 0)):
            break
    return {"sent_bytes": sent_bytes, "deletions_asked": int(deleted)}


def offsets(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Commit offsets of `number` queues, again and again: each time that they are saved, all are new."""
    commits = 0
    while not stop_requested():
        first = commits % number
        some = range(first, min(first + COMMITS_A_REQUEST, number))
        body = CommitOffsetsBody("disturbance", "", [OffsetCommit(topic, each, commits, 0) for each in some])
        peer.succeed(RayMQRequestCode.COMMIT_OFFSETS, {}, body.encode())
        commits += len(some)
        if stop_requested(COMMIT_PAUSE_S):
            break
    return {"commits": commits}


def queries(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Search by key, `number` different ones, and by time."""
    rng = random.Random(2)
    found = searches = 0
    longest_s = 0.0
    now_ms = int(time.time() * 1000)
    while not stop_requested():
        key = f"r{0:04d}-{rng.randrange(number):08d}"
        asked = time.perf_counter()
        query = QueryMessageHeader(topic, key, 32, 0, now_ms + 3_600_000)
        found += peer.ask(RequestCode.QUERY_MESSAGE, query.to_ext()).code == ResponseCode.SUCCESS
        longest_s = max(longest_s, time.perf_counter() - asked)
        moment_ms = now_ms - rng.randrange(600_000)
        search = SearchOffsetHeader(topic, rng.randrange(QUEUES), moment_ms)
        peer.succeed(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())
        searches += 2
    return {"searches": searches, "keys_found": found, "longest_key_search_ms": longest_s * 1e3}


def connections(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Open `number` connections, ask one thing over each, and close them all; again and again."""
    opened = 0
    ext = TopicQueueHeader(topic, 0).to_ext()
    host, port = peer.socket.getpeername()[:2]
    while not stop_requested():
        with ExitStack() as stack:
            some = [stack.enter_context(RawPeer(f"{host}:{port}")) for _ in range(number)]
            for each in some:
                each.socket.sendall(each.request(RequestCode.GET_MAX_OFFSET, ext))
            for each in some:
                each.read()
        opened += number
    return {"connections": opened}


def unread(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Ask for far more than is ever read."""
    sent_bytes = 0
    header = PullRecordsHeader(topic, 0, 0, "disturbance")
    pending = b"".join(
        peer.request(RayMQRequestCode.PULL_RECORDS, header.to_ext()) for _ in range(UNREAD_PULLS)
    )
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    peer.socket.setblocking(False)
    while not stop_requested(0.01):
        try:
            sent_bytes += peer.socket.send(pending)
        except BlockingIOError:
            continue
    return {"asked_bytes": sent_bytes}


DISTURBANCES: dict[str, Callable[[RawPeer, str, int], Outcome]] = {
    "backlog": backlog,
    "roll": roll,
    "offsets": offsets,
    "queries": queries,
    "connections": connections,
    "unread": unread,
}


def main() -> None:
    """Run what the command line says."""
    name, address, topic, number = sys.argv[1:]
    with RawPeer(address) as peer:
        print("GO", flush=True)
        print(json.dumps(DISTURBANCES[name](peer, topic, int(number))), flush=True)


if __name__ == "__main__":
    main()
