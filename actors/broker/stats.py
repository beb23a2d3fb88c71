"""Counters of a broker: messages put and got, in total, by topic and by group, and their rates.

A request only adds to one counter; totals are sums, computed on request and once a second. The counters are
noted at intervals, and a rate is the difference between now and the note at the start of its window (RocketMQ
BrokerStatsManager, StoreStatsService):

    window  notes              spans
    minute  7, one each 10 s   60 s to 70 s
    hour    7, one each 10 min 60 min to 70 min
    day     25, one each hour  24 h to 25 h

Notes of a counter that does not change share one object, so twenty thousand idle topics cost little.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from actors.broker.put_times import PutTimes
from store.clock import NS_PER_MS, Clock

MINUTE, HOUR, DAY = range(3)
_WINDOWS = ((10_000, 7), (600_000, 7), (3_600_000, 25))  # between two notes, in ms; how many are kept

# A shorter window counts as this long: ten messages in the first millisecond are not 10,000 a second.
SHORTEST_MS = 1000
SECONDS_KEPT = 600
RATE_SPANS_S = (10, 60, 600)


class Count(NamedTuple):
    """Messages, their bytes in the log, and the requests that carried them, since the broker's start."""

    messages: int = 0
    size_bytes: int = 0
    calls: int = 0


class Change(NamedTuple):
    """Growth of a counter within a window of `span_ms`."""

    grown: Count
    span_ms: int

    def per_second(self, amount: int) -> float:
        """Return `amount`, grown over the window, per second."""
        return amount * 1000 / self.span_ms


class Tally:
    """A counter and its notes."""

    __slots__ = ("_notes", "born_ms", "calls", "messages", "size_bytes")

    def __init__(self, now_ms: int) -> None:
        self.born_ms = now_ms
        self.messages = 0
        self.size_bytes = 0
        self.calls = 0
        self._notes: tuple[list[Count], ...] = ([], [], [])

    @property
    def count(self) -> Count:
        """The current count."""
        return Count(self.messages, self.size_bytes, self.calls)

    def add(self, count: Count) -> None:
        """Add to the counter."""
        self.messages += count.messages
        self.size_bytes += count.size_bytes
        self.calls += count.calls

    def note(self, window: int) -> None:
        """Note the current count."""
        notes = self._notes[window]
        count = self.count
        notes.append(notes[-1] if notes and notes[-1] == count else count)
        if len(notes) > _WINDOWS[window][1]:
            del notes[0]

    def since(self, window: int, noted_ms: deque[int], now_ms: int) -> Change:
        """Return the growth within a window; `noted_ms` are the times of its notes."""
        notes = self._notes[window]
        if len(notes) < _WINDOWS[window][1]:  # younger than the window
            first, begin_ms = Count(), self.born_ms
        else:
            first, begin_ms = notes[0], noted_ms[0]
        grown = Count(
            self.messages - first.messages, self.size_bytes - first.size_bytes, self.calls - first.calls
        )
        return Change(grown, max(now_ms - begin_ms, SHORTEST_MS))


class Total:
    """A counter that is the sum of others, including removed ones."""

    def __init__(self, now_ms: int) -> None:
        self.gone = Tally(now_ms)
        self._tally = Tally(now_ms)

    def sum_of(self, tallies: Iterable[Tally]) -> Tally:
        """Return the counter, updated."""
        messages, size_bytes, calls = self.gone.count
        for tally in tallies:
            messages += tally.messages
            size_bytes += tally.size_bytes
            calls += tally.calls
        total = self._tally
        total.messages, total.size_bytes, total.calls = messages, size_bytes, calls
        return total


class Second(NamedTuple):
    """The totals at one moment."""

    at_ns: int
    put_messages: int
    got_messages: int
    gets_found: int
    gets_missed: int


