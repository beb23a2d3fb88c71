"""Where the log of a store may be truncated, and what a truncation does to the timer's files."""

from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.holes import KnownHoles
from store.consumequeue.table import ConsumeQueueTable
from store.timer.timer_files import TIMER_TOPIC, rewind_timer
from store.writing.raw_records import RawRecords


def truncation_refusal(
    log: CommitLog, raw: RawRecords, holes: KnownHoles, offset: int, *, discard_confirmed: bool
) -> str | None:
    """Return why the log cannot be truncated to CommitLog offset `offset`; None if it can.

    A record must begin there, a hole, or the log end there. Records that are confirmed, and that readers may
    therefore have, are only dropped with `discard_confirmed`.
    """
    positions = log.positions
    is_end = positions.min <= offset == raw.next_record <= positions.written
    is_hole = any(hole.position == offset for hole in holes.all)
    if not (is_end or is_hole or log.has_record_at(offset)):
        return (
            f"cannot truncate to {offset:,}: no record begins there; the log covers "
            f"{positions.min:,} to {positions.written:,}"
        )
    if offset < positions.confirmed and not discard_confirmed:
        return (
            f"cannot truncate to {offset:,}: the log is confirmed up to {positions.confirmed:,}; "
            "export the records in between, and resynchronize this replica"
        )
    return None


def rewind_timer_of(root: Path, queues: ConsumeQueueTable) -> None:
    """Let the next start of the timer add the messages of its truncated topic again. Raises OSError."""
    queue = queues.find(TIMER_TOPIC, 0)
    rewind_timer(root, 0 if queue is None else queue.next_offset)
