"""Judgement: how many messages of a history were lost, duplicated or consumed out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from benchmarks.experiments.history.checks import duplicated, lost, sends
from benchmarks.experiments.history.events import Event


class Judgement(NamedTuple):
    """Numbers of messages.

    Attributes:
        sent: Messages that a producer sent.
        failed: Messages of these that were not acknowledged.
        lost: Acknowledged messages that were never read.
        duplicated: Messages that are stored more often than they were sent.
        out_of_order: Messages that a group read before an earlier message of the same key.
    """

    sent: int
    failed: int
    lost: int
    duplicated: int
    out_of_order: int


def judge(events: Iterable[Event]) -> Judgement:
    """Judge a history. Every queue must have been read to its end."""
    history = list(events)
    found = sends(history)
    return Judgement(
        len(found),
        sum(sent.state != "ok" for sent in found.values()),
        sum(1 for _ in lost(history)),
        sum(1 for _ in duplicated(history)),
        sum(1 for _ in keys_out_of_order(history)),
    )


def keys_out_of_order(events: list[Event]) -> Iterator[str]:
    """Yield messages that a group first read before an earlier message of the same key, of any queue.

    A message is earlier if it was acknowledged before the send of the other one began. The history must
    have the reads in their real order, as one Recorder writes them.
    """
    sequence: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by key: (line of invoke, line of ok)
    of_value: dict[str, tuple[str, int]] = {}
    for line, event in enumerate(events):
        if event.op == "send" and event.key:
            if event.type == "invoke":
                of_value[event.value] = (event.key, line)
            elif event.type == "ok" and event.value in of_value:
                sequence[event.key].append((of_value[event.value][1], line))
    acknowledged = {invoked: line for pairs in sequence.values() for invoked, line in pairs}
    latest: dict[tuple[str, str], int] = {}  # by (group, key): latest invoke of the messages read so far
    seen: set[tuple[str, str]] = set()
    for event in events:
        if event.op != "read" or event.value not in of_value or (event.group, event.value) in seen:
            continue
        seen.add((event.group, event.value))
        key, invoked = of_value[event.value]
        at = (event.group, key)
        if acknowledged.get(invoked, len(events)) < latest.get(at, -1):
            yield f"{event.value!r} of key {key!r} was first read by {event.group} after a later message"
        latest[at] = max(invoked, latest.get(at, -1))
