"""Sampler: looks at the cluster every few seconds, so that lists and charts need no request per row.

A sample takes a constant number of requests for each broker, and the offsets of a few topics: those that were
looked at longest ago. The sampler pauses so long after each sample that it is busy for at most 5 % of the
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.client import Admin
from cluster.client.errors import ClientError
from cluster.console.history import Curves, History
from cluster.views.brokers import BrokerView, list_brokers
from cluster.views.groups import behind_since_ms
from store.clock import NS_PER_MS, Clock
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_group

TOPICS_PER_SAMPLE = 100
FOLLOWED_MAX = 200
"""Topics, and groups, whose history is kept."""
Known = float | None
PAUSE_FACTOR = 19
"""The pause after a sample, in durations of the sample."""


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Progress of a group in one topic; `consumed` is the sum of its committed offsets."""

    lag: int
    in_flight: int
    consumed: int


@dataclass(frozen=True, slots=True)
class GroupSample:
    """Progress of a group; `tps` is None until there are two samples."""

    topics: Mapping[str, TopicLag]
    tps: float | None
    behind_since_ms: int | None

    @property
    def lag(self) -> int:
        """The lag in all topics."""
        return sum(each.lag for each in self.topics.values())

    @property
    def in_flight(self) -> int:
        """The messages in flight of all topics."""
        return sum(each.in_flight for each in self.topics.values())


@dataclass(frozen=True, slots=True)
class TopicSample:
    """The stored messages of a topic when it was looked at last, and its rate since the time before."""

    at_ms: int
    at_ns: int
    messages: int
    end: int
    tps: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one time.

    Attributes:
        at_ms: The time in milliseconds since the epoch; 0 before the first sample.
        at_ns: The time on the monotonic clock.
        brokers: All replicas, also those that are no longer registered; None if no nameserver responds.
        groups: The groups that have committed offsets; None if a broker did not respond.
        topics: The topics that were looked at, now or before.
        problems: What could not be read, in words.
    """

    at_ms: int = 0
    at_ns: int = 0
    brokers: Sequence[BrokerView] | None = None
    groups: Mapping[str, GroupSample] | None = None
    topics: Mapping[str, TopicSample] = field(default_factory=dict)
    problems: Sequence[str] = ()


class Sampler:
    """Takes samples, and keeps the last one and the history."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self.last = Sample()
        self.history = History(6)
        """In per second, out per second, lag, in flight, disk, brokers that respond."""
        self._groups: dict[str, History] = {}
        self._topics: dict[str, History] = {}

    def look(self) -> int:
        """Take one sample; return the pause in ms after which the next one is due at the earliest."""
        begin_ns = self._clock.monotonic_ns()
        problems: list[str] = []
        brokers = self._brokers(problems)
        groups = self._look_at_groups(begin_ns, problems)
        topics = self._look_at_topics(problems)
        self.last = Sample(self._clock.wall_ms(), begin_ns, brokers, groups, topics, problems)
        self._record(self.last)
        return (self._clock.monotonic_ns() - begin_ns) * PAUSE_FACTOR // NS_PER_MS

    def curves_of_group(self, group: str) -> Curves | None:
        """Return lag and rate of a group, or None if they are not kept."""
        return self._groups[group].curves() if group in self._groups else None

    def curves_of_topic(self, topic: str) -> Curves | None:
        """Return messages per second and stored messages of a topic, or None if they are not kept."""
        return self._topics[topic].curves() if topic in self._topics else None

    def _brokers(self, problems: list[str]) -> Sequence[BrokerView] | None:
        try:
            found = list_brokers(self._admin, self._clock)
        except ClientError as error:
            problems.append(f"the brokers cannot be listed: {error}")
            return None
        problems += [f"{each.broker} does not respond: {each.problem}" for each in found if each.problem]
        here = {(each.broker, each.id) for each in found}
        gone = [
            BrokerView(each.cluster, each.broker, each.id, each.address, None, "it is no longer registered")
            for each in self.last.brokers or ()
            if (each.broker, each.id) not in here
        ]
        problems += [f"{each.broker} (replica {each.id}) is no longer registered" for each in gone]
        return [*found, *gone]

    def _look_at_groups(self, now_ns: int, problems: list[str]) -> dict[str, GroupSample] | None:
        try:
            stats = self._admin.all_group_stats()
        except ClientError as error:
            problems.append(f"the progress of the groups is unknown: {error}")
            return None
        before, span_s = self.last.groups or {}, (now_ns - self.last.at_ns) / 1e9
        found = {}
        for group, progress in stats.items():
            if is_system_group(group):
                continue
            topics: dict[str, TopicLag] = {}
            for queue, offset in progress.offsets.items():
                known = topics.get(queue.topic, TopicLag(0, 0, 0))
                topics[queue.topic] = TopicLag(
                    known.lag + max(offset.lag, 0),
                    known.in_flight + max(offset.in_flight, 0),
                    known.consumed + offset.consumer_offset,
                )
            tps = _consumed_tps(topics, before.get(group), span_s)
            found[group] = GroupSample(topics, tps, behind_since_ms(progress))
        return found

    def _look_at_topics(self, problems: list[str]) -> Mapping[str, TopicSample]:
        try:
            system = set(self._admin.system_topics())
            names = [name for name in self._admin.topics() if is_normal(name, system)]
        except ClientError as error:
            problems.append(f"the topics cannot be listed: {error}")
            return self.last.topics
        found = {name: self.last.topics[name] for name in names if name in self.last.topics}
        due = sorted(names, key=lambda name: found[name].at_ns if name in found else 0)
        for name in due[:TOPICS_PER_SAMPLE]:
            try:
                stats = self._admin.topic_stats(name)
            except ClientError:  # deleted meanwhile, or on a broker that is reported above
                found.pop(name, None)
                continue
            now_ns, before = self._clock.monotonic_ns(), found.get(name)
            end = sum(offset.max_offset for offset in stats.offsets.values())
            tps: float | None = stats.put_tps
            if before is not None and now_ns > before.at_ns:
                tps = max(end - before.end, 0) / ((now_ns - before.at_ns) / 1e9)
            stored = end - sum(offset.min_offset for offset in stats.offsets.values())
            found[name] = TopicSample(self._clock.wall_ms(), now_ns, stored, end, tps)
        return found

    def _record(self, sample: Sample) -> None:
        self.history.add(sample.at_ms, *figures(sample))
        for group, progress in (sample.groups or {}).items():
            history = _followed(self._groups, group)
            if history is not None:
                history.add(sample.at_ms, progress.lag, progress.tps)
        for topic, stored in sample.topics.items():
            history = _followed(self._topics, topic)
            if history is not None:
                history.add(sample.at_ms, stored.tps, stored.messages)
        _forget(self._topics, sample.topics)
        if sample.groups is not None:
            _forget(self._groups, sample.groups)


