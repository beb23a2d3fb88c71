"""Requests that reset a group's offsets, or copy them to another group.

A reset moves a group to an offset, to a time or to the end of a queue. The broker performs it, as in
RocketMQ since 5.1 (`useServerSideResetOffset`). The reset is pending until the group's next pull of the
queue, which is redirected to the new offset (PULL_OFFSET_MOVED). Until then the broker ignores commits,
because their senders do not know of the reset. This works for clients in any language, and for members that
start later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from actors.broker.core.group.clients import Clients
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.table_names import OFFSET, RESET
from actors.transport.connection import Connection
from actors.transport.request import RequestContext, RequestRow, TopicCheck
from actors.transport.slices import Steps
from actors.wire.admin_headers import CloneGroupOffsetHeader, ResetOffsetHeader
from actors.wire.bodies.progress import encode_progress_offsets
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, each_of, on_group, on_topic
from store.common.logs import get_logger
from store.message.message_queue import MessageQueue
from store.message_store import MessageStore

_log = get_logger(__name__)

QUEUES_PER_STEP = 500
LOGGED_QUEUES_MAX = 20


class OffsetAdminRequests:
    """Request handler for INVOKE_BROKER_TO_RESET_OFFSET and CLONE_GROUP_OFFSET."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        wake: Callable[[str], None],
        may_read: TopicCheck,
    ) -> None:
        """Create the handler. `wake` completes all held pulls of a topic."""
        self._may_read = may_read
        self._broker_name = broker_name
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = clients
        self._wake = wake

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, update = RequestCode, Action.UPDATE
        row = partial(RequestRow, changes=(OFFSET, RESET))
        reset = each_of(on_group(update, "group"), on_topic(update))
        clone = each_of(
            on_group(Action.GET, "src_group"), on_group(update, "dest_group"), on_topic(Action.GET)
        )
        return (
            row(code.INVOKE_BROKER_TO_RESET_OFFSET, self.reset, ResetOffsetHeader, reset),
            row(code.CLONE_GROUP_OFFSET, self.clone, CloneGroupOffsetHeader, clone),
        )

    def reset(self, context: RequestContext) -> None:
        """Handle INVOKE_BROKER_TO_RESET_OFFSET: reset a group's offsets in a topic, and return them.

        The request selects one queue or all queues, and an offset, a timestamp in ms or the end.
        """
        context.spawn(self._reset(context.header))

    async def _reset(self, header: ResetOffsetHeader) -> RemotingCommand:
        queues = self._topics.get(header.topic).read_queue_nums
        if header.group not in self._groups.table.groups:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.group} does not exist",
            )
        await self._reads.caught_up()
        chosen = range(queues) if header.queue_id < 0 else [header.queue_id]
        self._offsets.check_room(header.group, header.topic)
        if header.queue_id >= queues and not self._store.max_offset(header.topic, header.queue_id):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {header.queue_id} of topic {header.topic!r} does not exist: its read queues are 0 to "
                f"{queues - 1}",
            )
        if not chosen:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"topic {header.topic!r} has no read queues to reset: raise its readQueueNums",
            )
        # Find all offsets before the first is set: reset all queues, or none.
        found = await self._reads.all_of(partial(self._target, header, queue_id) for queue_id in chosen)
        targets = dict(zip(chosen, found, strict=True))
        for number, (queue_id, offset) in enumerate(targets.items()):
            if number % QUEUES_PER_STEP == 0:
                await asyncio.sleep(0)
            self._offsets.reset(header.group, header.topic, queue_id, offset)
        self._wake(header.topic)
        logged = dict(islice(targets.items(), LOGGED_QUEUES_MAX))
        _log.info(
            "offsets_reset", group=header.group, topic=header.topic, queues=len(targets), offsets=logged
        )
        body = encode_progress_offsets(
            {MessageQueue(header.topic, self._broker_name, queue): at for queue, at in targets.items()}
        )
        return RemotingCommand.response(body=body)

    def clone(self, context: RequestContext) -> None:
        """Handle CLONE_GROUP_OFFSET: copy the committed offsets of one group to another.

        The request names one topic or none, which means all topics of the source group.
        """
        context.work(self._clone(context))

    def _clone(self, context: RequestContext) -> Steps:
        header: CloneGroupOffsetHeader = context.header
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            self._may_read(context, topic)  # the request need not name them
        for topic in topics:
            yield
            if self._topics.find(topic) is None:
                continue
            if not header.offline and not self._clients.may_consume(header.src_group, topic):
                continue
            offsets = self._offsets.of_group(header.src_group, topic)
            self._offsets.check_room(header.dest_group, topic)
            for number, (queue_id, offset) in enumerate(list(offsets.items()), 1):
                if number % QUEUES_PER_STEP == 0:
                    yield
                self._offsets.commit(header.dest_group, topic, queue_id, offset)
        return RemotingCommand.response()

    def _target(self, header: ResetOffsetHeader, queue_id: int) -> int:
        topic, offset = header.topic, header.offset
        end = self._store.max_offset(topic, queue_id)
        if header.queue_id >= 0 and offset is not None and offset != -1:
            first = self._store.min_offset(topic, queue_id)
            if not first <= offset <= end:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {offset} not in consume queue range [{first}-{end}]",
                )
            return offset
        if header.timestamp < 0:
            return end
        return self._store.offset_by_timestamp(topic, queue_id, header.timestamp)
