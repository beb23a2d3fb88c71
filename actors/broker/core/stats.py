"""Counters of a broker: messages put and got, in total, by topic and by group, and their rates.

A request only adds to one counter; totals are sums, computed on request and once per second. Samples of the
counters are taken at intervals. A rate is the growth of a counter since the oldest sample of its window
(RocketMQ BrokerStatsManager, StoreStatsService):

    window  samples            spans
    minute  7, one each 10 s   60 s to 70 s
    hour    7, one each 10 min 60 min to 70 min
    day     25, one each hour  24 h to 25 h

Equal consecutive samples share one object, so twenty thousand idle topics need little memory.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from actors.bounds import AtLimit, Bound, Use
from actors.broker.core.put_times import PutTimes
from store.common.bounded_dict import BoundedDict
from store.common.clock import NS_PER_MS, Clock

COUNTERS: Final = Bound(
    "group_counters", 100_000, AtLimit.EVICT, "Counters of the messages that groups got, by topic and group."
)
MINUTE, HOUR, DAY = range(3)
_WINDOWS = ((10_000, 7), (600_000, 7), (3_600_000, 25))  # milliseconds between samples, samples kept

# The shortest span of a rate: ten messages in the first millisecond are not 10,000 per second.
SHORTEST_MS = 1000
SECONDS_KEPT = 600
RATE_SPANS_S = (10, 60, 600)
SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1 << 20, 2 << 20, 4 << 20)
"""Upper bounds of record sizes (RocketMQ BrokerMetricsManager); further ones have no bound."""


class Count(NamedTuple):
    """Number of messages, their bytes in the log, and the number of requests, since the broker's start."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0


class TallyChange(NamedTuple):
    """The growth of a counter over `span_ms`."""

    grown: Count
    span_ms: int

    def per_second(self, amount: int) -> float:
        """Return `amount` (a field of `grown`) per second."""
        return amount * 1000 / self.span_ms


class Tally:
    """A counter and its samples."""

    __slots__ = ("_samples", "calls", "created_ms", "messages", "size_bytes")

    def __init__(self, now_ms: int) -> None:
        self.created_ms = now_ms
        self.messages = 0
        self.size_bytes = 0
        self.calls = 0
        self._samples: tuple[list[Count], ...] = ([], [], [])

    @property
    def count(self) -> Count:
        """The current values."""
        return Count(self.messages, self.size_bytes, self.calls)

    def add(self, count: Count) -> None:
        """Add the values of another counter."""
        self.messages += count.messages
        self.size_bytes += count.size_bytes
        self.calls += count.calls

    def sample(self, window: int) -> None:
        """Store a sample of the current values for a window; drop the oldest one if there are too many."""
        samples = self._samples[window]
        count = self.count
        samples.append(samples[-1] if samples and samples[-1] == count else count)
        if len(samples) > _WINDOWS[window][1]:
            del samples[0]

    def since(self, window: int, sampled_ms: deque[int], now_ms: int) -> TallyChange:
        """Return the growth within a window; `sampled_ms` are the times of its samples."""
        samples = self._samples[window]
        if len(samples) < _WINDOWS[window][1]:  # the counter is younger than the window
            first, begin_ms = Count(), self.created_ms
        else:
            first, begin_ms = samples[0], sampled_ms[0]
        grown = Count(
            self.messages - first.messages, self.size_bytes - first.size_bytes, self.calls - first.calls
        )
        return TallyChange(grown, max(now_ms - begin_ms, SHORTEST_MS))


class PutTally(Tally):
    """A counter of messages put, with the sizes of their records."""

    __slots__ = ("ordered", "sizes")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)
        """Number of messages by record size; the messages of a batch all count with their average."""
        self.ordered: PutTally | None = None
        """The part of the messages that have a sharding key (RocketMQ's type `fifo`)."""

    def add_ordered(self, messages: int, size_bytes: int, bucket: int) -> None:
        """Count messages with a sharding key, which are in the counter already."""
        if self.ordered is None:
            self.ordered = PutTally(self.created_ms)
        self.ordered.messages += messages
        self.ordered.size_bytes += size_bytes
        self.ordered.sizes[bucket] += messages


