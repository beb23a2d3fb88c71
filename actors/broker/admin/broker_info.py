"""Requests for a broker's statistics, its consume queue units and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import orjson

from actors.broker.core.group.clients import Clients
from actors.broker.core.group.subscriptions import filter_of, subscription_data
from actors.broker.core.loop.reads import SEARCH_ATTEMPTS, Reads
from actors.broker.core.stats import DAY, HOUR, MINUTE, BrokerStats, Count, Tally
from actors.host.figures import Figure, described, runtime_table
from actors.transport.connection import Connection
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import BrokerStatsHeader, ConsumeQueueHeader
from actors.wire.bodies.broker import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeQueueData,
    ConsumeQueueUnits,
)
from actors.wire.bodies.routes import encode_kv_table
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import (
    Action,
    DecodedRequest,
    Resource,
    Target,
    each_of,
    on_cluster,
    on_group,
    on_topic,
)
from store.message_store import MessageStore
from store.reading.message_filter import MessageFilter

UNITS_MAX = 4096
"""Limit of units in one QUERY_CONSUME_QUEUE response."""


class BrokerInfo:
    """Request handler for the statistics and figures of the broker, and for QUERY_CONSUME_QUEUE."""

    def __init__(
        self,
        cluster: str,
        store: MessageStore,
        reads: Reads,
        clients: Clients[Connection],
        stats: BrokerStats,
        figures: Sequence[Figure],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._reads = reads
        self._clients = clients
        self._stats = stats
        self._figures = figures

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.SERVED)
        code, get = RequestCode, on_cluster(Action.GET)
        units = each_of(on_topic(Action.GET), on_group(Action.GET))
        return (
            row(code.VIEW_BROKER_STATS_DATA, self.stats_data, BrokerStatsHeader, each_of(get, _counted)),
            row(code.QUERY_CONSUME_QUEUE, self.consume_queue, ConsumeQueueHeader, units),
            row(RayMQRequestCode.DESCRIBE_BROKER, self.describe, None, get),
            row(code.GET_BROKER_RUNTIME_INFO, self.runtime, None, get),
        )

    def stats_data(self, context: RequestContext) -> RemotingCommand:
        """Handle VIEW_BROKER_STATS_DATA: return one counter's sums and rates.

        They cover the last minute, hour and day. Raises Refused (SYSTEM_ERROR) if the counter does not exist.
        """
        header: BrokerStatsHeader = context.header
        tally, amount = self._tally(header.stats_name, header.stats_key)
        if tally is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        items = []
        for window in (MINUTE, HOUR, DAY):
            change = self._stats.since(tally, window)
            grown = amount(change.grown)
            calls = change.grown.calls
            items.append(BrokerStatsItem(grown, change.per_second(grown), grown / calls if calls else 0.0))
        return RemotingCommand.response(body=BrokerStatsData(*items).encode())

    def describe(self, context: RequestContext) -> RemotingCommand:
        """Handle DESCRIBE_BROKER: return the broker's names, addresses and store positions as JSON."""
        return RemotingCommand.response(body=orjson.dumps(described(self._figures)))

    def runtime(self, context: RequestContext) -> None:
        """Handle GET_BROKER_RUNTIME_INFO: return the figures that mqadmin brokerStatus shows."""

        def respond(table: dict[str, str]) -> RemotingCommand:
            return RemotingCommand.response(body=encode_kv_table(table))

        # The time of the first message may have to be read from the disk.
        self._reads.serve(context, lambda: runtime_table(self._figures), respond)

    def consume_queue(self, context: RequestContext) -> None:
        """Handle QUERY_CONSUME_QUEUE: respond with units of one queue from the requested index on.

        If the request names a consumer group, the response tells for each unit if the group's tag filter
        accepts it.
        """
        self._reads.when_caught_up(context, self._serve_consume_queue)

    def _serve_consume_queue(self, context: RequestContext) -> None:
        header: ConsumeQueueHeader = context.header
        self._reads.serve(
            context,
            lambda: self._consume_queue(header),
            lambda units: RemotingCommand.response(body=units.encode()),
            SEARCH_ATTEMPTS,
        )

    def _consume_queue(self, header: ConsumeQueueHeader) -> ConsumeQueueUnits:
        store, topic, queue_id = self._store, header.topic, header.queue_id
        first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not end:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        result = ConsumeQueueUnits(first, end)
        message_filter: MessageFilter | None = None
        if header.consumer_group:
            group = self._clients.group(header.consumer_group)
            subscription = group.subscriptions.get(topic) if group is not None else None
            if subscription is None:
                result.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                result.subscription = subscription_data(subscription)
                result.filter_data = "null"
                message_filter = filter_of(subscription)
        units = store.units(topic, queue_id, header.index, min(header.count, UNITS_MAX))
        if not units and header.count > 0:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"Index {header.index} of {queue_id}@{topic} is not exist!"
            )
        result.units = [
            ConsumeQueueData(
                unit.physical_offset,
                unit.size,
                unit.tags_code,
                message_filter is not None and message_filter.prefilter(unit.tags_code),
            )
            for unit in units
        ]
        return result

    def _tally(self, name: str, key: str) -> tuple[Tally | None, Callable[[Count], int]]:
        """Find a counter by RocketMQ's statistics name and key.

        The key is a topic, `topic@group` or the cluster name, depending on the statistics name.

        Returns:
            The counter, or None if it does not exist, and the function that reads its messages or bytes.
        """
        stats = self._stats
        table, _, kind = name.rpartition("_")
        amount = _size_bytes if kind == "SIZE" else _messages
        topic, _, group = key.partition("@")
        cluster = self._cluster
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


def _counted(context: DecodedRequest) -> Iterable[Target]:
    """Return the topic and the group of the key `topic`, `topic@group` or of the cluster's name."""
    header: BrokerStatsHeader = context.header
    if not header.stats_name.startswith("BROKER_"):
        topic, _, group = header.stats_key.partition("@")
        yield Target(Resource.TOPIC, topic, Action.GET)
        yield Target(Resource.GROUP, group, Action.GET)


def _messages(count: Count) -> int:
    return count.messages


def _size_bytes(count: Count) -> int:
    return count.size_bytes
