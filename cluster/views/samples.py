"""Samples: brokers, groups and topics of a cluster at one time, with the rates since the sample before.

A sample takes a constant number of requests for each broker, and of RocketMQ's brokers one for each topic
that it looks at. What is older than STALE_MS is shown with its age.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.views.brokers import BrokerView, list_brokers
from cluster.views.groups import behind_since_ms
from cluster.views.offsets import known_sum
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_group

if TYPE_CHECKING:
    from actors.wire.bodies.progress import ConsumeStats
    from cluster.client import Admin
    from store.common.clock import Clock


STALE_MS = 15_000


def stale_ms(at_ms: int, now_ms: int) -> int | None:
    """Return the age of a figure if it is older than STALE_MS, else None."""
    age_ms = now_ms - at_ms
    return age_ms if age_ms > STALE_MS else None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """Progress of a group in one topic.

    Attributes:
        lag: Messages that the group has not acknowledged; None if it is unknown.
        in_flight: Messages that are delivered but not acknowledged; None if it is unknown.
        consumed: Sum of the committed offsets.
        tps: Messages consumed per second since the sample before; None without one.
    """

    lag: int | None
    in_flight: int | None
    consumed: int
    tps: float | None = None


@dataclass(frozen=True, slots=True)
class GroupSample:
    """Progress of a group.

    Attributes:
        behind_since_ms: Store time of the last message consumed in the queue that is furthest behind, in
            milliseconds since the epoch; None without lag, or if it is unknown.
        minute_tps: Messages consumed per second in the last minute.
    """

    topics: Mapping[str, TopicLag]
    behind_since_ms: int | None
    minute_tps: float = 0.0

    @property
    def lag(self) -> int | None:
        """The lag in all topics; None if it is unknown in one."""
        return known_sum(each.lag for each in self.topics.values()) if self.topics else None

    @property
    def in_flight(self) -> int | None:
        """The messages in flight of all topics; None if it is unknown of one."""
        return known_sum(each.in_flight for each in self.topics.values()) if self.topics else None

    @property
    def tps(self) -> float | None:
        """Messages consumed per second since the sample before; None if it is unknown of all topics."""
        known = [each.tps for each in self.topics.values() if each.tps is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class TopicSample:
    """The stored messages of a topic when it was looked at last.

    Attributes:
        at_ms: That time in milliseconds since the epoch.
        at_ns: That time on the monotonic clock.
        end: Sum of the end offsets.
        tps: Messages stored per second since the time before, or without it in the last minute.
    """

    at_ms: int
    at_ns: int
    messages: int
    end: int
    tps: float | None

    def stale_ms(self, now_ms: int) -> int | None:
        """Return its age if it is older than STALE_MS, else None."""
        return stale_ms(self.at_ms, now_ms)


Counters = Mapping[str, TopicSample]
"""The topics of one broker when it responded last."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster at one time.

    Attributes:
        at_ms: The time in milliseconds since the epoch; 0 before the first sample.
        at_ns: The time on the monotonic clock.
        brokers: All replicas, also those that are no longer registered; None if no nameserver responds.
        groups: The groups that have committed offsets; None if a broker did not respond.
        topics: The topics of users that were looked at, now or before.
        problems: What could not be read, in words.
        counters: The topics of each broker, from which `topics` are summed.
    """

    at_ms: int = 0
    at_ns: int = 0
    brokers: Sequence[BrokerView] | None = None
    groups: Mapping[str, GroupSample] | None = None
    topics: Mapping[str, TopicSample] = field(default_factory=dict)
    problems: Sequence[str] = ()
    counters: Mapping[str, Counters] = field(default_factory=dict)


def take_sample(
    admin: Admin, clock: Clock, before: ClusterState, topics_max: int | None = None
) -> ClusterState:
    """Return a sample of the cluster; what cannot be read is in its `problems`.

    `topics_max`: of RocketMQ's brokers, which have no request for all topics, look only at so many, those
    that were looked at longest ago.
    """
    at_ns, problems = clock.monotonic_ns(), list[str]()
    brokers = _brokers(admin, clock, before, problems)
    groups = _groups(admin, at_ns, before, problems)
    counters, topics = _topics(admin, clock, before, topics_max, problems)
    return ClusterState(clock.wall_ms(), at_ns, brokers, groups, topics, problems, counters)


def is_normal(topic: str, system: set[str]) -> bool:
    """Return True if a topic was created by a user."""
    return topic not in system and not topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))


def _brokers(
    admin: Admin, clock: Clock, before: ClusterState, problems: list[str]
) -> Sequence[BrokerView] | None:
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError

    try:
        found = list_brokers(admin, clock)
    except ClientError as error:
        problems.append(f"the brokers cannot be listed: {error}")
        return None
    problems += [f"{_name(each)} does not respond: {each.problem}" for each in found if each.problem]
    here = {(each.broker, each.id) for each in found}
    gone = [
        BrokerView(each.cluster, each.broker, each.id, each.address, None, "it is no longer registered")
        for each in before.brokers or ()
        if (each.broker, each.id) not in here
    ]
    problems += [f"{_name(each)} is no longer registered" for each in gone]
    return [*found, *gone]


def _name(each: BrokerView) -> str:
    return f"{each.broker} (id {each.id})" if each.id else each.broker


def _groups(
    admin: Admin, at_ns: int, before: ClusterState, problems: list[str]
) -> Mapping[str, GroupSample] | None:
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError

    try:
        stats = admin.all_group_stats()
    except ClientError as error:
        problems.append(f"the progress of the groups is unknown: {error}")
        return None
    earlier, span_s = before.groups or {}, (at_ns - before.at_ns) / 1e9
    found = {}
    for group, progress in stats.items():
        if not is_system_group(group):
            then = earlier[group].topics if group in earlier else {}
            lags = _lags(progress, then, span_s)
            found[group] = GroupSample(lags, behind_since_ms(progress), progress.consume_tps)
    return found


def _lags(progress: ConsumeStats, then: Mapping[str, TopicLag], span_s: float) -> Mapping[str, TopicLag]:
    found: dict[str, TopicLag] = {}
    for topic in sorted({queue.topic for queue in progress.offsets}):
        offsets = [offset for queue, offset in progress.offsets.items() if queue.topic == topic]
        consumed = sum(offset.committed or 0 for offset in offsets)
        lag = known_sum(offset.lag for offset in offsets)
        is_known = topic in then and span_s > 0
        tps = max(consumed - then[topic].consumed, 0) / span_s if is_known else None
        found[topic] = TopicLag(lag, known_sum(offset.in_flight for offset in offsets), consumed, tps)
    return found


def _topics(
    admin: Admin, clock: Clock, before: ClusterState, topics_max: int | None, problems: list[str]
) -> tuple[Mapping[str, Counters], Mapping[str, TopicSample]]:
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError

    try:
        system = set(admin.system_topics())
        names = [name for name in admin.topics() if is_normal(name, system)]
        counters = _counters(admin, clock, before)
    except ClientError as error:
        problems.append(f"the topics cannot be listed: {error}")
        return before.counters, before.topics
    if counters is None:
        return {}, _by_topic(admin, clock, before, names, topics_max)
    found: dict[str, list[TopicSample]] = {}
    for of_broker in counters.values():
        for name, counted in of_broker.items():
            found.setdefault(name, []).append(counted)
    return counters, {name: _joined(found[name]) for name in names if name in found}


def _counters(admin: Admin, clock: Clock, before: ClusterState) -> Mapping[str, Counters] | None:
    """Return the counters of each broker, in one response each: earlier ones if it does not respond now.

    Returns None if a broker does not know the request, or has never responded. Raises `ClientError`.
    """
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError, NotSupported

    found = {}
    for broker in admin.brokers():
        then = before.counters.get(broker)
        try:
            counters = admin.topic_counters(broker)
        except NotSupported:
            return None
        except ClientError:  # it is reported with the brokers
            if then is None:
                return None
            found[broker] = then
            continue
        now_ms, now_ns = clock.wall_ms(), clock.monotonic_ns()
        topics = {}
        for name, each in counters.items():
            tps, earlier = each.put_tps, then.get(name) if then else None
            if earlier is not None and now_ns > earlier.at_ns:
                tps = max(each.end - earlier.end, 0) / ((now_ns - earlier.at_ns) / 1e9)
            topics[name] = TopicSample(now_ms, now_ns, each.messages, each.end, tps)
        found[broker] = topics
    return found


def _joined(parts: Sequence[TopicSample]) -> TopicSample:
    """Return the sum over brokers; it is as old as the oldest of them."""
    rates = [each.tps for each in parts if each.tps is not None]
    return TopicSample(
        min(each.at_ms for each in parts),
        min(each.at_ns for each in parts),
        sum(each.messages for each in parts),
        sum(each.end for each in parts),
        sum(rates) if len(rates) == len(parts) else None,
    )


def _by_topic(
    admin: Admin, clock: Clock, before: ClusterState, names: Sequence[str], topics_max: int | None
) -> Mapping[str, TopicSample]:
    """Return the topics with one request each, at most `topics_max` now: RocketMQ's brokers know no other."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ClientError

    found = {name: before.topics[name] for name in names if name in before.topics}
    due = sorted(names, key=lambda name: found[name].at_ns if name in found else 0)
    for name in due[:topics_max]:
        try:
            stats = admin.topic_stats(name)
        except ClientError:  # deleted meanwhile, or on a broker that is reported above
            found.pop(name, None)
            continue
        now_ns, then = clock.monotonic_ns(), found.get(name)
        end = sum(offset.max_offset for offset in stats.offsets.values())
        tps: float | None = stats.put_tps
        if then is not None and now_ns > then.at_ns:
            tps = max(end - then.end, 0) / ((now_ns - then.at_ns) / 1e9)
        stored = end - sum(offset.min_offset for offset in stats.offsets.values())
        found[name] = TopicSample(clock.wall_ms(), now_ns, stored, end, tps)
    return found
