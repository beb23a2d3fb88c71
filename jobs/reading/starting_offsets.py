"""Parse the options startingOffsets and endingOffsets, and resolve them to offsets of one queue.

The grammar is that of rocketmq-spark: that of Spark's Kafka source with a broker level added::

    "earliest" | "latest" | <integer> | {"topic": {"broker": {"queueId": <integer>}}}

An integer is a queue offset; -2 means earliest and -1 latest. The object may be a dict or JSON.
A queue that it does not list has the option's default: earliest to start from, latest to end at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from jobs.job_errors import OffsetsInvalid
from store.message.message_queue import MessageQueue

EARLIEST = -2
LATEST = -1

OffsetsOption = str | int | Mapping[str, Mapping[str, Mapping[str | int, int]]]

Parse = Callable[[str, object], int]
"""A function that converts the JSON value of one queue to an offset or a time. Its first argument is the text
by which error messages refer to the value.
"""

_QUEUE_ID = re.compile("[0-9]{1,9}")
_OFFSET_MAX = 2**63 - 1
_WORDS = {"earliest": EARLIEST, "latest": LATEST}
_SHAPE = '"earliest", "latest", an integer, or {"topic": {"broker": {"queueId": offset}}}'


@dataclass(frozen=True)
class Offsets:
    """A parsed startingOffsets or endingOffsets option.

    `listed` maps some queues to an offset, EARLIEST or LATEST; `default` applies to all other queues.
    """

    default: int
    listed: Mapping[MessageQueue, int] = field(default_factory=dict)

    def wanted(self, queue: MessageQueue) -> int:
        """Return the offset that the option requests for `queue`: an offset, EARLIEST or LATEST."""
        return self.listed.get(queue, self.default)

    def check_known(self, option: str, queues: Iterable[MessageQueue]) -> None:
        """Raise `OffsetsInvalid` if the option lists a queue that is not in `queues`.

        The message names the option as `option`.
        """
        unknown = sorted(set(self.listed) - set(queues))
        if unknown:
            names = ", ".join(f"{each.topic}/{each.broker_name}/{each.queue_id}" for each in unknown)
            raise OffsetsInvalid(f"{option} lists queues that do not exist: {names}")


def parse_offsets(option: str, value: OffsetsOption, default: int) -> Offsets:
    """Parse the value of startingOffsets or endingOffsets; `option` is the option's name.

    If `value` is an object that lists queues, `default` applies to the queues that are not listed. Raises
    OffsetsInvalid.
    """
    if isinstance(value, str):
        word = value.strip()
        if word.lower() in _WORDS:
            return Offsets(_WORDS[word.lower()])
        try:
            value = json.loads(word)
        except (ValueError, RecursionError) as error:
            raise OffsetsInvalid(
                f"{option}={word!r} is neither a known word nor valid JSON; give {_SHAPE}"
            ) from error
    if isinstance(value, Mapping):
        return Offsets(default, parse_listed(option, value, _offset, _SHAPE))
    return Offsets(_offset(option, value))


def parse_listed(option: str, value: object, parse: Parse, shape: str) -> dict[MessageQueue, int]:
    """Parse an object {"topic": {"broker": {"queueId": …}}} into a map from queues to values.

    `parse` converts the value of each queue. For error messages, `option` is the name of the option and
    `shape` describes its valid values. Raises OffsetsInvalid.
    """
    listed = {}
    for topic, brokers in _object(option, "the value", value, shape).items():
        for broker_name, queues in _object(option, f"the value of {topic}", brokers, shape).items():
            path = f"{topic}/{broker_name}"
            for queue_id, each in _object(option, f"the value of {path}", queues, shape).items():
                if not _QUEUE_ID.fullmatch(str(queue_id)):
                    raise OffsetsInvalid(f"{option}: queue id {queue_id!r} of {path} is not a number")
                queue = MessageQueue(topic, broker_name, int(queue_id))
                listed[queue] = parse(f"{option} of {path}/{queue_id}", each)
    return listed


def resolve(wanted: int, min_offset: int, max_offset: int) -> int:
    """Resolve a requested offset: EARLIEST becomes `min_offset`, LATEST becomes `max_offset`.

    Any other offset is returned unchanged.
    """
    if wanted == EARLIEST:
        return min_offset
    return max_offset if wanted == LATEST else wanted


def _object(option: str, path: str, value: object, shape: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise OffsetsInvalid(f"{option}: {path} is {value!r}, which is not an object; give {shape}")
    return value


def _offset(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OffsetsInvalid(f"{where}: {value!r} is not an offset; give {_SHAPE}")
    if value > _OFFSET_MAX:
        raise OffsetsInvalid(f"{where}: offset {str(value)[:40]} is greater than {_OFFSET_MAX}")
    if value < EARLIEST:
        raise OffsetsInvalid(
            f"{where}: offset {value} is negative; the only negative values are -1 (latest) and -2 (earliest)"
        )
    return value
