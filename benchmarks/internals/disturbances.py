"""Disturbances of the interference benchmark: loads that run in a separate process.

    python -m benchmarks.internals.disturbances NAME ADDRESS TOPIC NUMBER

Prints GO when the load starts, runs until the end of standard input, and then prints its counts as one line
of JSON. The meaning of NUMBER depends on the disturbance.
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

from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.headers import (
    PullRecordsHeader,
    QueryMessageHeader,
    SearchOffsetHeader,
    TopicQueueHeader,
)
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.raymq_requests import CommitOffsetsBody, OffsetCommit
from benchmarks.raw_peer import RawPeer
from cluster.lab.bench.sending import QUEUES

PULL_BYTES = 1024 * 1024
ROLL_BODY_BYTES = 256 * 1024
ROLL_BYTES_PER_S = 32 * 1024 * 1024
COMMITS_PER_REQUEST = 500
COMMIT_PAUSE_S = 0.05
UNREAD_PULLS = 256

Outcome = dict[str, float]


def stop_requested(wait_s: float = 0) -> bool:
    """Return True at the end of standard input, after waiting up to `wait_s` seconds for it."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    return bool(readable)


def backlog(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Pull all queues of the topic from their first offset, 1 MiB per pull; `number` is not used."""
    offsets = dict.fromkeys(range(QUEUES), 0)
    pulled_bytes = pulls = 0
    started = time.perf_counter()
    longest_s = 0.0
    while offsets and not stop_requested():
        for queue_id, offset in list(offsets.items()):
            requested_s = time.perf_counter()
            header = PullRecordsHeader(topic, queue_id, offset, "disturbance", max_bytes=PULL_BYTES)
            response = peer.call(RayMQRequestCode.PULL_RECORDS, header.to_ext())
            longest_s = max(longest_s, time.perf_counter() - requested_s)
            pulled_bytes += len(response.body)
            pulls += 1
            if response.code == ResponseCode.PULL_NOT_FOUND:
                del offsets[queue_id]
            offsets.update({queue_id: int(response.ext["nextBeginOffset"])} if queue_id in offsets else {})
    seconds = time.perf_counter() - started
    return {
        "pulled_bytes": pulled_bytes,
        "pulls": pulls,
        "pulled_bytes_per_s": pulled_bytes / seconds,
        "longest_pull_ms": longest_s * 1e3,
    }


def roll(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Send `number` bytes at a steady rate, which rolls the log file, then have the oldest file deleted."""
    body = random.Random(1).randbytes(ROLL_BODY_BYTES)
    sent_bytes = 0
    deleted = False
    started = time.perf_counter()
    while not stop_requested():
        if sent_bytes < number:
            header = SendMessageHeader("disturbance", topic, 0, "")
            peer.call_checked(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
            sent_bytes += len(body)
        elif not deleted:
            peer.call_checked(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            deleted = True
        ahead_s = sent_bytes / ROLL_BYTES_PER_S - (time.perf_counter() - started)
        if stop_requested(max(ahead_s, 0)):
            break
    return {"sent_bytes": sent_bytes, "deletions_requested": int(deleted)}


def offsets(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Commit new offsets of `number` queues repeatedly, so that each save of the offset table has changes."""
    commits = 0
    while not stop_requested():
        first = commits % number
        some = range(first, min(first + COMMITS_PER_REQUEST, number))
        body = CommitOffsetsBody("disturbance", "", [OffsetCommit(topic, each, commits, 0) for each in some])
        peer.call_checked(RayMQRequestCode.COMMIT_OFFSETS, {}, body.encode())
        commits += len(some)
        if stop_requested(COMMIT_PAUSE_S):
            break
    return {"commits": commits}


def queries(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Search repeatedly by key (one of `number` keys at random) and by time."""
    rng = random.Random(2)
    found = searches = 0
    longest_s = 0.0
    now_ms = int(time.time() * 1000)
    while not stop_requested():
        key = f"r{0:04d}-{rng.randrange(number):08d}"
        requested_s = time.perf_counter()
        query = QueryMessageHeader(topic, key, 32, 0, now_ms + 3_600_000)
        found += peer.call(RequestCode.QUERY_MESSAGE, query.to_ext()).code == ResponseCode.SUCCESS
        longest_s = max(longest_s, time.perf_counter() - requested_s)
        moment_ms = now_ms - rng.randrange(600_000)
        search = SearchOffsetHeader(topic, rng.randrange(QUEUES), moment_ms)
        peer.call_checked(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search.to_ext())
        searches += 2
    return {"searches": searches, "keys_found": found, "longest_key_search_ms": longest_s * 1e3}


def connections(peer: RawPeer, topic: str, number: int) -> Outcome:
    """Open `number` connections, send one request over each, and close them; repeatedly."""
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
    """Send pulls without reading the responses; `number` is not used."""
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
    return {"request_bytes": sent_bytes}


DISTURBANCES: dict[str, Callable[[RawPeer, str, int], Outcome]] = {
    "backlog": backlog,
    "roll": roll,
    "offsets": offsets,
    "queries": queries,
    "connections": connections,
    "unread": unread,
}


def main() -> None:
    """Run with the arguments of the command line."""
    name, address, topic, number = sys.argv[1:]
    with RawPeer(address) as peer:
        print("GO", flush=True)
        print(json.dumps(DISTURBANCES[name](peer, topic, int(number))), flush=True)


if __name__ == "__main__":
    main()
