"""Checks of a store after a fault.

The store must have every acknowledged message and no unexpected one, and its consume queues and index must
match the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from store.message.record import decode_records
from store.message_store import GetMessageStatus, MessageStore
from tests.checkers import Event, Recorder, assert_consistent, load
from tests.faults.scenarios import SETTINGS, TOPIC, Writer, history_of, open_store
from tests.store.conftest import PER_OPEN_FILES, SmallStores

READABLE = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)


def history(root: Path) -> list[Event]:
    """Return the history that the scenario on the store `root` has recorded so far."""
    return load(history_of(root).read_bytes().splitlines())


def read_everything(store: MessageStore, recorder: Recorder, reader: str, topic: str = TOPIC) -> int:
    """Read and record all messages of a topic with CRC checks, and return their number."""
    count = 0
    for queue_topic, queue_id in sorted(store.queues()):
        if queue_topic != topic:
            continue
        recorder.seek(reader, reader, topic, queue_id)
        offset = store.min_offset(topic, queue_id)
        end = store.max_offset(topic, queue_id)
        while offset < end:
            found = store.get_message(topic, queue_id, offset, 32, 1 << 20)
            assert found.status in READABLE, (topic, queue_id, offset, found.status)
            for run in found.slices:
                for message in decode_records(run):
                    value = message.body.partition(b":")[0].decode()
                    recorder.read(reader, reader, topic, queue_id, message.queue_offset, value)
                    count += 1
            offset = found.next_begin_offset
        assert offset == end
    return count


def check_store(
    root: Path,
    about: object,
    *,
    events: Iterable[Event] | None = None,
    derived: bool = False,
    holes: bool = False,
    **settings: Any,
) -> None:
    """Open the store at `root`, check its history, append, close it, and do the same once more.

    Args:
        root: directory of the store.
        about: name of the tested case, for failure messages.
        events: history before the fault; default: the recorded history of the scenario.
        derived: also require that queues and index are byte for byte those rebuilt from the log.
        holes: allow missing offsets, as of unacknowledged messages between stored ones.
        settings: store settings that differ from `SETTINGS`.
    """
    recorder = Recorder(events=list(history(root) if events is None else events))
    for number in range(2):
        store = open_store(root, **settings)
        try:
            count = read_everything(store, recorder, f"reader-{number}")
            queues = [queue for queue in store.queues() if queue[0] == TOPIC]
            spans = [store.max_offset(*queue) - store.min_offset(*queue) for queue in queues]
            assert holes or sum(spans) == count, f"{about}: {spans}, {count} read"
            assert_consistent(recorder.events, about, ignore=["not_sequential"] if holes else [])
            check_keys(store, recorder, about, acknowledged_only=holes)
            writer = Writer(root, store, recorder)
            for _ in range(3):
                writer.send()
            writer.settle()
            read_everything(store, recorder, f"second-reader-{number}")
            assert_consistent(recorder.events, about, ignore=["not_sequential"] if holes else [])
        finally:
            store.close()
    if derived:
        check_derived(root, about, **settings)


def check_keys(
    store: MessageStore, recorder: Recorder, about: object, *, acknowledged_only: bool = False
) -> None:
    """Require that every message that was read is found by its key.

    With `acknowledged_only`, unacknowledged messages are skipped: a power loss may tear their properties,
    which have no CRC.
    """
    values = {event.value for event in recorder.events if event.op == "read"}
    if acknowledged_only:
        values &= {event.value for event in recorder.events if event.op == "send" and event.type == "ok"}
    missing = [value for value in sorted(values) if len(store.query_by_key(TOPIC, value)) != 1]
    assert not missing, f"{about}: not found by key: {missing}"


def check_derived(root: Path, about: object, **settings: Any) -> None:
    """Require that queues and index of a closed store equal those rebuilt from its log."""
    rebuilt = root.with_name(f"{root.name}-rebuilt")
    shutil.copytree(root, rebuilt)
    for directory in ("consumequeue", "index"):
        shutil.rmtree(rebuilt / directory)
    (rebuilt / "raymq.derived").unlink()
    open_store(rebuilt, **settings).close()
    files = SmallStores(root, None).files  # type: ignore[arg-type]
    found, expected = files(root), files(rebuilt)
    differing = sorted(
        name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)
    )
    assert not differing, f"{about}: different from the files rebuilt from the log: {differing}"
    shutil.rmtree(rebuilt)


__all__ = [
    "PER_OPEN_FILES",
    "SETTINGS",
    "check_derived",
    "check_keys",
    "check_store",
    "history",
    "read_everything",
]
