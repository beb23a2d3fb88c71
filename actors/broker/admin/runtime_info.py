"""GET_BROKER_RUNTIME_INFO: the runtime statistics that mqadmin brokerStatus shows.

RocketMQ's tools read these names without checking that they exist, so the table has all of them. This broker
has one event loop and no thread pools. The size of a thread pool queue is therefore the number of sends or
reads that wait for the disk. It is 0 for features that this broker lacks (POP acknowledgements) or runs
without a pool (transactions). RayMQ adds the `loopLag…` values, which are the delay of the event loop
(`actors.host.loop_lag`), and the fields of the capabilities (`capability_figures`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from actors.broker.broker_settings import BrokerSettings
from actors.broker.capability import Capability
from actors.broker.loop.reads import Reads
from actors.broker.loop.wait_registry import WaitRegistry
from actors.broker.metadata.topics import SCHEDULE_TOPIC
from actors.broker.stats import RATE_SPANS_S, BrokerStats
from actors.host.loop_lag import LoopLag
from actors.remoting.bodies.routes import encode_kv_table
from actors.remoting.codes import VERSION_5_3_3, RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.counters import RequestCounters
from actors.remoting.request import Cost, RequestContext, RequestRow
from actors.remoting.table import RequestTable
from actors.remoting.targets import Action, on_cluster
from store.clock import NS_PER_MS
from store.message_store import Arrival, MessageStore
from store.metadata import DelayOffsetTable
from store.store_errors import StoreError

RuntimeFigures = Callable[[], Mapping[str, str]]
"""A function that returns some entries of the table, as text by RocketMQ's name."""

_TIMER = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}
"""The entries of a broker whose timer is disabled (`timer_wheel_enable`)."""


