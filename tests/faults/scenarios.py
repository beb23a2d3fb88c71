"""Scenarios that a forked process runs until it is killed; each arms the steps for the part under test.

Each scenario records its sends in `<root>.history` (see `tests.checkers`), which survives the kill.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.commitlog.positions import Callback
from store.common.json_file import JsonConfigFile
from store.disk.disk_use import DiskUse
from store.message.batch import encode_batch
from store.message.hosts import Host
from store.message.message import Message
from store.message.record import RecordDraft
from store.message_store import AppendResult, MessageStore
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from tests.checkers import Operation, Recorder
from tests.faults.steps import Steps
from tests.store.checkpoints import make_checkpoint
from tests.store.conftest import OWNER, SMALL, a_draft

SETTINGS: dict[str, Any] = {**SMALL, "flush": "sync", "checkpoint_interval_ms": 3_600_000}
TOPIC = "Topic"
QUEUES = 3


class TickingClock:
    """Clock that advances a little with each call, and by more only with `leap`."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        self._wall_ms += 7
        return self._wall_ms

    def monotonic_ns(self) -> int:
        self._monotonic_ns += 1000
        return self._monotonic_ns

    def leap(self, ms: int) -> None:
        self._wall_ms += ms
        self._monotonic_ns += ms * 1_000_000


def history_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.history")


def open_store(root: Path, clock: TickingClock | None = None, **settings: Any) -> MessageStore:
    """Open a store with small files that reports a disk usage of 0: only writes detect a full disk."""
    return MessageStore.open(
        root,
        StoreSettings.model_validate({**SETTINGS, **settings}),
        OWNER,
        clock or TickingClock(),
        store_host=Host("127.0.0.1", 10911),
        probe=lambda path: DiskUse(0, 1 << 40),
    )


class Writer:
    """Appends numbered messages to a store and records the result of each."""

    def __init__(
        self,
        root: Path,
        store: MessageStore,
        recorder: Recorder | None = None,
        on_confirmed: Callable[[int, Callback], None] | None = None,
    ) -> None:
        """`on_confirmed` registers a callback for the end of an append; default: `store.on_confirmed`."""
        self.store = store
        self._on_confirmed = on_confirmed or store.on_confirmed
        self.recorder = recorder or Recorder(history_of(root))
        self.name = f"w{uuid.uuid4().hex[:6]}"
        self._count = 0

    def send(self, padding: int = 0, topic: str = TOPIC) -> AppendResult:
        """Append one message; its value is also its unique key."""
        value, queue_id = self._next()
        operation = self.recorder.send(self.name, topic, value, key=f"q{queue_id}", queue=queue_id)
        body = value.encode() + b":" + b"x" * padding
        try:
            result = self.store.append(a_draft(body, topic, queue_id, keys=value, uniq=f"U{value}"))
        except StoreError:
            operation.fail()
            raise
        self._confirm([operation], queue_id, result)
        return result

    def send_batch(self, count: int) -> None:
        numbered = [self._next() for _ in range(count)]
        queue_id = numbered[0][1]
        operations = [
            self.recorder.send(self.name, TOPIC, value, key=f"q{queue_id}", queue=queue_id)
            for value, _ in numbered
        ]
        messages = [Message(TOPIC, value.encode() + b":", keys=value) for value, _ in numbered]
        result = self.store.append_batch(RecordDraft(TOPIC, queue_id, b""), encode_batch(messages))
        self._confirm(operations, queue_id, result)

    def _next(self) -> tuple[str, int]:
        self._count += 1
        return f"{self.name}-{self._count}", self._count % QUEUES

    def _confirm(self, operations: list[Operation], queue_id: int, result: AppendResult) -> None:
        def confirmed(error: Exception | None) -> None:
            for number, operation in enumerate(operations):
                if error is None:
                    operation.ok(queue_id, result.queue_offset + number)
                else:
                    operation.info()

        self._on_confirmed(result.physical_offset + result.size_bytes, confirmed)

    def settle(self) -> None:
        """Flush, confirm and dispatch all messages."""
        self.store.flush_now()
        self.store.advance()
        while self.store.has_more_to_dispatch:
            self.store.advance()


def _filled(root: Path, count: int = 5, **settings: Any) -> Writer:
    writer = Writer(root, open_store(root, **settings))
    for number in range(count):
        writer.send(padding=number * 20)
    writer.settle()
    return writer


def append(root: Path, steps: Steps) -> None:
    """Append messages and batches across the ends of two files, with some flushes."""
    writer = _filled(root, 3)
    steps.arm()
    for number in range(6):
        writer.send(padding=2500)
        if number % 3 == 1:
            writer.send_batch(3)
        if number % 2:
            writer.settle()


