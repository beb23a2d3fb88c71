"""Sampler: samples the cluster every few seconds, so that lists and charts need no request per row.

It pauses so long after each sample that it is busy for at most 5 % of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actors.bounds import AtLimit, Bound, Use
from cluster.client import Admin
from cluster.console.history import Curves, History
from cluster.views.offsets import known_sum
from cluster.views.samples import ClusterState, take_sample
from store.common.clock import NS_PER_MS, Clock

TOPICS_PER_SAMPLE = 100
FOLLOWED = Bound("console_curves", 200, AtLimit.REFUSE, "Topics, or groups, whose history is kept.")
PAUSE_FACTOR = 19
"""The pause after a sample, in durations of the sample."""
Known = float | None


class Sampler:
    """Takes samples, and keeps the last one and the history."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self.last = ClusterState()
        self.samples = 0
        self.duration_ns = 0
        """Duration of the last sample."""
        self.history = History(6)
        """In per second, out per second, lag, in flight, disk, brokers that respond."""
        self._groups: dict[str, History] = {}
        self._topics: dict[str, History] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (FOLLOWED.use(lambda: max(len(self._groups), len(self._topics)) if self.samples else None),)

    def look(self) -> int:
        """Take one sample; return the pause in ms after which the next one is due at the earliest."""
        begin_ns = self._clock.monotonic_ns()
        self.last = sample = take_sample(self._admin, self._clock, self.last, TOPICS_PER_SAMPLE)
        self.history.add(sample.at_ms, *figures(sample))
        if sample.groups is not None:
            of_groups = {name: (each.lag, each.tps) for name, each in sample.groups.items()}
            _record(self._groups, sample.at_ms, of_groups)
        of_topics = {name: (each.tps, each.messages) for name, each in sample.topics.items()}
        _record(self._topics, sample.at_ms, of_topics)
        self.samples += 1
        self.duration_ns = self._clock.monotonic_ns() - begin_ns
        return self.duration_ns * PAUSE_FACTOR // NS_PER_MS

    def curves_of_group(self, group: str) -> Curves | None:
        """Return lag and rate of a group, or None if they are not kept."""
        return self._groups[group].curves() if group in self._groups else None

    def curves_of_topic(self, topic: str) -> Curves | None:
        """Return messages per second and stored messages of a topic, or None if they are not kept."""
        return self._topics[topic].curves() if topic in self._topics else None


def figures(sample: ClusterState) -> tuple[Known, Known, Known, Known, Known, Known]:
    """Return in/s, out/s, lag, in flight, used part of the fullest disk, and brokers that respond.

    A figure is None if it is unknown of one broker: a sum without it would be too small.
    """
    lag = in_flight = None
    if sample.groups is not None:
        consuming = [group for group in sample.groups.values() if group.topics]
        # A group that left long ago, and whose lag is unknown, must not hide the lag of all others.
        lags = [group.lag for group in consuming if group.lag is not None]
        lag = sum(lags) if lags or not consuming else None
        in_flight = known_sum(group.in_flight for group in consuming)
    if sample.brokers is None:
        return (None, None, lag, in_flight, None, None)
    loads = [each.load for each in sample.brokers if each.id == 0]
    puts = [None if load is None else load.put_tps for load in loads]
    gets = [None if load is None else load.get_tps for load in loads]
    disks = [load.disk_used for load in loads if load is not None and load.disk_used is not None]
    up = sum(load is not None for load in loads)
    return (_sum(puts), _sum(gets), lag, in_flight, max(disks, default=None), up)


def _sum(values: Sequence[Known]) -> Known:
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _record(histories: dict[str, History], at_ms: int, rows: Mapping[str, tuple[Known, Known]]) -> None:
    """Add the values to the histories; those of names that are gone are dropped."""
    for name in histories.keys() - rows.keys():
        del histories[name]
    for name, values in rows.items():
        if name in histories or len(histories) < FOLLOWED.limit:
            histories.setdefault(name, History(2, with_day=False)).add(at_ms, *values)
