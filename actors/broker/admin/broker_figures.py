"""The figures of a broker, without those of its capabilities.

RocketMQ's tools read the names of GET_BROKER_RUNTIME_INFO without checking that they exist, so all of them
are here. This broker has one event loop and no thread pools. The size of a thread pool queue is therefore the
number of sends or reads that wait for the disk. It is 0 for features that this broker lacks (POP
acknowledgements) or runs without a pool (transactions).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial

from actors.broker.broker_settings import BrokerSettings, broker_id_of
from actors.broker.build_loop import BrokerLoop
from actors.broker.core.drain import BrokerDrain
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.role import BrokerRole
from actors.broker.core.stats import RATE_SPANS_S, BrokerStats
from actors.host.figures import Figure, Kind, Sample, connections_figure, failures_figure
from actors.supervisor import Supervisor
from actors.transport.request import Cost
from actors.wire.codes import VERSION_5_3_3
from store.common.clock import NS_PER_MS
from store.message_store import MessageStore
from store.store_errors import StoreError

_COUNTER, _GAUGE, _TEXT = Kind.COUNTER, Kind.GAUGE, Kind.TEXT
_POOLS_OF_READS = ("pull", "litePull", "query")
"""RocketMQ's thread pools of reads. Here, all reads share the same threads."""


def broker_figures(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    role: BrokerRole,
    drain: BrokerDrain,
    supervisor: Supervisor,
) -> Sequence[Figure]:
    """Return the figures of one broker."""
    topics, groups = tables.topics.table, tables.groups.table
    return (
        *_identity(settings, identity, role),
        Figure("role", _TEXT, "", lambda: str(role.role), "Role of the broker."),
        Figure(
            "drain_state",
            _TEXT,
            "",
            lambda: str(drain.state),
            "State of the drain.",
            runtime_names=("drainState",),
        ),
        Figure(
            "topics",
            _GAUGE,
            "",
            lambda: len(topics.topics),
            "Topics of the topic table.",
            metric="rocketmq_topic_number",
        ),
        Figure(
            "groups",
            _GAUGE,
            "",
            lambda: len(groups.groups),
            "Consumer groups of the group table.",
            metric="rocketmq_consumer_group_number",
        ),
        *_store(loop.store),
        *loop.log_end.figures(),
        *_requests(settings, loop),
        *_reads(settings, loop.reads),
        *_messages(loop.stats),
        *_rates(loop.stats),
        *_rocketmq(loop),
        *loop.lag.figures(),
        failures_figure(lambda: supervisor.failures),
    )


def _identity(settings: BrokerSettings, identity: BrokerIdentity, role: BrokerRole) -> Sequence[Figure]:
    def broker_id() -> int:
        return broker_id_of(role.role, settings.replica)

    root = str(settings.store_root.resolve())
    return (
        Figure("cluster", _TEXT, "", lambda: identity.cluster, "Name of the cluster."),
        Figure("broker", _TEXT, "", lambda: identity.name, "Name of the broker."),
        Figure("broker_id", _GAUGE, "", broker_id, "Id of the broker; 0 is the master."),
        Figure("replica", _GAUGE, "", lambda: settings.replica, "Number of the replica of this store."),
        Figure("address", _TEXT, "", lambda: identity.address, "Address that clients connect to."),
        Figure("pid", _GAUGE, "", os.getpid, "Id of the process."),
        Figure("flush", _TEXT, "", lambda: settings.store.flush, "When an append is acknowledged."),
        Figure("store_root", _TEXT, "", lambda: root, "Folder of the store."),
    )