def append_ahead(root: Path, steps: Steps) -> None:
    """Append while files are allocated ahead of use in the background."""
    writer = _filled(root, 3, preallocate=True)
    steps.arm()
    for _ in range(7):
        writer.send(padding=2500)
        writer.settle()


def dispatch(root: Path, steps: Steps) -> None:
    """Dispatch flushed messages across the ends of queue files and index files."""
    writer = _filled(root, 3)
    for _ in range(40):
        writer.send()
        writer.store.flush_now()
    steps.arm()
    writer.settle()


def checkpoint(root: Path, steps: Steps) -> None:
    """Write checkpoints of the derived files."""
    clock = TickingClock()
    writer = Writer(root, open_store(root, clock, checkpoint_interval_ms=60_000))
    for _ in range(2):
        for _ in range(20):
            writer.send()
        writer.settle()
        clock.leap(61_000)
        steps.arm()
        writer.store.advance()
        writer.store.truncate_to(writer.store.positions.written)  # waits for the running checkpoint
        steps.disarm()


def close(root: Path, steps: Steps) -> None:
    """Close the store with messages to flush and dispatch, and a preallocated file to remove."""
    writer = _filled(root, 3, preallocate=True)
    for _ in range(3):
        writer.send(padding=2500)
        writer.settle()
    writer.send()
    steps.arm()
    writer.store.close()


def reopen(root: Path, steps: Steps) -> None:
    """Open the store at `root`, which may need recovery, and append a message."""
    steps.arm()
    writer = Writer(root, open_store(root))
    writer.send()
    writer.settle()


def truncate(root: Path, steps: Steps) -> None:
    """Truncate the log by several files, as a replica does; the history ends at the truncation offset."""
    writer = _filled(root, 6)
    unknown = Writer(root, writer.store, Recorder())
    unknown.name = "cut-off"
    cut = unknown.send(padding=4000).physical_offset
    for _ in range(6):
        unknown.send(padding=4000)
    unknown.settle()
    for event in unknown.recorder.events:
        if event.type == "invoke":
            writer.recorder.add(event)
    steps.arm()
    writer.store.truncate_to(cut, discard_confirmed=True)


def clean(root: Path, steps: Steps) -> None:
    """Delete expired log files and their queue and index files; the history has the messages that remain."""
    clock = TickingClock()
    store = open_store(root, clock, consume_queue_file_bytes=80, file_reserved_time_h=1)
    writer = Writer(root, store)
    expired = Writer(root, store, Recorder())
    for _ in range(12):
        expired.send(padding=2500)
    expired.settle()
    for event in expired.recorder.events:
        if event.type == "invoke":
            writer.recorder.add(event)
    files = sorted((root / "commitlog").iterdir())[:-1]
    for path in files:
        os.utime(path, (0, 0))
    for _ in range(6):
        writer.send(padding=1000)
    writer.settle()
    make_checkpoint(store)
    steps.arm()
    store.retention.delete_expired()
    for _ in range(12):
        clock.leap(store.settings.clean_interval_ms)
        store.advance()
        store.retention.finish()
    assert not any(path.exists() for path in files)


def delete_topic(root: Path, steps: Steps) -> None:
    """Delete a topic with its queues, next to a topic that stays."""
    writer = _filled(root, 5)
    for _ in range(60):
        writer.store.append(a_draft(topic="Doomed", keys="k"))
    writer.settle()
    steps.arm()
    writer.store.delete_topic("Doomed")


def save_config(root: Path, steps: Steps) -> None:
    """Save a table repeatedly; the history has the saves that finished."""
    file = JsonConfigFile(root / "config" / "topics.json")
    file.save({"saved": 0})
    recorder = Recorder(history_of(root))
    steps.arm()
    for number in range(1, 4):
        operation = recorder.send("w", "topics.json", str(number))
        file.save({"saved": number})
        operation.ok(0, number)


def open_as_nobody(root: Path, steps: Steps) -> None:
    """Open the store as another user, and write the error to `<root>.error`."""
    with root.with_name(f"{root.name}.error").open("w") as file:
        os.setgid(65534)
        os.setuid(65534)
        try:
            open_store(root)
        except StoreError as error:
            file.write(str(error))


SCENARIOS: dict[str, Callable[[Path, Steps], None]] = {
    scenario.__name__: scenario
    for scenario in (
        append, append_ahead, dispatch, checkpoint, close, reopen, truncate, clean, delete_topic, save_config,
        open_as_nobody,
    )
}  # fmt: skip
