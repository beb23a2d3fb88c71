"""What a broker says of itself: GET_BROKER_RUNTIME_INFO, VIEW_BROKER_STATS_DATA, QUERY_CONSUME_QUEUE,
DESCRIBE_BROKER.

The names of the runtime table are RocketMQ's, and there are all of them, since its tools read them unasked.
This broker has one loop and no thread pools: its "queues" are the sends that wait for the disk, and the reads
that do; the pools of what it does not offer (acknowledgements of POP, transactions) are empty. `loopLag…` are
its own: how late the loop runs what is due (`actors.host.loop_lag`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

import orjson

from actors.broker.group.subscriptions import subscription_data, tags_codes_of
from actors.broker.metadata.topics import SCHEDULE_TOPIC
from actors.broker.parts import BrokerParts
from actors.broker.reading.reads import TRIES_OF_A_SEARCH
from actors.broker.stats import DAY, HOUR, MINUTE, RATE_SPANS_S, Count, Tally
from actors.remoting.admin_headers import BrokerStatsHeader, ConsumeQueueHeader
from actors.remoting.bodies.broker import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeQueueUnits,
)
from actors.remoting.bodies.routes import encode_kv_table
from actors.remoting.codes import VERSION_5_3_3, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Cost, RequestContext
from actors.remoting.table import RequestTable
from store.clock import NS_PER_MS
from store.store_errors import StoreError

UNITS_MAX = 4096
_TIMER = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


class BrokerInfo:
    """Answers GET_BROKER_RUNTIME_INFO, VIEW_BROKER_STATS_DATA, QUERY_CONSUME_QUEUE and DESCRIBE_BROKER."""

    def __init__(self, parts: BrokerParts, describe: Callable[[], Mapping[str, object]]) -> None:
        """`describe` gives the fields of DESCRIBE_BROKER."""
        self._parts = parts
        self._describe = describe
        self.requests = RequestTable()
        """The broker's own table, once it is made: what was refused is counted there."""

    def runtime(self, context: RequestContext) -> None:
        """GET_BROKER_RUNTIME_INFO."""
        self._parts.reads.serve(context, self._earliest_ms, self._runtime)

    def _runtime(self, earliest_ms: int) -> RemotingCommand:
        table = {**self._totals(), **self._rates(), **self._disk(), **self._pools(), **self._lag(), **_TIMER}
        table |= self._delays()
        table["earliestMessageTimeStamp"] = str(earliest_ms)
        return RemotingCommand.response(body=encode_kv_table(dict(sorted(table.items()))))

    def stats_data(self, context: RequestContext) -> RemotingCommand:
        """VIEW_BROKER_STATS_DATA: one counter over a minute, an hour and a day."""
        header: BrokerStatsHeader = context.header
        tally, amount = self._tally(header.stats_name, header.stats_key)
        if tally is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        items = []
        for window in (MINUTE, HOUR, DAY):
            change = self._parts.stats.since(tally, window)
            grown = amount(change.grown)
            calls = change.grown.calls
            items.append(BrokerStatsItem(grown, change.per_second(grown), grown / calls if calls else 0.0))
        return RemotingCommand.response(body=BrokerStatsData(*items).encode())

    def describe(self, context: RequestContext) -> RemotingCommand:
        """DESCRIBE_BROKER: who and where the broker is, and how far its store has come."""
        return RemotingCommand.response(body=orjson.dumps(self._describe()))

    def consume_queue(self, context: RequestContext) -> None:
        """QUERY_CONSUME_QUEUE: the units of a queue from an index on."""
        self._parts.reads.when_caught_up(context, self._serve_consume_queue)

    def _serve_consume_queue(self, context: RequestContext) -> None:
        header: ConsumeQueueHeader = context.header
        self._parts.reads.serve(
            context,
            lambda: self._consume_queue(header),
            lambda answer: RemotingCommand.response(body=answer.encode()),
            TRIES_OF_A_SEARCH,
        )

    def _consume_queue(self, header: ConsumeQueueHeader) -> ConsumeQueueUnits:
        parts, topic, queue_id = self._parts, header.topic, header.queue_id
        first, end = parts.store.min_offset(topic, queue_id), parts.store.max_offset(topic, queue_id)
        if not end:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        answer = ConsumeQueueUnits(first, end)
        takes: Callable[[int], bool] | None = None
        if header.consumer_group:
            group = parts.clients.group(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            if subscription is None:
                answer.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                answer.subscription = subscription_data(subscription)
                answer.filter_data = "null"
                wanted = tags_codes_of(subscription.expression)
                takes = (lambda tags: True) if wanted is None else wanted.__contains__
        units = parts.store.units(topic, queue_id, header.index, min(header.count, UNITS_MAX))
        if not units and header.count > 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"Index {header.index} of {queue_id}@{topic} is not exist!"
            )
        answer.units = [
            ConsumeQueueData(
                unit.physical_offset, unit.size, unit.tags_code, takes is not None and takes(unit.tags_code)
            )
            for unit in units
        ]
        return answer

    # ---- its own -------------------------------------------------------------------------------------------

    def _tally(self, name: str, key: str) -> tuple[Tally | None, Callable[[Count], int]]:
        """A counter by RocketMQ's names; groups' keys are `topic@group`, the broker's is its cluster."""
        stats = self._parts.stats
        table, _, kind = name.rpartition("_")
        amount = _size_bytes if kind == "SIZE" else _messages
        topic, _, group = key.partition("@")
        cluster = self._parts.settings.cluster_name
        if kind not in ("NUMS", "SIZE"):
            return None, amount
        if table == "BROKER_PUT":
            return (stats.put_total if key == cluster else None), amount
        if table == "BROKER_GET":
            return (stats.got_total if key == cluster else None), amount
        if table == "TOPIC_PUT":
            return stats.puts.get(key), amount
        if table == "GROUP_GET":
            return stats.gets.get((topic, group)), amount
        if name == "SNDBCK_PUT_NUMS":
            return stats.send_backs.get((topic, group)), amount
        return None, amount

    def _totals(self) -> Mapping[str, str]:
        parts = self._parts
        stats, store = parts.stats, parts.store
        put, got = stats.put_total, stats.got_total
        now_ms = parts.clock.wall_ms()
        sends = [entry for entry in self.requests if entry.cost == Cost.SEND]
        average = put.size_bytes / put.messages if put.messages else 0.0
        return {
            "bootTimestamp": str(stats.started_ms),
            "brokerActive": "true",
            "brokerVersion": str(VERSION_5_3_3),
            "brokerVersionDesc": "V5_3_3",
            "dispatchBehindBytes": str(store.positions.written - store.positions.dispatched),
            "dispatchMaxBuffer": "0",  # RocketMQ never sets it
            "getMessageEntireTimeMax": str(parts.reads.longest_ms),
            "msgGetTotalTodayMorning": str(stats.got_days.today_morning),
            "msgGetTotalTodayNow": str(got.messages),
            "msgGetTotalYesterdayMorning": str(stats.got_days.yesterday_morning),
            "msgPutTotalTodayMorning": str(stats.put_days.today_morning),
            "msgPutTotalTodayNow": str(put.messages),
            "msgPutTotalYesterdayMorning": str(stats.put_days.yesterday_morning),
            # No thread waits for a lock here; what stands for it is how late the loop ran when last asked.
            "pageCacheLockTimeMills": str(parts.lag.last_ns // NS_PER_MS),
            "putMessageAverageSize": str(average),
            "putLatency99": f"{stats.put_times.share_ms(0.99):.2f}",
            "putLatency999": f"{stats.put_times.share_ms(0.999):.2f}",
            "putMessageDistributeTime": stats.put_times.distribution(),
            "putMessageEntireTimeMax": str(stats.put_times.longest_ms),
            "putMessageFailedTimes": str(sum(entry.refusals + entry.failures for entry in sends)),
            "putMessageSizeTotal": str(put.size_bytes),
            "putMessageTimesTotal": str(put.messages),
            "runtime": _spoken((now_ms - stats.started_ms) // 1000),
            "startAcceptSendRequestTimeStamp": "0",
        }

    def _rates(self) -> Mapping[str, str]:
        spans = [self._parts.stats.rates(span_s) for span_s in RATE_SPANS_S]
        return {
            "getFoundTps": _joined(rate.found for rate in spans),
            "getMissTps": _joined(rate.missed for rate in spans),
            "getTotalTps": _joined(rate.found + rate.missed for rate in spans),
            "getTransferredTps": _joined(rate.got for rate in spans),
            "putTps": _joined(rate.put for rate in spans),
        }

    def _disk(self) -> Mapping[str, str]:
        store = self._parts.store
        positions = store.positions
        disk = os.statvfs(store.root)
        total_bytes, free_bytes = disk.f_blocks * disk.f_frsize, disk.f_bfree * disk.f_frsize
        used_bytes = total_bytes - free_bytes
        # Up to the next per cent, of what others than root may use (RocketMQ UtilAll).
        percent = -(-used_bytes * 100 // max(used_bytes + disk.f_bavail * disk.f_frsize, 1))
        ratio = str(percent / 100)
        behind_bytes = positions.written - positions.flushed
        return {
            "commitLogDirCapacity": f"Total : {_binary(total_bytes)}, Free : {_binary(free_bytes)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.root / 'commitlog'}": ratio,
            "commitLogMaxOffset": str(positions.written),
            "commitLogMinOffset": str(positions.min),
            "consumeQueueDiskRatio": ratio,
            "remainHowManyDataToFlush": _binary(behind_bytes),
            "remainTransientStoreBufferNumbs": str(0x7FFF_FFFF),
        }

    def _delays(self) -> Mapping[str, str]:
        """By level, how far its messages have been delivered, and where its queue ends."""
        parts = self._parts
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{parts.store.max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in parts.delays.table.offsets.items()
        }

    def _pools(self) -> Mapping[str, str]:
        table = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
        table |= {"ackThreadPoolQueueSize": "0", "ackThreadPoolQueueCapacity": "0"}
        table |= {"ackThreadPoolQueueHeadWaitTimeMills": "0", "sendThreadPoolQueueHeadWaitTimeMills": "0"}
        settings, reads = self._parts.settings, self._parts.reads
        table["heldPulls"] = str(len(self._parts.held))
        table["sendThreadPoolQueueSize"] = str(self._parts.store.positions.waiting)
        table["sendThreadPoolQueueCapacity"] = str(settings.send_queue_capacity)
        for pool in ("pull", "litePull", "query"):  # they all wait for the same threads
            table[f"{pool}ThreadPoolQueueSize"] = str(reads.waiting)
            table[f"{pool}ThreadPoolQueueCapacity"] = str(settings.pull_queue_capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = str(reads.longest_wait_ms)
        return table

    def _lag(self) -> Mapping[str, str]:
        figures = self._parts.lag.figures()
        buckets = " ".join(map(str, self._parts.lag.buckets))
        return {
            "loopLagP50Micros": str(figures["loop_lag_p50_us"]),
            "loopLagP99Micros": str(figures["loop_lag_p99_us"]),
            "loopLagMaxMicros": str(figures["longest_lag_us"]),
            "loopLagBuckets": buckets,
        }

    def _earliest_ms(self) -> int:
        store = self._parts.store
        if store.positions.min >= store.positions.confirmed:
            return -1
        try:
            return store.record_timestamp(store.positions.min)
        except StoreError:
            return -1


def _messages(count: Count) -> int:
    return count.messages


def _size_bytes(count: Count) -> int:
    return count.size_bytes


def _joined(rates: Iterable[float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _spoken(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _binary(size_bytes: int) -> str:
    """RocketMQ's MixAll.humanReadableByteCount."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, 6)
    return f"{size_bytes / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"
