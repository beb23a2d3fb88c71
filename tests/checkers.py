"""Histories of client operations, and checks that must hold for them in spite of any fault.

A history has one JSON object per line, in the order of the events:

    {"type": "invoke", "process": "p1", "op": "send", "topic": "T", "queue": 0, "key": "k", "value": "17"}
    {"type": "ok",     "process": "p1", "op": "send", …, "offset": 4}

    send     invoke, then ok (acknowledged, with its offset), fail (not stored) or info (unknown: the message
             may be stored or not); `attempts` of the last event counts the attempts of a retrying client
    read     ok: a process received a message as a consumer of `group`
    seek     ok: the process intentionally continues at another offset, for example after a rebalance
    commit   ok: `group` will read `offset` next
    reset    ok: like commit, but the offset may be lower than before
    consume  a call of the listener of an ordered group: invoke, then ok (consumed), fail (will be retried),
             dead (moved to the dead-letter queue) or info (the process was killed)

The field `time_ms` of a send is the requested delivery time of a timer message, that of a read is the time at
which the message was delivered.

A value identifies a message: one operation sends it. The result of a send without a second event is unknown.
The check `lost` requires that every queue was read to its end.

The checks follow those of Jepsen's queue workload: a send with unknown result is neither lost nor unexpected.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

Queue = tuple[str, int]


@dataclass(frozen=True)
class Event:
    """One line of a history."""

    type: str
    op: str
    process: str = ""
    topic: str = ""
    queue: int = -1
    value: str = ""
    offset: int = -1
    key: str = ""
    group: str = ""
    attempts: int = 1
    time_ms: int = 0

    def line(self) -> str:
        """Return the event as JSON, without fields that have their default value."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]})


_DEFAULTS = {**asdict(Event("", "")), "type": None, "op": None}


class Problem(NamedTuple):
    """A violation: the name of the check, and a description."""

    check: str
    detail: str


class Operation:
    """A send in flight."""

    def __init__(self, recorder: Recorder, invoked: Event) -> None:
        self._recorder = recorder
        self._invoked = invoked

    def ok(self, queue: int, offset: int, attempts: int = 1) -> None:
        self._end("ok", queue=queue, offset=offset, attempts=attempts)

    def fail(self) -> None:
        self._end("fail")

    def info(self, attempts: int = 1) -> None:
        self._end("info", attempts=attempts)

    def _end(self, kind: str, **known: Any) -> None:
        self._recorder.add(replace(self._invoked, type=kind, **known))


@dataclass
class Recorder:
    """Records a history; usable from any thread.

    With a path, each event is written to the file before the call returns, so that a kill loses no event.
    """

    path: Path | None = None
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = -1 if self.path is None else os.open(self.path, flags, 0o644)

    def add(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            if self._descriptor >= 0:
                os.write(self._descriptor, event.line().encode() + b"\n")

    def send(
        self, process: str, topic: str, value: str, *, key: str = "", queue: int = -1, time_ms: int = 0
    ) -> Operation:
        invoked = Event("invoke", "send", process, topic, queue, value, key=key, time_ms=time_ms)
        self.add(invoked)
        return Operation(self, invoked)

    def read(
        self, process: str, group: str, topic: str, queue: int, offset: int, value: str, time_ms: int = 0
    ) -> None:
        self.add(Event("ok", "read", process, topic, queue, value, offset, group=group, time_ms=time_ms))

    def seek(self, process: str, group: str, topic: str, queue: int) -> None:
        self.add(Event("ok", "seek", process, topic, queue, group=group))

    def consume(self, type: str, process: str, group: str, message: Any) -> None:  # noqa: A002
        """Record an event of type `type` of a listener call with `message`, a MessageExt."""
        at = (message.topic, message.queue_id, message.body.decode(), message.queue_offset)
        self.add(Event(type, "consume", process, *at, group=group))

    def kill(self, process: str) -> None:
        """End the listener calls of a killed process; those in the file, if there is one."""
        calls: dict[tuple[str, str, int], Event] = {}
        for event in self.events if self.path is None else load(self.path.read_bytes().splitlines()):
            if event.op == "consume" and event.process == process:
                calls[event.group, event.topic, event.queue] = event
        for last in calls.values():
            if last.type == "invoke":
                self.add(replace(last, type="info"))

    def commit(self, process: str, group: str, topic: str, queue: int, offset: int) -> None:
        self.add(Event("ok", "commit", process, topic, queue, offset=offset, group=group))

    def reset(self, process: str, group: str, topic: str, queue: int, offset: int) -> None:
        self.add(Event("ok", "reset", process, topic, queue, offset=offset, group=group))


def load(lines: Iterable[str | bytes]) -> list[Event]:
    """Return the events of the lines up to the first incomplete line, which a kill may leave."""
    events = []
    for line in lines:
        try:
            events.append(Event(**json.loads(line)))
        except json.JSONDecodeError:
            break
    return events


# ---- sends -----------------------------------------------------------------------------------------------


@dataclass
class Sent:
    """Result of the send of one value."""

    topic: str
    first_line: int
    state: str = "invoke"
    attempts: int = 1
    places: set[tuple[str, int, int]] = field(default_factory=set)
    """(topic, queue, offset) of the acknowledgement and of all reads."""
    key: str = ""


def sends(events: list[Event]) -> dict[str, Sent]:
    """Return all sends by value, with the places where they were acknowledged or read."""
    found: dict[str, Sent] = {}
    for number, event in enumerate(events):
        if event.op != "send":
            continue
        sent = found.setdefault(event.value, Sent(event.topic, number, key=event.key))
        sent.state = event.type
        sent.attempts = max(sent.attempts, event.attempts)
        if event.type == "ok":
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
        if event.type == "ok" and event.op in ("send", "read"):
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
        if event.op != "consume":
            continue
        at = (event.group, event.topic, event.queue)
        if event.type != "invoke":
            running.pop(at, None)
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
    return f"{event.topic}-{event.queue} {event.offset}"


CHECKS: dict[str, Callable[[list[Event]], Iterator[str]]] = {
    check.__name__: check
    for check in (
        lost, unexpected, duplicated, conflicting, reordered, out_of_order, not_sequential, commits_backwards,
        commits_ahead, two_owners, overtaken, early,
    )
}  # fmt: skip


def problems(events: Iterable[Event], *, ignore: Iterable[str] = ()) -> list[Problem]:
    """Return the violations of all checks except those named in `ignore`."""
    history = list(events)
    ignored = set(ignore)
    assert ignored <= CHECKS.keys(), f"no such check: {ignored - CHECKS.keys()}"
    return [
        Problem(name, detail)
        for name, check in CHECKS.items()
        if name not in ignored
        for detail in check(history)
    ]


def assert_consistent(events: Iterable[Event], about: object = "", *, ignore: Iterable[str] = ()) -> None:
    """Fail with the first problems of a history; `about` names the tested case in the message."""
    found = problems(events, ignore=ignore)
    shown = "\n".join(f"{problem.check}: {problem.detail}" for problem in found[:10])
    assert not found, f"{about}: {len(found)} problem(s)\n{shown}"