class Total:
    """A counter that is the sum of others, including those that were removed."""

    def __init__(self, now_ms: int) -> None:
        self.removed = Tally(now_ms)
        self._tally = Tally(now_ms)

    def sum_of(self, tallies: Iterable[Tally]) -> Tally:
        """Return the sum of `tallies` and the removed counters."""
        messages, size_bytes, calls = self.removed.count
        for tally in tallies:
            messages += tally.messages
            size_bytes += tally.size_bytes
            calls += tally.calls
        total = self._tally
        total.messages, total.size_bytes, total.calls = messages, size_bytes, calls
        return total


class Second(NamedTuple):
    """A sample of the totals, taken at `at_ns`."""

    at_ns: int
    put_messages: int
    got_messages: int
    gets_found: int
    gets_missed: int


class Rates(NamedTuple):
    """Per second: messages put, messages got, reads that found messages, reads that found no message."""

    put: float
    got: float
    found: float
    missed: float


class BrokerStats:
    """The counters of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_ms = clock.wall_ms()
        self.started_ms = now_ms
        self._put = Total(now_ms)
        self._got = Total(now_ms)
        self.gets_missed = 0
        self.put_times = PutTimes(clock)
        self.puts: dict[str, PutTally] = {}
        self.gets = BoundedDict[tuple[str, str], Tally](
            COUNTERS.limit, lambda _, dropped: self._got.removed.add(dropped.count)
        )
        """By topic and group; the group is empty for reads without a group."""
        self.send_backs = BoundedDict[tuple[str, str], Tally](COUNTERS.limit)
        self.dead_letters = BoundedDict[tuple[str, str], int](COUNTERS.limit)
        """Number of messages moved to the dead-letter topic, by their own topic and group."""
        self._sampled_ms = tuple(deque[int](maxlen=kept) for _, kept in _WINDOWS)
        self._next_sample_ns = [clock.monotonic_ns()] * len(_WINDOWS)
        self._seconds: deque[Second] = deque(maxlen=SECONDS_KEPT + 1)
        self.sample_totals()
        self.put_days = DayTotals(now_ms)
        self.got_days = DayTotals(now_ms)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (COUNTERS.use(lambda: max(len(self.gets), len(self.send_backs), len(self.dead_letters))),)

    # ---- counting, in every request ------------------------------------------------------------------------

    @property
    def uptime_ms(self) -> int:
        """Milliseconds since the start, by the wall clock."""
        return self._clock.wall_ms() - self.started_ms

    def put(
        self,
        topic: str,
        messages: int,
        size_bytes: int,
        calls: int = 1,
        is_ordered: bool = False,
        by_size: Sequence[int] = (),
    ) -> None:
        """Count the messages that `calls` send requests appended.

        Args:
            topic: their topic.
            messages: their number.
            size_bytes: the size of their records.
            calls: the number of requests.
            is_ordered: True if they have a sharding key.
            by_size: their number by the first buckets of SIZE_BOUNDS; if empty, all have the average size.
        """
        tally = self.puts.get(topic)
        if tally is None:
            tally = self.puts[topic] = PutTally(self._clock.wall_ms())
        tally.messages += messages
        tally.size_bytes += size_bytes
        tally.calls += calls
        times = self.put_times
        if not times.puts:
            times.begin()
            calls -= 1
        times.puts += calls
        if by_size:
            for bucket, count in enumerate(by_size):
                tally.sizes[bucket] += count
            return
        bucket = bisect_left(SIZE_BOUNDS, size_bytes // messages)
        tally.sizes[bucket] += messages
        if is_ordered:
            tally.add_ordered(messages, size_bytes, bucket)

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count the messages that one read request returned; `messages` may be 0."""
        if not messages:
            self.gets_missed += 1
            return
        self._add(self.gets, (topic, group), messages, size_bytes)

    def sent_back(self, group: str, topic: str, size_bytes: int) -> None:
        """Count a message that a consumer sent back (CONSUMER_SEND_MSG_BACK)."""
        self._add(self.send_backs, (topic, group), 1, size_bytes)

    def dead_letter(self, group: str, topic: str) -> None:
        """Count a message that is moved to the dead-letter topic."""
        key = (topic, group)
        self.dead_letters[key] = self.dead_letters.get(key, 0) + 1

    def _add(
        self, table: dict[tuple[str, str], Tally], key: tuple[str, str], messages: int, size_bytes: int
    ) -> None:
        tally = table.get(key)
        if tally is None:
            tally = table[key] = Tally(self._clock.wall_ms())
        tally.messages += messages
        tally.size_bytes += size_bytes
        tally.calls += 1

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic; the totals keep its messages."""
        removed = self.puts.pop(topic, None)
        if removed is not None:
            self._put.removed.add(removed.count)
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group; the totals keep its messages."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_removed: Callable[[tuple[str, str]], bool]) -> None:
        for key in [key for key in self.gets if is_removed(key)]:
            self._got.removed.add(self.gets.pop(key).count)
        tables: tuple[dict[tuple[str, str], Any], ...] = (self.send_backs, self.dead_letters)
        for table in tables:
            for key in [key for key in table if is_removed(key)]:
                del table[key]

    # ---- sampling, by a timer ------------------------------------------------------------------------------

    def sample_totals(self) -> None:
        """Take a sample of the totals; to be called once per second."""
        self.put_times.roll()
        put, got = self.put_total, self.got_total
        now_ns = self._clock.monotonic_ns()
        self._seconds.append(Second(now_ns, put.messages, got.messages, got.calls, self.gets_missed))

    def sample_due(self, slice_size: int) -> Iterator[None]:
        """Take the samples that are due; yield after `slice_size` counters, so that other tasks can run."""
        now_ms, now_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        self.put_days.roll(now_ms, self.put_total.messages)
        self.got_days.roll(now_ms, self.got_total.messages)
        for window, (interval_ms, _) in enumerate(_WINDOWS):
            if now_ns < self._next_sample_ns[window]:
                continue
            self._next_sample_ns[window] = now_ns + interval_ms * NS_PER_MS
            # A counter that is created meanwhile gets no sample now: it counts as younger than the window.
            tallies = iter(list(self._tallies()))
            self._sampled_ms[window].append(now_ms)
            while part := list(islice(tallies, slice_size)):
                for tally in part:
                    tally.sample(window)
                yield

    @property
    def put_total(self) -> Tally:
        """All messages put since the start."""
        return self._put.sum_of(self.puts.values())

    @property
    def got_total(self) -> Tally:
        """All messages got since the start."""
        return self._got.sum_of(self.gets.values())

    # ---- reading -------------------------------------------------------------------------------------------

    def since(self, tally: Tally, window: int) -> TallyChange:
        """Return the growth of a counter within a window: MINUTE, HOUR or DAY."""
        return tally.since(window, self._sampled_ms[window], self._clock.wall_ms())

    def put_tps(self, topic: str) -> float:
        """Return the messages per second put into a topic over the last minute."""
        return self._tps(self.puts.get(topic))

    def got_tps(self, group: str, topic: str) -> float:
        """Return the messages per second that a group got from a topic over the last minute."""
        return self._tps(self.gets.get((topic, group)))

    def rates(self, span_s: int) -> Rates:
        """Return the rates of the totals over the last `span_s` seconds, at most since the start."""
        first = self._seconds[max(len(self._seconds) - span_s - 1, 0)]
        elapsed_s = max(self._clock.monotonic_ns() - first.at_ns, SHORTEST_MS * NS_PER_MS) / 1e9
        put, got = self.put_total, self.got_total
        return Rates(
            (put.messages - first.put_messages) / elapsed_s,
            (got.messages - first.got_messages) / elapsed_s,
            (got.calls - first.gets_found) / elapsed_s,
            (self.gets_missed - first.gets_missed) / elapsed_s,
        )

    def _tps(self, tally: Tally | None) -> float:
        if tally is None:
            return 0.0
        change = self.since(tally, MINUTE)
        return change.per_second(change.grown.messages)

    def _tallies(self) -> Iterator[Tally]:
        yield self.put_total
        yield self.got_total
        for table in (self.puts, self.gets, self.send_backs):
            yield from table.values()


class DayTotals:
    """The values of a total at the last two midnights, local time (RocketMQ BrokerStats)."""

    def __init__(self, now_ms: int) -> None:
        self._day = _day_of(now_ms)
        self.yesterday_morning = 0
        self.today_morning = 0

    def roll(self, now_ms: int, total: int) -> None:
        """Store `total` as the value at midnight if a new day has begun."""
        day = _day_of(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, total


def _day_of(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday
