"""Checks that must hold for a history in spite of any fault.

The checks follow those of Jepsen's queue workload: a send with unknown result is neither lost nor unexpected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.experiments.history.events import Event

Queue = tuple[str, int]


class Problem(NamedTuple):
    """A violation: the name of the check, and a description."""

    check: str
    detail: str


# ---- sends -----------------------------------------------------------------------------------------------


@dataclass
class SentMessage:
    """Result of the send of one value."""

    topic: str
    first_line: int
    state: str = "invoke"
    attempts: int = 1
    places: set[tuple[str, int, int]] = field(default_factory=set)
    """(topic, queue, offset) of the acknowledgement and of all reads."""
    key: str = ""


def sends(events: list[Event]) -> dict[str, SentMessage]:
    """Return all sends by value, with the places where they were acknowledged or read."""
    found: dict[str, SentMessage] = {}
    for number, event in enumerate(events):
        if event.op != "send":
            continue
        sent = found.setdefault(event.value, SentMessage(event.topic, number, key=event.key))
        sent.state = event.type
        sent.attempts = max(sent.attempts, event.attempts)
        if event.type == "ok" and event.offset >= 0:
            sent.places.add((event.topic, event.queue, event.offset))
    for event in events:
        if event.op == "read" and event.value in found:
            found[event.value].places.add((event.topic, event.queue, event.offset))
    return found


def lost(events: list[Event]) -> Iterator[str]:
    """Yield messages that were acknowledged and never read."""
    read = {event.value for event in events if event.op == "read"}
    for value, sent in sends(events).items():
        if sent.state == "ok" and value not in read:
            yield f"{value!r} was acknowledged at {sorted(sent.places)} and never read"


def unexpected(events: list[Event]) -> Iterator[str]:
    """Yield messages that were read although they were never sent, or although their send failed."""
    known = sends(events)
    for event in events:
        if event.op == "read":
            sent = known.get(event.value)
            if sent is None:
                yield f"{event.value!r} was read at {place(event)} and never sent"
            elif sent.state == "fail":
                yield f"{event.value!r} was read at {place(event)}, but its send failed"


def duplicated(events: list[Event]) -> Iterator[str]:
    """Yield messages that are stored more often than they were sent."""
    for value, sent in sends(events).items():
        if len(sent.places) > sent.attempts:
            yield f"{value!r}, sent {sent.attempts} time(s), is stored at {sorted(sent.places)}"


def conflicting(events: list[Event]) -> Iterator[str]:
    """Yield offsets at which two different messages were acknowledged or read."""
    first: dict[tuple[str, int, int], str] = {}
    for event in events:
        if event.type == "ok" and event.op in ("send", "read") and event.offset >= 0:
            at = (event.topic, event.queue, event.offset)
            if first.setdefault(at, event.value) != event.value:
                yield f"{place(event)} had {first[at]!r} and later {event.value!r}"


def reordered(events: list[Event]) -> Iterator[str]:
    """Yield messages stored before a message of the same queue that was acknowledged before their send."""
    known = sends(events)
    highest: dict[Queue, int] = defaultdict(lambda: -1)
    before: dict[str, dict[Queue, int]] = {}
    for event in events:
        if event.op != "send":
            continue
        if event.type == "invoke":
            before.setdefault(event.value, dict(highest))
        elif event.type == "ok":
            queue = (event.topic, event.queue)
            highest[queue] = max(highest[queue], event.offset)
    for value, queues in before.items():
        for topic, queue_id, offset in known[value].places:
            if offset <= queues.get((topic, queue_id), -1):
                yield (
                    f"{value!r} is stored at {topic}-{queue_id} {offset}, although offset "
                    f"{queues[topic, queue_id]} was acknowledged before it was sent"
                )


def early(events: list[Event]) -> Iterator[str]:
    """Yield timer messages that were delivered before the time that their send has requested."""
    requested = {event.value: event.time_ms for event in events if event.op == "send"}
    for event in events:
        due_ms = requested.get(event.value, 0)
        if event.op == "read" and event.time_ms and event.time_ms < due_ms:
            yield f"{event.value!r} at {place(event)} was delivered {due_ms - event.time_ms} ms early"


def not_atomic(events: list[Event]) -> Iterator[str]:
    """Yield transactional messages read without a commit or after a rollback, or committed and never read."""
    begun, committing, read = set(), set(), set()
    outcomes: dict[str, str] = {}
    for event in events:
        if event.op == "begin":
            begun.add(event.value)
        elif event.op == "end" and event.type == "ok":
            outcomes[event.value] = event.outcome
        elif event.op == "end" and event.type == "info":
            outcomes.pop(event.value, None)
        elif event.op == "end" and event.outcome == "commit":
            committing.add(event.value)
        elif event.op == "read" and event.value in begun:
            read.add(event.value)
            if outcomes.get(event.value) == "rollback":
                yield f"{event.value!r} was read at {place(event)} after its rollback"
            elif event.value not in committing:
                yield f"{event.value!r} was read at {place(event)} before its commit"
    for value, outcome in outcomes.items():
        if outcome == "commit" and value not in read:
            yield f"{value!r} was committed and never read"


# ---- reads and commits -----------------------------------------------------------------------------------


def out_of_order(events: list[Event]) -> Iterator[str]:
    """Yield messages that a group first read after a later message of the same key and queue."""
    keys = {value: sent.key for value, sent in sends(events).items()}
    highest: dict[tuple[str, str, int, str], int] = defaultdict(lambda: -1)
    seen: set[tuple[str, str, int, int]] = set()
    for event in events:
        key = keys.get(event.value, "")
        at = (event.group, event.topic, event.queue, event.offset)
        if event.op != "read" or not key or at in seen:
            continue
        seen.add(at)
        line = (event.group, event.topic, event.queue, key)
        if event.offset < highest[line]:
            yield f"{event.value!r} of key {key!r} at {place(event)} was first read after {highest[line]}"
        highest[line] = max(highest[line], event.offset)


def not_sequential(events: list[Event]) -> Iterator[str]:
    """Yield reads at which a process repeated or skipped offsets of a queue without a seek."""
    expected: dict[tuple[str, str, str, int], int] = {}
    for event in events:
        reader = (event.process, event.group, event.topic, event.queue)
        if event.op == "seek":
            expected.pop(reader, None)
        elif event.op == "read":
            following = expected.get(reader, event.offset)
            if event.offset != following:
                yield f"{event.process} read {place(event)}, expected offset {following}"
            expected[reader] = event.offset + 1


def commits_backwards(events: list[Event]) -> Iterator[str]:
    """Yield commits of a lower offset than an earlier commit of the group, without a reset."""
    highest: dict[tuple[str, str, int], int] = {}
    for event in events:
        at = (event.group, event.topic, event.queue)
        if event.op == "commit" and event.type == "ok":
            if event.offset < highest.get(at, -1):
                yield f"{event.group} committed {place(event)} after {highest[at]}"
            highest[at] = max(event.offset, highest.get(at, -1))
        elif event.op == "reset":
            highest[at] = event.offset


def commits_ahead(events: list[Event]) -> Iterator[str]:
    """Yield commits beyond the messages that the group has read: those between would never be delivered."""
    read: dict[tuple[str, str, int], int] = {}
    for event in events:
        at = (event.group, event.topic, event.queue)
        if event.op == "reset":
            read[at] = max(event.offset, read.get(at, 0))
        elif event.op == "read":
            read[at] = max(event.offset + 1, read.get(at, 0))
        elif event.op == "commit" and event.type == "ok" and event.offset > read.get(at, 0):
            yield f"{event.group} committed {place(event)}, but has read only up to {read.get(at, 0)}"


# ---- ordered groups --------------------------------------------------------------------------------------


def two_owners(events: list[Event]) -> Iterator[str]:
    """Yield listener calls that began while another call of the same group and queue was running."""
    running: dict[tuple[str, str, int], Event] = {}
    for event in events:
        if event.op == "kill":
            running = {at: call for at, call in running.items() if call.process != event.process}
        if event.op != "consume":
            continue
        at = (event.group, event.topic, event.queue)
        if event.type != "invoke":
            if at in running and running[at].process == event.process:
                del running[at]
            continue
        if at in running:
            other = running[at]
            yield f"{event.process} began {place(event)} during {place(other)} of {other.process}"
        running[at] = event


def overtaken(events: list[Event]) -> Iterator[str]:
    """Yield calls of an ordered group with a message whose predecessors in the queue are unfinished."""
    unfinished: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    highest: dict[tuple[str, str, int], int] = defaultdict(lambda: -1)
    finished: set[tuple[str, str, int, int]] = set()
    for event in events:
        if event.op != "consume":
            continue
        at = (event.group, event.topic, event.queue)
        if event.type in ("ok", "dead"):
            unfinished[at].discard(event.offset)
            finished.add((*at, event.offset))
        elif event.type == "invoke":
            earlier = [offset for offset in unfinished[at] if offset < event.offset]
            if earlier:
                yield f"{event.process} began {place(event)} before {min(earlier)} was finished"
            if (*at, event.offset) not in finished:
                if event.offset < highest[at] and event.offset not in unfinished[at]:
                    yield f"{event.process} first began {place(event)} after {highest[at]}"
                unfinished[at].add(event.offset)
            highest[at] = max(highest[at], event.offset)


def place(event: Event) -> str:
    """Return the topic, queue and offset of an event as text."""
    return f"{event.topic}-{event.queue} {event.offset}"


CHECKS: dict[str, Callable[[list[Event]], Iterator[str]]] = {
    check.__name__: check
    for check in (
        lost, unexpected, duplicated, conflicting, reordered, out_of_order, not_sequential, commits_backwards,
        commits_ahead, two_owners, overtaken, early, not_atomic,
    )
}  # fmt: skip


def problems(events: Iterable[Event], *, ignore: Iterable[str] = ()) -> list[Problem]:
    """Return the violations of all checks except those named in `ignore`.

    Raises ValueError if `ignore` has a name that is not in CHECKS.
    """
    history = list(events)
    ignored = set(ignore)
    if unknown := ignored - CHECKS.keys():
        raise ValueError(f"no such check: {', '.join(sorted(unknown))}; known: {', '.join(CHECKS)}")
    return [
        Problem(name, detail)
        for name, check in CHECKS.items()
        if name not in ignored
        for detail in check(history)
    ]
