"""Requests that query and commit consumer offsets."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.loop.log_history import PastPositions
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.tables import BrokerTables
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import OffsetResponse, QueryConsumerOffsetHeader, UpdateConsumerOffsetHeader
from actors.wire.raymq_requests import CommitOffsetsBody, CommitOffsetsReply, RefusedCommit
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, each_of, on_group, on_topic
from store.message.validate import lite_topic_of
from store.message_store import MessageStore

COMMITS_PER_STEP = 200


class OffsetRequests:
    """Request handler for QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET and COMMIT_OFFSETS."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        progress: GroupProgress,
        past: PastPositions,
    ) -> None:
        self._reads = reads
        self._settings = settings
        self._store = store
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._progress = progress
        self._past = past

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.OFFSETS)
        commit = partial(row, is_ack=True)
        code, cost = RequestCode, Cost.CLIENT
        both = each_of(on_group(Action.SUB), on_topic(Action.SUB))
        return (
            row(code.QUERY_CONSUMER_OFFSET, self.query, QueryConsumerOffsetHeader, both, cost),
            commit(code.UPDATE_CONSUMER_OFFSET, self.update, UpdateConsumerOffsetHeader, both, cost),
            commit(RayMQRequestCode.COMMIT_OFFSETS, self.commit_all, None, _committed, cost),
        )

    def query(self, context: RequestContext) -> RemotingCommand | None:
        """Handle QUERY_CONSUMER_OFFSET: return the committed offset of a queue.

        Raises Refused (QUERY_NOT_FOUND) without one; the client then chooses where to start. A RayMQ client
        sends the generation of its assignment in the field `generation`, which fences the former owner of the
        queue: its commits are refused from now on.
        """
        header: QueryConsumerOffsetHeader = context.header
        if header.generation:
            self._claim(header, header.generation)
        if (
            self._settings.consume_new_topics_from_start
            and header.set_zero_if_not_found is not False
            and self._offsets.query(header.consumer_group, header.topic, header.queue_id) is None
        ):
            return self._reads.when_caught_up(context, self._query)
        return self._query(context)

    def _claim(self, header: QueryConsumerOffsetHeader, generation: int) -> None:
        """Fence the former owner of a queue. Does nothing for a queue that does not exist."""
        if self._has_queue(header.topic, header.queue_id):
            self._groups.get(header.consumer_group)
            self._offsets.check_room(header.consumer_group, header.topic)
            self._offsets.claim(header.consumer_group, header.topic, header.queue_id, generation)

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        found = self._topics.find(topic)
        if found is None:
            return False
        count = 0 if lite_topic_of(topic) else max(found.read_queue_nums, found.write_queue_nums)
        return 0 <= queue_id < count or self._store.max_offset(topic, queue_id) > 0

    def _check(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Raise Refused unless `offset` may be committed: each queue that does not exist would be kept."""
        self._offsets.check_room(group, topic)
        if offset < 0:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"cannot commit the negative offset {offset} for queue {queue_id} of topic {topic!r}",
            )
        if not self._has_queue(topic, queue_id):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"cannot commit an offset for queue {queue_id} of topic {topic!r}: there is no such queue",
            )

    def _query(self, context: RequestContext) -> RemotingCommand:
        header: QueryConsumerOffsetHeader = context.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offset = self._offsets.query(group, topic, queue_id)
        if offset is None and group in self._groups.table.groups and self._has_queue(topic, queue_id):
            self._offsets.starting[topic, group, queue_id] = None
        if (
            offset is None
            and header.set_zero_if_not_found is not False
            and self._progress.is_young(topic, queue_id)
        ):
            offset = 0
        if offset is None:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"group {group!r} has no committed offset for queue {queue_id} "
                f"of topic {topic!r}: the client chooses where to start",
            )
        return RemotingCommand.response(ext=OffsetResponse(offset).to_ext())

    def update(self, context: RequestContext) -> RemotingCommand:
        """Handle UPDATE_CONSUMER_OFFSET: commit the offset of one queue.

        As in RocketMQ, the offset may decrease, and a commit does not create a group. Raises Refused if the
        group or the topic does not exist, or if the offset is negative.
        """
        header: UpdateConsumerOffsetHeader = context.header
        if header.consumer_group not in self._groups.table.groups:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!"
            )
        if self._topics.find(header.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        self._check(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if (header.topic, header.consumer_group, header.queue_id) in self._offsets.resets:
            return RemotingCommand.response(remark="Offset has been previously reset")
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response()

    def commit_all(self, context: RequestContext) -> None:
        """Handle COMMIT_OFFSETS: commit the offsets of several queues, each with its generation.

        The response lists the commits that were refused because their generation is out of date. The format
        is in `raymq_requests`. Raises Refused if a topic does not exist or a number is out of range. The
        other offsets are committed all the same, as with RocketMQ's clients, which send each in a request of
        its own: a topic that was deleted must not undo the progress in others.
        """
        context.work(self._commit_all(context))

    def _commit_all(self, context: RequestContext) -> Steps:
        body = CommitOffsetsBody.decode(context.command.body)
        self._groups.get(body.group)
        yield
        refused: list[RefusedCommit] = []
        invalid: Refused | None = None
        for number, commit in enumerate(body.offsets):
            if number % COMMITS_PER_STEP == 0:
                yield
            try:
                self._topics.get(commit.topic)
                self._check(body.group, commit.topic, commit.queue_id, commit.offset)
                if commit.history and self._past.must_check(commit.history):
                    commit.offset = self._past.valid(
                        commit.topic, commit.queue_id, commit.offset, commit.history, body.group
                    )
                refused += self._offsets.commit_fenced(body.group, [commit])
            except Refused as error:
                invalid = invalid or error
        if invalid is not None:
            raise invalid
        return RemotingCommand.response(body=CommitOffsetsReply(refused).encode())


def _committed(context: DecodedRequest) -> Iterable[Target]:
    body = CommitOffsetsBody.decode(context.command.body)
    yield Target(Resource.GROUP, body.group, Action.SUB)
    for topic in sorted({commit.topic for commit in body.offsets}):
        yield Target(Resource.TOPIC, topic, Action.SUB)
