"""TimerCounts: counters of the timer, for status, GET_BROKER_RUNTIME_INFO and `config/timermetrics`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from actors.broker.features.timer.timer_messages import TimerMessage
from actors.host.figures import Buckets
from store.common.clock import NS_PER_MS, Clock
from store.common.json_file import JsonConfigFile
from store.timer.timer_metrics import TimerMetrics
from store.timer.timer_unit import MS_PER_SECOND

DELAY_BOUNDS_S = (60.0, 600.0, 3600.0, 43_200.0, 86_400.0, 259_200.0)


class TimerCounts:
    """Counts the timer messages that were added and delivered, and the pending ones by topic."""

    def __init__(self, store_root: Path, clock: Clock) -> None:
        """Create the counters; the numbers by topic are those of `config/timermetrics`."""
        self._file = JsonConfigFile(store_root / "config" / "timermetrics")
        self._metrics = TimerMetrics.load(self._file.path)
        self._clock = clock
        self.enqueued = 0
        self.dequeued = 0
        """Number of messages that were delivered, rolled or cancelled."""
        self.skipped = 0
        """Number of messages that could not be delivered because their records are deleted or damaged."""
        self.rounds = 0
        """Number of times that the timer has delivered everything that was due."""
        self.enqueue_tps = self.dequeue_tps = 0.0
        self._sampled = (0, 0, clock.monotonic_ns())
        self.enqueued_of: Counter[str] = Counter()
        """Like `enqueued`, by topic."""
        self.dequeued_of: Counter[str] = Counter()
        """Number of messages that were delivered or rolled, by topic."""
        self.delays: defaultdict[str, Buckets] = defaultdict(partial(Buckets, DELAY_BOUNDS_S))
        """The delays (seconds) that senders requested, by topic."""

    def enqueued_one(self, timer: TimerMessage, born_ms: int) -> None:
        """Count a message that was added to the wheel; it was sent at `born_ms`."""
        self.enqueued += 1
        self.enqueued_of[timer.real_topic] += 1
        self.delays[timer.real_topic].add(max(timer.due_ms - born_ms, 0) // MS_PER_SECOND)
        self._change(timer.real_topic, 1 if timer.delete_key is None else -1)

    def dequeued_one(self, timer: TimerMessage) -> None:
        """Count a message that was delivered or rolled."""
        self.dequeued += 1
        self.dequeued_of[timer.real_topic] += 1
        self._change(timer.real_topic, -1 if timer.delete_key is None else 1)

    def sample(self) -> None:
        """Compute the rates since the last sample; to be called about once per second."""
        enqueued, dequeued, at_ns = self._sampled
        now_ns = self._clock.monotonic_ns()
        elapsed_ms = (now_ns - at_ns) // NS_PER_MS
        if elapsed_ms > 0:
            self.enqueue_tps = (self.enqueued - enqueued) * MS_PER_SECOND / elapsed_ms
            self.dequeue_tps = (self.dequeued - dequeued) * MS_PER_SECOND / elapsed_ms
            self._sampled = (self.enqueued, self.dequeued, now_ns)

    def pending_of(self) -> dict[str, int]:
        """Return the number of pending messages by topic."""
        return dict(self._metrics.counts)

    def by_topic(self) -> dict[str, Any]:
        """Return the pending messages by topic, as the content of `config/timermetrics`."""
        return self._metrics.to_json()

    def saving(self) -> Callable[[], None]:
        """Return a function that saves the present numbers by topic; it may run in a thread."""
        return partial(self._file.save, self.by_topic())

    def _change(self, topic: str, change: int) -> None:
        self._metrics.add(topic, change, self._clock.wall_ms())