class RuntimeInfo:
    """Request handler for GET_BROKER_RUNTIME_INFO."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        held: WaitRegistry[Arrival],
        stats: BrokerStats,
        more: Sequence[RuntimeFigures],
    ) -> None:
        """Create the handler. The functions in `more` return the entries of other parts of the broker."""
        self._settings = settings
        self._store = store
        self._reads = reads
        self._held = held
        self._stats = stats
        self._more = more

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (RequestRow(code, self.runtime, None, on_cluster(Action.GET)),)

    def runtime(self, context: RequestContext) -> None:
        """Handle GET_BROKER_RUNTIME_INFO: return the table, sorted by name."""
        self._reads.serve(context, self._earliest_ms, self._runtime)

    def _runtime(self, earliest_ms: int) -> RemotingCommand:
        table = {**self._totals(), **self._rates(), **self._disk(), **self._pools(), **_TIMER}
        for figures in self._more:
            table |= figures()
        table["earliestMessageTimeStamp"] = str(earliest_ms)
        return RemotingCommand.response(body=encode_kv_table(dict(sorted(table.items()))))

    def _totals(self) -> Mapping[str, str]:
        stats, store = self._stats, self._store
        put, got = stats.put_total, stats.got_total
        average = put.size_bytes / put.messages if put.messages else 0.0
        return {
            "bootTimestamp": str(stats.started_ms),
            "brokerActive": "true",
            "brokerVersion": str(VERSION_5_3_3),
            "brokerVersionDesc": "V5_3_3",
            "dispatchBehindBytes": str(store.positions.written - store.positions.dispatched),
            "dispatchMaxBuffer": "0",  # RocketMQ never sets it
            "getMessageEntireTimeMax": str(self._reads.longest_ms),
            "msgGetTotalTodayMorning": str(stats.got_days.today_morning),
            "msgGetTotalTodayNow": str(got.messages),
            "msgGetTotalYesterdayMorning": str(stats.got_days.yesterday_morning),
            "msgPutTotalTodayMorning": str(stats.put_days.today_morning),
            "msgPutTotalTodayNow": str(put.messages),
            "msgPutTotalYesterdayMorning": str(stats.put_days.yesterday_morning),
            "putMessageAverageSize": str(average),
            "putLatency99": f"{stats.put_times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_times.percentile_ms(0.999):.2f}",
            "putMessageDistributeTime": stats.put_times.distribution(),
            "putMessageEntireTimeMax": str(stats.put_times.longest_ms),
            "putMessageSizeTotal": str(put.size_bytes),
            "putMessageTimesTotal": str(put.messages),
            "runtime": _duration(stats.uptime_ms // 1000),
            "startAcceptSendRequestTimeStamp": "0",
        }

    def _rates(self) -> Mapping[str, str]:
        spans = [self._stats.rates(span_s) for span_s in RATE_SPANS_S]
        return {
            "getFoundTps": _joined(rate.found for rate in spans),
            "getMissTps": _joined(rate.missed for rate in spans),
            "getTotalTps": _joined(rate.found + rate.missed for rate in spans),
            "getTransferredTps": _joined(rate.got for rate in spans),
            "putTps": _joined(rate.put for rate in spans),
        }

    def _disk(self) -> Mapping[str, str]:
        store = self._store
        positions = store.positions
        disk = os.statvfs(store.root)
        total_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
        used_bytes = total_bytes - free_bytes
        # Rounded up, of the space that users other than root may use (RocketMQ UtilAll).
        percent = -(-used_bytes * 100 // max(used_bytes + disk.f_bavail * disk.f_frsize, 1))
        ratio = str(percent / 100)
        behind_bytes = positions.written - positions.flushed
        return {
            "commitLogDirCapacity": f"Total : {_size(total_bytes)}, Free : {_size(free_bytes)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.root / 'commitlog'}": ratio,
            "commitLogMaxOffset": str(positions.written),
            "commitLogMinOffset": str(positions.min),
            "consumeQueueDiskRatio": ratio,
            "remainHowManyDataToFlush": _size(behind_bytes),
            "remainTransientStoreBufferNumbs": str(0x7FFF_FFFF),
        }

    def _pools(self) -> Mapping[str, str]:
        table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        table |= {"ackThreadPoolQueueSize": "0", "ackThreadPoolQueueCapacity": "0"}
        table |= {"ackThreadPoolQueueHeadWaitTimeMills": "0", "sendThreadPoolQueueHeadWaitTimeMills": "0"}
        settings, reads = self._settings, self._reads
        table["heldPulls"] = str(len(self._held))
        table["sendThreadPoolQueueSize"] = str(self._store.positions.waiting)
        table["sendThreadPoolQueueCapacity"] = str(settings.send_queue_capacity)
        for pool in ("pull", "litePull", "query"):  # they share the same threads
            table[f"{pool}ThreadPoolQueueSize"] = str(reads.waiting)
            table[f"{pool}ThreadPoolQueueCapacity"] = str(settings.pull_queue_capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = str(reads.longest_wait_ms)
        return table

    def _earliest_ms(self) -> int:
        store = self._store
        if store.positions.min >= store.positions.confirmed:
            return -1
        try:
            return store.record_timestamp(store.positions.min)
        except StoreError:
            return -1


def lag_figures(lag: LoopLag) -> Mapping[str, str]:
    """Return the entries for the delay of the event loop."""
    figures = lag.figures()
    return {
        "loopLagP50Micros": str(figures["loop_lag_p50_us"]),
        "loopLagP99Micros": str(figures["loop_lag_p99_us"]),
        "loopLagMaxMicros": str(figures["longest_lag_us"]),
        "loopLagBuckets": " ".join(map(str, lag.buckets)),
        # No thread waits for a page cache lock here; the last lag of the loop is the closest value.
        "pageCacheLockTimeMills": str(lag.last_ns // NS_PER_MS),
    }


def delay_figures(delay_offsets: DelayOffsetTable, store: MessageStore) -> Mapping[str, str]:
    """Return an entry for each delay level: `delivered offset,end offset` of the level's schedule queue."""
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{store.max_offset(SCHEDULE_TOPIC, level - 1)}"
        for level, offset in delay_offsets.offsets.items()
    }


def capability_figures(capabilities: Sequence[Capability]) -> Mapping[str, str]:
    """Return the fields of `capabilities`; `open_transactions`, for example, becomes `openTransactions`."""
    fields = chain.from_iterable(each.fields().items() for each in capabilities)
    return {_camel_case(name): str(value) for name, value in fields}


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def send_figures(requests: RequestTable, counters: RequestCounters) -> Mapping[str, str]:
    """Return the entry for the number of failed sends."""
    sends = {row.code for row in requests if row.cost == Cost.SEND}
    return {"putMessageFailedTimes": str(counters.failed(sends))}


def _joined(rates: Iterable[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(size_bytes: int) -> str:
    """Format a size as RocketMQ's MixAll.humanReadableByteCount does."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, 6)
    return f"{size_bytes / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"