class Rates(NamedTuple):
    """Per second: messages put and got, reads that found messages and reads that did not."""

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
        self.puts: dict[str, Tally] = {}
        self.gets: dict[tuple[str, str], Tally] = {}
        """By topic and group; the group is empty for reads that name none."""
        self.send_backs: dict[tuple[str, str], Tally] = {}
        self._noted_ms = tuple(deque[int](maxlen=kept) for _, kept in _WINDOWS)
        self._next_note_ns = [clock.monotonic_ns()] * len(_WINDOWS)
        self._seconds: deque[Second] = deque(maxlen=SECONDS_KEPT + 1)
        self.note_second()
        self.put_days = DayTotals(now_ms)
        self.got_days = DayTotals(now_ms)

    # ---- counting, on the way of every request -------------------------------------------------------------

    @property
    def uptime_ms(self) -> int:
        """Time since the start, by the wall clock."""
        return self._clock.wall_ms() - self.started_ms

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count the messages that a request stored."""
        tally = self.puts.get(topic)
        if tally is None:
            tally = self.puts[topic] = Tally(self._clock.wall_ms())
        tally.messages += messages
        tally.size_bytes += size_bytes
        tally.calls += 1
        times = self.put_times
        if times.puts:
            times.puts += 1
        else:
            times.begin()

    def got(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count the messages that a request read; 0 if it found none."""
        if not messages:
            self.gets_missed += 1
            return
        _add(self.gets, (topic, group), self._clock, messages, size_bytes)

    def sent_back(self, group: str, topic: str, size_bytes: int) -> None:
        """Count a message that a consumer returned."""
        _add(self.send_backs, (topic, group), self._clock, 1, size_bytes)

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic; the totals stay."""
        gone = self.puts.pop(topic, None)
        if gone is not None:
            self._put.gone.add(gone.count)
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group; the totals stay."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_meant: Callable[[tuple[str, str]], bool]) -> None:
        for key in [key for key in self.gets if is_meant(key)]:
            self._got.gone.add(self.gets.pop(key).count)
        for key in [key for key in self.send_backs if is_meant(key)]:
            del self.send_backs[key]

    # ---- noting, by a timer --------------------------------------------------------------------------------

    def note_second(self) -> None:
        """Note the totals; call once a second."""
        self.put_times.roll()
        put, got = self.put_total, self.got_total
        now_ns = self._clock.monotonic_ns()
        self._seconds.append(Second(now_ns, put.messages, got.messages, got.calls, self.gets_missed))

    def note_due(self, slice_size: int) -> Iterator[None]:
        """Note the counters that are due; yield after `slice_size` of them, so that others may run."""
        now_ms, now_ns = self._clock.wall_ms(), self._clock.monotonic_ns()
        self.put_days.roll(now_ms, self.put_total.messages)
        self.got_days.roll(now_ms, self.got_total.messages)
        for window, (interval_ms, _) in enumerate(_WINDOWS):
            if now_ns < self._next_note_ns[window]:
                continue
            self._next_note_ns[window] = now_ns + interval_ms * NS_PER_MS
            # A counter that is created meanwhile has fewer notes than there are times: it is younger.
            tallies = iter(list(self._tallies()))
            self._noted_ms[window].append(now_ms)
            while part := list(islice(tallies, slice_size)):
                for tally in part:
                    tally.note(window)
                yield

    @property
    def put_total(self) -> Tally:
        """Everything put since the start."""
        return self._put.sum_of(self.puts.values())

    @property
    def got_total(self) -> Tally:
        """Everything got since the start."""
        return self._got.sum_of(self.gets.values())

    # ---- reading -------------------------------------------------------------------------------------------

    def since(self, tally: Tally, window: int) -> Change:
        """Return the growth of a counter within a window."""
        return tally.since(window, self._noted_ms[window], self._clock.wall_ms())

    def put_tps(self, topic: str) -> float:
        """Return the messages per second put into a topic over the last minute."""
        return self._tps(self.puts.get(topic))

    def got_tps(self, group: str, topic: str) -> float:
        """Return the messages per second that a group got from a topic over the last minute."""
        return self._tps(self.gets.get((topic, group)))

    def rates(self, span_s: int) -> Rates:
        """Return the rates of the totals over the last `span_s` seconds, or since the start."""
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
    """A total as it was at the last two midnights, local time (RocketMQ BrokerStats)."""

    def __init__(self, now_ms: int) -> None:
        self._day = _day_of(now_ms)
        self.yesterday_morning = 0
        self.today_morning = 0

    def roll(self, now_ms: int, total: int) -> None:
        """Note the total if a new day has begun."""
        day = _day_of(now_ms)
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.today_morning = self.today_morning, total


def _day_of(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday


def _add(
    table: dict[tuple[str, str], Tally], key: tuple[str, str], clock: Clock, messages: int, size_bytes: int
) -> None:
    tally = table.get(key)
    if tally is None:
        tally = table[key] = Tally(clock.wall_ms())
    tally.messages += messages
    tally.size_bytes += size_bytes
    tally.calls += 1
