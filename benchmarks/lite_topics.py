"""Memory, start and expiry of many lite topics in one store, and what a lite message costs to append.

    python -m benchmarks.lite_topics --topics 1000000 --messages 5

Appends as a broker does (properties, offset, record) and prints one line of figures. A rate of lite messages
stands beside one of plain messages of the same run, so their ratio holds on a busy machine too.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import anonymous_bytes
from store.common.clock import SystemClock
from store.lite.lite_index import LiteIndex, lmq_name
from store.message.record import RecordDraft
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings

TOPIC = "LiteT"
BODY = b"x" * 200
OWNER = StoreIdentity("DefaultCluster", "broker-a", 0)
APPENDS_PER_TURN = 500
MIB = 1 << 20


def open_store(root: Path, index: LiteIndex) -> MessageStore:
    """Open the store with the index."""
    settings = StoreSettings.model_validate({"flush": "async", "preallocate": False})
    return MessageStore.open(root, settings, OWNER, SystemClock(), sinks=[index])


def append_all(store: MessageStore, drafts: Callable[[int], RecordDraft], count: int) -> float:
    """Append and dispatch messages; return the seconds that it took."""
    began = time.perf_counter()
    for number in range(count):
        store.append(drafts(number))
        if number % APPENDS_PER_TURN == 0:
            store.dispatch_now()
    store.flush_now()
    store.dispatch_now()
    store.advance()
    return time.perf_counter() - began


def lite_draft(index: LiteIndex, name: str) -> RecordDraft:
    """Return the next message of a lite topic."""
    offset = index.next_offset(TOPIC, name)
    index.appended(TOPIC, name, offset)
    properties = (
        f"__LITE_TOPIC\x01{name}\x02INNER_MULTI_DISPATCH\x01{lmq_name(TOPIC, name)}\x02"
        f"INNER_MULTI_QUEUE_OFFSET\x01{offset}\x02"
    )
    return RecordDraft(TOPIC, 0, BODY, properties.encode())


def measure(root: Path, topics: int, messages: int) -> str:
    """Return the line of figures."""
    index = LiteIndex(root)
    store = open_store(root, index)
    plain = RecordDraft("Plain", 0, BODY, b"TAGS\x01plain\x02" * 6)
    plain_s = append_all(store, lambda _: plain, count := min(topics, 100_000)) / count
    gc.collect()
    idle = anonymous_bytes(os.getpid())
    lite_s = append_all(
        store, lambda number: lite_draft(index, f"session-{number % topics:07}"), topics * messages
    )
    lite_s /= topics * messages
    gc.collect()
    memory = anonymous_bytes(os.getpid()) - idle
    began = time.perf_counter()
    assert not index.expired({TOPIC: 1})
    sweep_s = time.perf_counter() - began
    store.close()
    del store, index
    gc.collect()
    began = time.perf_counter()
    index = LiteIndex(root)
    store = open_store(root, index)
    start_s = time.perf_counter() - began
    assert index.max_offset(TOPIC, f"session-{topics - 1:07}") == messages
    store.close()
    return (
        f"{topics:,} lite topics with {messages} messages: {memory / MIB:,.0f} MiB RssAnon, "
        f"start {start_s:.1f} s, sweep {sweep_s * 1e3:.1f} ms, append {lite_s * 1e6:.1f} us, "
        f"plain {plain_s * 1e6:.1f} us, "
        f"ratio {plain_s / lite_s:.2f}"
    )


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lite-topics-") as directory:
        print(measure(Path(directory) / "store", options.topics, options.messages))


if __name__ == "__main__":
    main()
