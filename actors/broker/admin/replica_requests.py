"""Requests that slaves send to a master for its config tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import orjson

from actors.broker.core.metadata.tables import BrokerTables
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import MasterFlushOffsetHeader
from actors.wire.bodies.queue_ends import QueueEnds
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.targets import Action, on_cluster
from store.message_store import MessageStore


class ReplicaRequests:
    """Handles the requests of RocketMQ's slaves; GET_ALL_GENERATIONS and others of RayMQ's."""

    def __init__(
        self,
        store: MessageStore,
        tables: BrokerTables,
        versions: Callable[[], dict[int, int]],
    ) -> None:
        """Create the handler; `versions` returns the version of each table that slaves copy at once."""
        self._store = store
        self._tables = tables
        self._versions = versions

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.SERVED)
        code, get, update = RequestCode, on_cluster(Action.GET), on_cluster(Action.UPDATE)
        return (
            row(code.GET_ALL_CONSUMER_OFFSET, self.consumer_offsets, None, get),
            row(code.GET_ALL_DELAY_OFFSET, self.delay_offsets, None, get),
            row(code.RESET_MASTER_FLUSH_OFFSET, self.reset_flush_offset, MasterFlushOffsetHeader, update),
            row(RayMQRequestCode.GET_ALL_GENERATIONS, self.generations, None, get),
            row(RayMQRequestCode.GET_TABLE_VERSIONS, self.versions, None, get),
            row(RayMQRequestCode.GET_QUEUE_ENDS, self.queue_ends, None, get),
        )

    def consumer_offsets(self, context: RequestContext) -> None:
        """Handle GET_ALL_CONSUMER_OFFSET: return the content of `consumerOffset.json`."""
        context.spawn(_response(self._tables.offsets.table.to_pieces()))

    def generations(self, context: RequestContext) -> None:
        """Handle GET_ALL_GENERATIONS: return the content of `raymqGenerations.json`."""
        context.spawn(_response(self._tables.generation_pieces()))

    def versions(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_TABLE_VERSIONS: return a number for each table that increases with its changes."""
        body = orjson.dumps({str(int(code)): number for code, number in self._versions().items()})
        return RemotingCommand.response(body=body)

    def queue_ends(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_QUEUE_ENDS: return the ends of queues of which the log has no record."""
        ends = QueueEnds(self._store.positions.dispatched, self._store.retention.ended_queues())
        return RemotingCommand.response(body=ends.encode())

    def delay_offsets(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_ALL_DELAY_OFFSET: return the content of `delayOffset.json`."""
        return RemotingCommand.response(body=orjson.dumps(self._tables.delay_offsets.to_json()))

    def reset_flush_offset(self, context: RequestContext) -> RemotingCommand:
        """Handle RESET_MASTER_FLUSH_OFFSET: accept and ignore it, as RocketMQ's masters do."""
        return RemotingCommand.response()


async def _response(pieces: Iterator[bytes]) -> RemotingCommand:
    text = bytearray()
    for piece in pieces:
        text += piece
        await asyncio.sleep(0)
    return RemotingCommand.response(body=bytes(text))
