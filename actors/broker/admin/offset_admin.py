"""Moving a group's offsets by hand: reset to a time, an offset or the end, and copying them to another group.

A reset is the broker's own affair, as in RocketMQ since 5.1 (`useServerSideResetOffset`): it stands until the
group's next pull of the queue, which is told to go on from there (PULL_OFFSET_MOVED); commits that come
before that are of the time before, and are passed over. So it reaches members in any language, and those that
start later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from actors.broker.group.clients import Clients
from actors.broker.loop.reads import Reads
from actors.broker.metadata.tables import BrokerTables
from actors.remoting.admin_headers import CloneGroupOffsetHeader, ResetOffsetHeader
from actors.remoting.bodies.progress import encode_offsets
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Action, Cost, RequestContext, Resource
from actors.remoting.table import RequestRow
from store.logs import get_logger
from store.message.message_queue import MessageQueue
from store.message_store import MessageStore

_log = get_logger(__name__)


class OffsetAdmin:
    """Answers INVOKE_BROKER_TO_RESET_OFFSET and CLONE_GROUP_OFFSET."""

    def __init__(
        self,
        broker_name: str,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        wake: Callable[[str], None],
    ) -> None:
        """`wake` ends the waits of the pulls of a topic."""
        self._broker_name = broker_name
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = clients
        self._wake = wake

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, group, update, cost = RequestCode, Resource.GROUP, Action.UPDATE, Cost.ADMIN
        clone = CloneGroupOffsetHeader
        return (
            RequestRow(
                code.INVOKE_BROKER_TO_RESET_OFFSET, self.reset, ResetOffsetHeader, group, update, cost
            ),
            RequestRow(code.CLONE_GROUP_OFFSET, self.clone, clone, group, update, cost),
        )

    def reset(self, context: RequestContext) -> None:
        """INVOKE_BROKER_TO_RESET_OFFSET; the answer says where the group goes on in each queue."""
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
        if not chosen:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic {header.topic!r} has no queues to reset")
        # All of them are found before the first is set: nothing is reset by halves.
        targets = {
            queue_id: await self._reads.read(partial(self._target, header, queue_id)) for queue_id in chosen
        }
        for queue_id, offset in targets.items():
            self._offsets.reset(header.group, header.topic, queue_id, offset)
        self._wake(header.topic)
        _log.info("offsets_reset", group=header.group, topic=header.topic, offsets=targets)
        body = encode_offsets(
            {MessageQueue(header.topic, self._broker_name, queue): at for queue, at in targets.items()}
        )
        return RemotingCommand.response(body=body)

    def clone(self, context: RequestContext) -> RemotingCommand:
        """CLONE_GROUP_OFFSET: the offsets of one group become another's."""
        header: CloneGroupOffsetHeader = context.header
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            if self._topics.find(topic) is None:
                continue
            if not header.offline and not self._clients.may_consume(header.src_group, topic):
                continue
            for queue_id, offset in self._offsets.of_group(header.src_group, topic).items():
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
