"""Histories of client operations, as the checks of `benchmarks.experiments.history.checks` read them.

A history has one JSON object per line, in the order of the events:

    {"type": "invoke", "process": "p1", "op": "send", "topic": "T", "queue": 0, "key": "k", "value": "17"}
    {"type": "ok",     "process": "p1", "op": "send", …, "offset": 4}

    send     invoke, then ok (acknowledged, with its offset), fail (not stored) or info (unknown: the message
             may be stored or not); `attempts` of the last event counts the attempts of a retrying client.
             A message that its queue gets later, from a timer or by a commit, has no offset
    read     ok: a process received a message as a consumer of `group`
    seek     ok: the process intentionally continues at another offset, for example after a rebalance
    commit   ok: `group` will read `offset` next
    reset    ok: like commit, but the offset may be lower than before
    consume  a call of the listener of an ordered group: invoke, then ok (consumed), fail (will be retried) or
             dead (moved to the dead-letter queue)
    kill     ok: the process was killed or stopped; its calls of a listener count as running no longer
    begin    ok: the half message of a transaction is stored
    end      the end of a transaction: invoke, then ok or info (unknown); `outcome` is commit or rollback

The field `time_ms` of a send is the requested delivery time of a timer message, that of a read is the time at
which the message was delivered.

A value identifies a message: one operation sends it. The result of a send without a second event is unknown.
The check `lost` requires that every queue was read to its end.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


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
    outcome: str = ""

    def line(self) -> str:
        """Return the event as JSON, without fields that have their default value."""
        return json.dumps({name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]})


_DEFAULTS = {**asdict(Event("", "")), "type": None, "op": None}


class Operation:
    """A send in flight."""

    def __init__(self, recorder: Recorder, invoked: Event) -> None:
        self._recorder = recorder
        self._invoked = invoked

    def ok(self, queue: int = -1, offset: int = -1, attempts: int = 1) -> None:
        """Record that the message was acknowledged, in `queue` at `offset` if it is there already."""
        self._end("ok", queue=queue, offset=offset, attempts=attempts)

    def fail(self) -> None:
        """Record that the message was certainly not stored."""
        self._end("fail")

    def info(self, attempts: int = 1) -> None:
        """Record that the result is unknown: the message may be stored or not."""
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
        """Append `event` to the history, and to the file if there is one."""
        with self._lock:
            self.events.append(event)
            if self._descriptor >= 0:
                os.write(self._descriptor, event.line().encode() + b"\n")

    def send(
        self, process: str, topic: str, value: str, *, key: str = "", queue: int = -1, time_ms: int = 0
    ) -> Operation:
        """Record that `process` begins to send `value`. Return the operation, which records the result.

        `time_ms` is the requested delivery time of a timer message.
        """
        invoked = Event("invoke", "send", process, topic, queue, value, key=key, time_ms=time_ms)
        self.add(invoked)
        return Operation(self, invoked)

    def read(
        self, process: str, group: str, topic: str, queue: int, offset: int, value: str, time_ms: int = 0
    ) -> None:
        """Record that `process` received `value` as a consumer of `group`, at `time_ms` if it is given."""
        self.add(Event("ok", "read", process, topic, queue, value, offset, group=group, time_ms=time_ms))

    def seek(self, process: str, group: str, topic: str, queue: int) -> None:
        """Record that `process` intentionally continues at another offset of `queue`."""
        self.add(Event("ok", "seek", process, topic, queue, group=group))

    def consume(self, type: str, process: str, group: str, message: Any) -> None:  # noqa: A002
        """Record an event of type `type` of a listener call with `message`, a MessageExt."""
        at = (message.topic, message.queue_id, message.body.decode(), message.queue_offset)
        self.add(Event(type, "consume", process, *at, group=group))

    def begin_transaction(self, process: str, topic: str, value: str) -> None:
        """Record that the half message of a transaction with message `value` is stored."""
        self.add(Event("ok", "begin", process, topic, value=value))

    def end_transaction(self, type: str, process: str, topic: str, value: str, outcome: str = "") -> None:  # noqa: A002
        """Record an event of type `type` of the end of a transaction; `outcome` is commit or rollback."""
        self.add(Event(type, "end", process, topic, value=value, outcome=outcome))

    def kill(self, process: str) -> None:
        """Record that `process` was killed or stopped: its listener calls count as running no longer."""
        self.add(Event("ok", "kill", process))

    def commit(self, process: str, group: str, topic: str, queue: int, offset: int) -> None:
        """Record that `group` committed `offset`, the next one to read."""
        self.add(Event("ok", "commit", process, topic, queue, offset=offset, group=group))

    def reset(self, process: str, group: str, topic: str, queue: int, offset: int) -> None:
        """Record that the offset of `group` was set to `offset`, which may be lower than before."""
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
