"""startingOffsets and endingOffsets: what a person writes, and the queue offset it means for one queue.

The grammar is rocketmq-spark's, which is the Kafka source's with a broker in between::

    "earliest" | "latest" | <integer> | {"topic": {"broker": {"queueId": <integer>}}}

An integer is a queue offset; -2 means earliest and -1 latest. The object may be a dict or JSON.
A queue that it does not list has the option's default: earliest to start from, latest to end at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from jobs.job_errors import OffsetsInvalid
from store.message.message_queue import MessageQueue

EARLIEST = -2
LATEST = -1

OffsetsOption = str | int | Mapping[str, Mapping[str, Mapping[str | int, int]]]

Parse = Callable[[str, object], int]
"""Turns what stands for one queue into a number; is told where it stands, for its complaint."""

_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_SHAPE = '"earliest", "latest", an integer, or {"topic": {"broker": {"queueId": offset}}}'


@dataclass(frozen=True)
class Offsets:
    """One offsets option, parsed: an offset (or EARLIEST, LATEST) for each listed queue and for the rest."""

    default: int
    listed: Mapping[MessageQueue, int] = field(default_factory=dict)

    def wanted(self, queue: MessageQueue) -> int:
        """Give the offset asked for of `queue`: ≥ 0, EARLIEST or LATEST."""
        return self.listed.get(queue, self.default)

    def check_known(self, option: str, queues: Iterable[MessageQueue]) -> None:
        """Refuse with `OffsetsInvalid` an option that lists a queue which is not among `queues`."""
        unknown = sorted(set(self.listed) - set(queues))
        if unknown:
            names = ", ".join(f"{each.topic}/{each.broker_name}/{each.queue_id}" for each in unknown)
            raise OffsetsInvalid(f"{option} lists queues that are not there: {names}")


def parse_offsets(option: str, value: OffsetsOption, default: int) -> Offsets:
    """Parse `value` of the option named `option`; queues that an object does not list get `default`. Raises
    OffsetsInvalid.
    """
    if isinstance(value, str):
        word = value.strip()
        if word in _WORDS:
            return Offsets(_WORDS[word])
        try:
            value = json.loads(word)
        except json.JSONDecodeError as error:
            raise OffsetsInvalid(f"{option}={word!r} is neither a word nor JSON; give {_SHAPE}") from error
    if isinstance(value, Mapping):
        return Offsets(default, parse_listed(option, value, _offset, _SHAPE))
    return Offsets(_offset(option, value))


def parse_listed(option: str, value: object, parse: Parse, shape: str) -> dict[MessageQueue, int]:
    """Parse {"topic": {"broker": {"queueId": …}}}; `shape` tells in a complaint what `option` may be. Raises
    OffsetsInvalid.
    """
    listed = {}
    for topic, brokers in _object(option, "the whole", value, shape).items():
        for broker_name, queues in _object(option, topic, brokers, shape).items():
            path = f"{topic}/{broker_name}"
            for queue_id, each in _object(option, path, queues, shape).items():
                if not str(queue_id).isdecimal():
                    raise OffsetsInvalid(f"{option}: queue id {queue_id!r} of {path} is no number")
                queue = MessageQueue(topic, broker_name, int(queue_id))
                listed[queue] = parse(f"{option} of {path}/{queue_id}", each)
    return listed


def resolve(wanted: int, min_offset: int, max_offset: int) -> int:
    """Turn EARLIEST and LATEST into the queue's own offsets; other offsets stay as they are."""
    if wanted == EARLIEST:
        return min_offset
    return max_offset if wanted == LATEST else wanted


def _object(option: str, path: str, value: object, shape: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise OffsetsInvalid(f"{option}: {value!r} stands for {path}, an object is wanted; give {shape}")
    return value


def _offset(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OffsetsInvalid(f"{where}: {value!r} is no offset; give {_SHAPE}")
    if value < EARLIEST:
        raise OffsetsInvalid(f"{where}: offset {value} is negative, which only -1 (latest) and -2 may be")
    return value