def _store(store: MessageStore) -> Sequence[Figure]:
    positions, commit_log = store.positions, store.root / "commitlog"
    runtime = partial(Figure, is_described=False)

    def behind_bytes() -> int:
        return positions.written - positions.flushed

    return (
        Figure("store_id", _TEXT, "", lambda: store.identity.store_id, "Id of the store."),
        Figure("epoch", _GAUGE, "", lambda: store.writer_epoch, "Epoch of the store's writer."),
        Figure(
            "min_position", _GAUGE, "bytes", lambda: positions.min, "First position of the CommitLog.",
            runtime_names=("commitLogMinOffset",),
        ),
        Figure(
            "written", _GAUGE, "bytes", lambda: positions.written, "End of the CommitLog.",
            runtime_names=("commitLogMaxOffset",),
            metric="raymq_written_bytes",
        ),
        Figure("flushed", _GAUGE, "bytes", lambda: positions.flushed, "Position up to which it is flushed."),
        Figure("confirmed", _GAUGE, "bytes", lambda: positions.confirmed, "Position of acknowledgements."),
        Figure("dispatched", _GAUGE, "bytes", lambda: positions.dispatched, "Position of the dispatch."),
        Figure("write_refusal", _TEXT, "", lambda: store.write_refusal or "", "Why it refuses writes."),
        Figure(
            "log_holes", _GAUGE, "", lambda: len(store.holes), "Ranges of the log that are missing.",
            metric="raymq_log_holes",
        ),
        Figure(
            "messages_skipped", _COUNTER, "", lambda: store.skipped, "Damaged records that were skipped.",
            metric="raymq_messages_skipped_total",
        ),
        Figure("disk_percent", _GAUGE, "percent", lambda: _used_percent(store), "Used part of the disk."),
        runtime(
            "dispatch_behind_bytes", _GAUGE, "bytes", lambda: positions.written - positions.dispatched,
            "Bytes of the log that are not dispatched.", runtime_names=("dispatchBehindBytes",),
        ),
        runtime(
            "flush_behind_bytes", _GAUGE, "bytes", behind_bytes, "Bytes of the log that are not flushed.",
            runtime_names=("remainHowManyDataToFlush",), text=_size,
        ),
        runtime(
            "disk_capacity", _TEXT, "", lambda: _capacity(store), "Total and free space of the disk.",
            runtime_names=("commitLogDirCapacity",),
        ),
        runtime(
            "disk_ratio", _GAUGE, "ratio", lambda: _disk_ratio(store), "Used part of the disk, from 0 to 1.",
            runtime_names=(
                "commitLogDiskRatio", f"commitLogDiskRatio_{commit_log}", "consumeQueueDiskRatio",
            ),
            metric="raymq_disk_ratio",
        ),
        runtime(
            "earliest_message_ms", _GAUGE, "ms", lambda: _earliest_ms(store),
            "Store time of the first message; -1 without one. Raises NotResident if its page is on disk.",
            runtime_names=("earliestMessageTimeStamp",),
        ),
    )  # fmt: skip


def _requests(settings: BrokerSettings, loop: BrokerLoop) -> Sequence[Figure]:
    positions, hub = loop.store.positions, loop.server.hub
    flusher, held = loop.flusher, loop.held
    runtime = partial(Figure, is_described=False)

    def failed() -> int:
        return loop.counters.failed({row.code for row in loop.requests if row.cost == Cost.SEND})

    return (
        connections_figure(lambda: len(loop.server.connections), is_described=True),
        Figure(
            "held_pulls", _GAUGE, "", lambda: len(held), "Pulls that wait for messages.",
            runtime_names=("heldPulls",),
            metric="raymq_held_pulls",
        ),
        Figure(
            "sends_waiting", _GAUGE, "", lambda: positions.waiting, "Sends that wait for the disk.",
            runtime_names=("sendThreadPoolQueueSize",),
            metric="raymq_sends_waiting",
        ),
        Figure(
            "flushes", _COUNTER, "", lambda: flusher.flushes, "Flushes of the CommitLog.",
            metric="raymq_flushes_total",
        ),
        Figure(
            "longest_flush_us", _GAUGE, "us", lambda: flusher.longest_flush_ns // 1000, "Longest flush."
        ),
        Figure(
            "turns", _COUNTER, "", lambda: hub.turns, "Turns of the event loop that served requests.",
            metric="raymq_turns_total",
        ),
        Figure(
            "unread_bytes", _GAUGE, "bytes", lambda: hub.unread_bytes, "Response bytes not sent yet.",
            metric="raymq_unread_bytes",
        ),
        Figure(
            "requests_refused", _COUNTER, "", lambda: loop.admission.refused, "Requests not admitted.",
            metric="raymq_requests_refused_total",
        ),
        runtime(
            "failed_sends", _COUNTER, "", failed, "Send requests with an error response.",
            runtime_names=("putMessageFailedTimes",),
            metric="raymq_failed_sends_total",
        ),
        runtime(
            "send_queue_capacity", _GAUGE, "", lambda: settings.send_queue_capacity,
            "Limit of sends that wait for the disk.", runtime_names=("sendThreadPoolQueueCapacity",),
        ),
    )  # fmt: skip


