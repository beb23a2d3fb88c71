"""Use a broker through its Ray actor handle, as any program on the same Ray cluster can.

Nothing of RayMQ is imported.

    RAY_AUTH_MODE=token python docs/examples/actor_handles.py [broker] [topic]

Requests and replies are msgpack maps with `v: 1`; a reply's `code` is RocketMQ's response code, 0 is success.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Iterator
from typing import Any

import msgpack
import pyarrow as pa
import ray

BODY_LENGTH_AT = 84
"""In a record of RocketMQ's store, after 84 bytes of numbers and IPv4 addresses: | bodyLength:4 | body | …"""


def call(broker: Any, method: str, **fields: object) -> dict[str, Any]:
    """Ask a broker; raises RuntimeError with its remark when it refuses."""
    reply = msgpack.unpackb(
        ray.get(getattr(broker, method).remote(msgpack.packb({"v": 1, **fields})), timeout=30)
    )
    if reply["code"] != 0:
        raise RuntimeError(f"{method}: code {reply['code']}: {reply['remark']}")
    return dict(reply)


def arrow_stream(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def bodies(records: bytes) -> Iterator[bytes]:
    """The bodies of records that lie back to back; each begins with its own size."""
    at = 0
    while at < len(records):
        (size,) = struct.unpack_from(">i", records, at)
        (length,) = struct.unpack_from(">i", records, at + BODY_LENGTH_AT)
        begin = at + BODY_LENGTH_AT + 4
        yield records[begin : begin + length]
        at += size


def main(name: str = "broker-a-0", topic: str = "handles", namespace: str = "raymq") -> None:
    """Append a small table to one queue, wait for it, and read it back."""
    broker = ray.get_actor(name, namespace=namespace)
    about = msgpack.unpackb(ray.get(broker.describe.remote(), timeout=30))
    print(f"{name} of cluster {about['cluster']} at {about['address']}, epoch {about['epoch']}")

    table = pa.table(
        {"body": [b"4 apples", b"2 pears"], "tags": ["fruit", "fruit"], "keys": ["order-1", "order-2"]}
    )
    stored = call(broker, "append", topic=topic, batch=arrow_stream(table), format="arrow")
    print(f"stored {stored['count']} messages in queue {stored['queue']} from offset {stored['offset']}")

    found = call(
        broker,
        "read",
        topic=topic,
        queue=stored["queue"],
        offset=stored["offset"],
        max_messages=10,
        wait_ms=1000,
    )
    for body in bodies(found["records"]):
        print(f"read {body.decode()}")

    for queue, least, most, _committed in call(broker, "offsets", topic=topic)["queues"]:
        print(f"queue {queue}: offsets {least} to {most}")


if __name__ == "__main__":
    ray.init(address="auto", log_to_driver=False)
    main(*sys.argv[1:3])
