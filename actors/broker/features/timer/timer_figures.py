"""The figures of the timer: RayMQ's own, and the metrics that RocketMQ 5 has too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from actors.broker.core.loop.log_end import LogEnd
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.metric_labels import STORAGE, STORAGE_LABELS
from actors.broker.features.timer.timer_counts import TimerCounts
from actors.broker.features.timer.timer_service import TimerService
from actors.host.figures import Figure, Kind, Sample, Value
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.store_errors import StoreError

_SNAPSHOT_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""The messages are counted by their time until delivery, up to these bounds (RocketMQ TimerMetrics)."""
_LONGEST_DELAY_S = 86_400
_BY_TOPIC = (*STORAGE_LABELS, "topic")
_COUNTER, _GAUGE = Kind.COUNTER, Kind.GAUGE
_Samples = Callable[[], Iterator[Sample]]


def timer_figures(timer: TimerService, counts: TimerCounts, log_end: LogEnd) -> Sequence[Figure]:
    """Return RayMQ's figures of an enabled timer."""
    return (
        Figure(
            "pending_timers", _GAUGE, "", log_end.known(lambda: timer.pending),
            "Messages that wait for their time.",
            runtime_names=("pendingTimers",), metric="raymq_pending_timers",
        ),
        Figure(
            "timer_messages_skipped", _COUNTER, "", lambda: counts.skipped, "Undeliverable timer messages.",
            runtime_names=("timerMessagesSkipped",), metric="raymq_timer_messages_skipped_total",
        ),
        Figure(
            "timer_rounds", _COUNTER, "", lambda: counts.rounds, "Rounds that delivered all due messages.",
            runtime_names=("timerRounds",),
        ),
        Figure(
            "timer_read_behind", _GAUGE, "s", lambda: timer.read_behind_s, "Delay of the delivery.",
            runtime_names=("timerReadBehind",),
        ),
        Figure(
            "timer_offset_behind", _GAUGE, "", lambda: timer.offset_behind, "Messages not in the wheel yet.",
            runtime_names=("timerOffsetBehind",),
        ),
        Figure(
            "timer_congest_num", _GAUGE, "", lambda: timer.pending, "RocketMQ's name of `pending_timers`.",
            runtime_names=("timerCongestNum",),
        ),
        Figure(
            "timer_enqueue_tps", _GAUGE, "messages/s", lambda: counts.enqueue_tps, "Messages added.",
            runtime_names=("timerEnqueueTps",),
        ),
        Figure(
            "timer_dequeue_tps", _GAUGE, "messages/s", lambda: counts.dequeue_tps, "Messages delivered.",
            runtime_names=("timerDequeueTps",),
        ),
    )  # fmt: skip


def timer_metrics(timer: TimerService, counts: TimerCounts, topics: Topics, clock: Clock) -> Sequence[Figure]:
    """Return the metrics of an enabled timer that RocketMQ has too."""

    def by_topic(table: Callable[[], Mapping[str, Value]]) -> _Samples:
        def samples() -> Iterator[Sample]:
            for topic, value in table().items():
                if topics.find(topic) is not None:
                    yield Sample((*STORAGE, topic), value)

        return samples

    def delays() -> dict[str, Value]:
        return {topic: buckets.histogram for topic, buckets in counts.delays.items()}

    return (
        Figure(
            "timers_enqueued_by_topic", _COUNTER, "", by_topic(counts.enqueued_of.copy),
            "Messages added to the wheel.", _BY_TOPIC, metric="rocketmq_timer_enqueue_total",
        ),
        Figure(
            "timers_dequeued_by_topic", _COUNTER, "", by_topic(counts.dequeued_of.copy),
            "Messages delivered, or added again because their time is far away.", _BY_TOPIC,
            metric="rocketmq_timer_dequeue_total",
        ),
        Figure(
            "pending_timers_by_topic", _GAUGE, "", by_topic(counts.pending_of),
            "Messages that wait for their time.", _BY_TOPIC, metric="rocketmq_timing_messages",
        ),
        Figure(
            "delay_message_latency", Kind.HISTOGRAM, "s", by_topic(delays),
            "Delays that the senders of timer messages requested.", _BY_TOPIC,
            metric="rocketmq_delay_message_latency_seconds",
        ),
        *_progress(timer, clock),
    )  # fmt: skip


class _EnqueueLatency:
    """How long the first message of the timer topic that is not in the wheel yet has waited."""

    def __init__(self, timer: TimerService, clock: Clock) -> None:
        self._timer = timer
        self._clock = clock
        self._stored_ms: int | None = None

    async def refresh(self) -> None:
        """Read the time of the message."""
        try:
            self._stored_ms = await self._timer.next_stored_ms()
        except (StoreError, Refused):
            self._stored_ms = None

    def samples(self) -> Iterator[Sample]:
        """Yield the time in ms."""
        is_known = self._stored_ms is not None and self._stored_ms >= 0
        waited_ms = max(self._clock.wall_ms() - (self._stored_ms or 0), 0) if is_known else 0
        yield Sample(STORAGE, waited_ms)


def _progress(timer: TimerService, clock: Clock) -> Sequence[Figure]:
    latency = _EnqueueLatency(timer, clock)

    def sample(value: Callable[[], int]) -> _Samples:
        return lambda: iter((Sample(STORAGE, value()),))

    def late() -> int:
        behind_s = min(timer.read_behind_s, _LONGEST_DELAY_S)
        return timer.due_within(-behind_s, 0) if behind_s else 0

    def snapshot() -> Iterator[Sample]:
        begin_s = 0
        for end_s in _SNAPSHOT_S:
            yield Sample((*STORAGE, str(end_s)), timer.due_within(begin_s, end_s))
            begin_s = end_s

    return (
        Figure(
            "timer_enqueue_lag", _GAUGE, "", sample(lambda: timer.offset_behind),
            "Messages that are not in the wheel yet.", STORAGE_LABELS, metric="rocketmq_timer_enqueue_lag",
        ),
        Figure(
            "timer_enqueue_latency", _GAUGE, "ms", latency.samples,
            "How long the first message that is not in the wheel yet has waited.", STORAGE_LABELS,
            metric="rocketmq_timer_enqueue_latency_milliseconds", refresh=latency.refresh,
        ),
        Figure(
            "timer_dequeue_lag", _GAUGE, "", sample(late), "Messages whose time has passed, in the wheel.",
            STORAGE_LABELS, metric="rocketmq_timer_dequeue_lag",
        ),
        Figure(
            "timer_dequeue_latency", _GAUGE, "ms", sample(lambda: 1000 * timer.read_behind_s),
            "Delay of the delivery.", STORAGE_LABELS, metric="rocketmq_timer_dequeue_latency_milliseconds",
        ),
        Figure(
            "timer_message_snapshot", _GAUGE, "", snapshot,
            "Messages in the wheel by the seconds until their time, each up to its bound.",
            (*STORAGE_LABELS, "timer_bound_s"), metric="rocketmq_timer_message_snapshot",
        ),
    )  # fmt: skip


TIMER_DISABLED = (
    Figure(
        "timer_disabled", Kind.TEXT, "", lambda: "0", "Counts of a disabled timer.",
        runtime_names=("timerReadBehind", "timerOffsetBehind", "timerCongestNum"), is_described=False,
    ),
    Figure(
        "timer_disabled_tps", Kind.TEXT, "", lambda: "0.0", "Rates of a disabled timer.",
        runtime_names=("timerEnqueueTps", "timerDequeueTps"), is_described=False,
    ),
)  # fmt: skip
"""RocketMQ's tools expect these entries even from a broker without timer."""