def _reads(settings: BrokerSettings, reads: Reads) -> Sequence[Figure]:
    runtime = partial(Figure, is_described=False)

    def of_reads(end: str) -> tuple[str, ...]:
        return tuple(f"{pool}ThreadPoolQueue{end}" for pool in _POOLS_OF_READS)

    return (
        Figure(
            "cold_reads", _COUNTER, "", lambda: reads.cold, "Reads that waited for the disk.",
            metric="raymq_cold_reads_total",
        ),
        runtime(
            "reads_waiting", _GAUGE, "", lambda: reads.waiting, "Reads that wait for the disk.",
            runtime_names=of_reads("Size"),
            metric="raymq_reads_waiting",
        ),
        runtime(
            "read_queue_capacity", _GAUGE, "", lambda: settings.pull_queue_capacity,
            "Limit of reads that wait for the disk.", runtime_names=of_reads("Capacity"),
        ),
        runtime(
            "longest_read_wait_ms", _GAUGE, "ms", lambda: reads.longest_wait_ms,
            "Wait of the oldest read that waits for the disk.", runtime_names=of_reads("HeadWaitTimeMills"),
        ),
        runtime(
            "longest_read_ms", _GAUGE, "ms", lambda: reads.longest_ms, "Longest wait of a read for the disk.",
            runtime_names=("getMessageEntireTimeMax",),
        ),
    )  # fmt: skip


def _messages(stats: BrokerStats) -> Sequence[Figure]:
    times = stats.put_times
    runtime = partial(Figure, is_described=False)

    def average_bytes() -> float:
        put = stats.put_total
        return put.size_bytes / put.messages if put.messages else 0.0

    return (
        Figure(
            "messages_in", _COUNTER, "", lambda: stats.put_total.messages, "Messages that were put.",
            runtime_names=("msgPutTotalTodayNow", "putMessageTimesTotal"),
            metric="raymq_messages_in_total",
        ),
        Figure(
            "messages_out", _COUNTER, "", lambda: stats.got_total.messages, "Messages that consumers got.",
            runtime_names=("msgGetTotalTodayNow",),
            metric="raymq_messages_out_total",
        ),
        runtime(
            "bytes_in", _COUNTER, "bytes", lambda: stats.put_total.size_bytes, "Bytes of the messages put.",
            runtime_names=("putMessageSizeTotal",),
            metric="raymq_messages_in_bytes_total",
        ),
        runtime(
            "average_message_bytes", _GAUGE, "bytes", average_bytes, "Average size of the messages put.",
            runtime_names=("putMessageAverageSize",),
        ),
        runtime(
            "put_p99_ms", _GAUGE, "ms", lambda: times.percentile_ms(0.99), "99 % of puts of the last minute.",
            runtime_names=("putLatency99",), text="{:.2f}".format,
        ),
        runtime(
            "put_p999_ms", _GAUGE, "ms", lambda: times.percentile_ms(0.999), "99.9 % of these puts.",
            runtime_names=("putLatency999",), text="{:.2f}".format,
        ),
        runtime(
            "longest_put_ms", _GAUGE, "ms", lambda: times.longest_ms, "Longest put.",
            runtime_names=("putMessageEntireTimeMax",),
        ),
        runtime(
            "put_distribution", _TEXT, "", times.distribution, "Puts of the last minute by their time.",
            runtime_names=("putMessageDistributeTime",),
        ),
    )  # fmt: skip