def is_normal(topic: str, system: set[str]) -> bool:
    """Return True if a topic was created by a user."""
    return topic not in system and not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))


def figures(sample: Sample) -> tuple[Known, Known, Known, Known, Known, Known]:
    """Return in/s, out/s, lag, in flight, used part of the fullest disk, and brokers that respond.

    A figure is None if it is unknown of one broker: a sum without it would be too small.
    """
    lag = in_flight = None
    if sample.groups is not None:
        lag = sum(group.lag for group in sample.groups.values())
        in_flight = sum(group.in_flight for group in sample.groups.values())
    if sample.brokers is None:
        return (None, None, lag, in_flight, None, None)
    masters = [each for each in sample.brokers if each.id == 0]
    loads = [each.load for each in masters]
    puts = [None if load is None else load.put_tps for load in loads]
    gets = [None if load is None else load.get_tps for load in loads]
    disks = [load.disk_used for load in loads if load is not None and load.disk_used is not None]
    up = sum(load is not None for load in loads)
    return (_sum(puts), _sum(gets), lag, in_flight, max(disks, default=None), up)


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _consumed_tps(now: Mapping[str, TopicLag], before: GroupSample | None, span_s: float) -> float | None:
    if before is None or span_s <= 0:
        return None
    consumed = [
        each.consumed - before.topics[topic].consumed for topic, each in now.items() if topic in before.topics
    ]
    return sum(max(each, 0) for each in consumed) / span_s


def _followed(histories: dict[str, History], name: str) -> History | None:
    if name not in histories and len(histories) < FOLLOWED_MAX:
        histories[name] = History(2, with_day=False)
    return histories.get(name)


def _forget(histories: dict[str, History], present: Mapping[str, object]) -> None:
    for name in [name for name in histories if name not in present]:
        del histories[name]