def _rates(stats: BrokerStats) -> Sequence[Figure]:
    put, got = stats.put_days, stats.got_days
    runtime = partial(Figure, is_described=False)

    def rates() -> Iterator[Sample]:
        for span_s in RATE_SPANS_S:
            rate, span = stats.rates(span_s), str(span_s)
            yield Sample(("put", span), rate.put)
            yield Sample(("getTransferred", span), rate.got)
            yield Sample(("getFound", span), rate.found)
            yield Sample(("getMiss", span), rate.missed)
            yield Sample(("getTotal", span), rate.found + rate.missed)

    return (
        runtime(
            "rates", _GAUGE, "messages/s", rates, "Puts and gets per second over the last seconds.",
            labels=("rate", "span_s"), runtime_names=("{rate}Tps",),
        ),
        runtime(
            "messages_in_before_today", _COUNTER, "", lambda: put.today_morning,
            "Messages put before the last midnight.", runtime_names=("msgPutTotalTodayMorning",),
        ),
        runtime(
            "messages_in_before_yesterday", _COUNTER, "", lambda: put.yesterday_morning,
            "Messages put before the last midnight but one.", runtime_names=("msgPutTotalYesterdayMorning",),
        ),
        runtime(
            "messages_out_before_today", _COUNTER, "", lambda: got.today_morning,
            "Messages got before the last midnight.", runtime_names=("msgGetTotalTodayMorning",),
        ),
        runtime(
            "messages_out_before_yesterday", _COUNTER, "", lambda: got.yesterday_morning,
            "Messages got before the last midnight but one.", runtime_names=("msgGetTotalYesterdayMorning",),
        ),
    )  # fmt: skip


def _rocketmq(loop: BrokerLoop) -> Sequence[Figure]:
    """Return what only RocketMQ's tools read: versions, times, and values that are constant here."""
    stats, lag = loop.stats, loop.lag
    runtime = partial(Figure, is_described=False)
    return (
        runtime(
            "started_ms", _GAUGE, "ms", lambda: stats.started_ms, "Time of the start.",
            runtime_names=("bootTimestamp",),
            metric="raymq_start_time_seconds",
        ),
        runtime(
            "uptime_s", _GAUGE, "s", lambda: stats.uptime_ms // 1000, "Seconds since the start.",
            runtime_names=("runtime",), text=_duration,
        ),
        runtime(
            "is_active", _TEXT, "", lambda: "true", "Whether the broker is active.",
            runtime_names=("brokerActive",),
        ),
        runtime(
            "version", _GAUGE, "", lambda: int(VERSION_5_3_3), "Number of the version of RocketMQ.",
            runtime_names=("brokerVersion",),
        ),
        runtime(
            "version_name", _TEXT, "", lambda: "V5_3_3", "Name of the version of RocketMQ.",
            runtime_names=("brokerVersionDesc",),
        ),
        # No thread waits for a page cache lock here; the last lag of the loop is the closest value.
        runtime(
            "last_lag_ms", _GAUGE, "ms", lambda: lag.last_ns // NS_PER_MS, "Last lag of the event loop.",
            runtime_names=("pageCacheLockTimeMills",),
        ),
        runtime(
            "absent", _TEXT, "", lambda: "0", "Values of features that this broker lacks.",
            runtime_names=(
                "dispatchMaxBuffer",  # RocketMQ never sets it
                "startAcceptSendRequestTimeStamp", "EndTransactionQueueSize",
                "EndTransactionThreadPoolQueueCapacity", "ackThreadPoolQueueSize",
                "ackThreadPoolQueueCapacity", "ackThreadPoolQueueHeadWaitTimeMills",
                "sendThreadPoolQueueHeadWaitTimeMills",
            ),
        ),
        runtime(
            "transient_buffers", _TEXT, "", lambda: str(0x7FFF_FFFF), "RocketMQ's value without a pool.",
            runtime_names=("remainTransientStoreBufferNumbs",),
        ),
    )  # fmt: skip


def _used_percent(store: MessageStore) -> float:
    disk = shutil.disk_usage(store.root)
    return round(100 * disk.used / max(disk.used + disk.free, 1), 1)


def _disk_ratio(store: MessageStore) -> float:
    """Return the used part of the space for users other than root, rounded up to 1 % (RocketMQ UtilAll)."""
    disk = shutil.disk_usage(store.root)
    return -(-disk.used * 100 // max(disk.used + disk.free, 1)) / 100


def _capacity(store: MessageStore) -> str:
    disk = os.statvfs(store.root)
    total_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
    return f"Total : {_size(total_bytes)}, Free : {_size(free_bytes)}."


def _earliest_ms(store: MessageStore) -> int:
    if store.positions.min >= store.positions.confirmed:
        return -1
    try:
        return store.record_timestamp(store.positions.min)
    except StoreError:
        return -1


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
