"""Pulling: what a queue holds from an offset on, now or as soon as there is something.

A pull that finds nothing new and may wait is held (`hold`) and read again when its queue moves on, or at its
deadline. Records are handed to the socket as slices of the map; no body is copied here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actors.broker.broker_settings import BrokerSettings
from actors.broker.compat.late_subscriptions import LateSubscriptions, NotTold
from actors.broker.group.clients import Clients
from actors.broker.group.subscriptions import compile_filter, filter_of, require_tag_type
from actors.broker.loop.held_pulls import HeldPull, HeldPulls, deadline_of, shutting_down, wait_ms_of
from actors.broker.loop.reads import Reads
from actors.broker.metadata.tables import BrokerTables
from actors.broker.reading.queue_ends import QueueEnds, not_found, offsets_of
from actors.broker.stats import BrokerStats
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import PullRecordsHeader
from actors.remoting.hot_headers import PullMessageHeader
from actors.remoting.raymq_requests import PULL_RECORDS_BYTES_MAX
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import Action, Cost, RequestContext, Resource
from actors.remoting.table import RequestRow
from store.clock import Clock
from store.message_store import GetMessageResult, GetMessageStatus, MessageStore
from store.reading.message_filter import MessageFilter

COMMIT_OFFSET = 0x1
SUSPEND = 0x2
SUBSCRIPTION = 0x4

_WATCHED = "held_pulls_watch_close"

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullRequest(HeldPull):
    """What a pull asks for. 50,000 may be held, and this is all that is kept of one: as little as it can."""

    __slots__ = ("context", "group", "is_told", "max_bytes", "max_messages", "wait_ms")

    context: RequestContext
    """Set when the pull is held."""

    def __init__(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        wanted: MessageFilter,
        wait_ms: int,
        group: str = "",
        is_told: bool = False,
    ) -> None:
        """`is_told`: its tags are those that a heartbeat has told."""
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.wanted = wanted
        self.wait_ms = wait_ms
        self.group = group
        self.is_told = is_told

    def end(self) -> None:
        """The broker goes."""
        self.context.refuse(shutting_down())


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """What a pull found: RocketMQ's response code, and where to go on."""

    code: ResponseCode
    next_offset: int
    found: GetMessageResult


def outcome_of(found: GetMessageResult, offset: int) -> PullOutcome:
    """Translate a store's status into a pull's answer (RocketMQ PullMessageProcessor)."""
    code = _CODES.get(found.status)
    if code is None:
        # No such queue yet, or an empty one: at 0 that is an end like any other; elsewhere the offset is
        # wrong.
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return PullOutcome(code, found.next_begin_offset, found)


def answer_of(outcome: PullOutcome) -> RemotingCommand:
    """The answer to a pull."""
    found = outcome.found
    remark = None if outcome.code == ResponseCode.SUCCESS else found.status.name
    ext = offsets_of(found)
    ext["nextBeginOffset"] = str(outcome.next_offset)
    return RemotingCommand.response(outcome.code, remark, ext, parts=found.slices)


class Puller:
    """Answers pulls."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        held: HeldPulls,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._late = LateSubscriptions(clients, self.pull)
        self._clients = clients
        self._clients.on_subscription(self._let_go_of_other_tags)
        self._held = held
        self._stats = stats
        self._clock = clock
        self._ends = QueueEnds(store)
        self._resume_held = self._resume  # one bound method for all that wait

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        topic, sub, cost = Resource.TOPIC, Action.SUB, Cost.PULL
        return (
            RequestRow(RequestCode.PULL_MESSAGE, self.pull, PullMessageHeader, topic, sub, cost),
            RequestRow(RequestCode.LITE_PULL_MESSAGE, self.pull, PullMessageHeader, topic, sub, cost),
            RequestRow(RayMQRequestCode.PULL_RECORDS, self.pull_records, PullRecordsHeader, topic, sub, cost),
        )

    def pull(self, context: RequestContext) -> None:
        """PULL_MESSAGE and LITE_PULL_MESSAGE, within RocketMQ's limits of messages and bytes."""
        header: PullMessageHeader = context.header
        self._groups.for_consuming(header.consumer_group)
        self._check_queue(header.topic, header.queue_id)
        try:
            if header.sys_flag & SUBSCRIPTION:
                require_tag_type(header.expression_type)
                wanted = compile_filter(header.subscription or "")
            else:
                wanted = self._late.filter_for(header, context.connection)
        except NotTold as refusal:
            self._late.wait(context, refusal)
            return
        settings = self._settings
        may_wait = settings.long_polling and header.sys_flag & SUSPEND
        request = PullRequest(
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(min(header.max_msg_nums, settings.pull_max_messages), 1),
            settings.pull_max_bytes,
            wanted,
            wait_ms_of(header.suspend_timeout_millis, settings.max_hold_ms) if may_wait else 0,
            header.consumer_group,
            not header.sys_flag & SUBSCRIPTION,
        )
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        self._answer_or_hold(context, request)

    def pull_records(self, context: RequestContext) -> None:
        """PULL_RECORDS: as many records as fit into the bytes asked for (`raymq_requests`)."""
        header: PullRecordsHeader = context.header
        if header.consumer_group or header.commit_offset is not None:
            self._groups.for_consuming(header.consumer_group)
        self._check_queue(header.topic, header.queue_id)
        require_tag_type(header.expression_type)
        if header.commit_offset is not None and header.commit_offset >= 0:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        request = PullRequest(
            header.topic,
            header.queue_id,
            header.queue_offset,
            max(header.max_messages, 1),
            max(min(header.max_bytes, PULL_RECORDS_BYTES_MAX), 1),
            compile_filter(header.subscription),
            min(header.wait_ms, self._settings.max_hold_ms),
            header.consumer_group,
        )
        self._answer_or_hold(context, request)

    def _read_again(self, request: PullRequest) -> PullOutcome:
        """Read for a pull that has waited: its topic may be gone meanwhile, or not be readable any more."""
        self._check_queue(request.topic, request.queue_id)
        return self._read(request)

    def _read(self, request: PullRequest) -> PullOutcome:
        if self._offsets.resets and (moved := self._reset(request)) is not None:
            return moved
        found = self._store.get_message(
            request.topic,
            request.queue_id,
            request.offset,
            request.max_messages,
            request.max_bytes,
            request.wanted,
        )
        group, topic = request.group, request.topic
        self._stats.got(group, topic, found.message_count, found.size_bytes)
        outcome = outcome_of(found, request.offset)
        if group:
            self._offsets.pulled[topic, group, request.queue_id] = outcome.next_offset
        return outcome

    def _reset(self, request: PullRequest) -> PullOutcome | None:
        """What to answer where an administrator has set the group's offset since its last pull."""
        offset = self._offsets.take_reset(request.group, request.topic, request.queue_id)
        if offset is None or offset == request.offset:
            return None
        first = self._store.min_offset(request.topic, request.queue_id)
        end = self._store.max_offset(request.topic, request.queue_id)
        return PullOutcome(
            ResponseCode.PULL_OFFSET_MOVED,
            offset,
            GetMessageResult(GetMessageStatus.OFFSET_RESET, offset, first, end),
        )

    def _answer_or_hold(self, context: RequestContext, request: PullRequest) -> None:
        if self._can_read(request):
            self._read_or_hold(context, request)
        else:
            self._reads.wait_for_dispatch(context, lambda _: self._read_or_hold(context, request))

    def _can_read(self, request: PullRequest) -> bool:
        """Return True if a pull need not wait for dispatch.

        It waits only where it would find nothing. What can be read already is read, however far dispatch is
        behind in other queues, and also while dispatch fails (a full disk).
        """
        store, topic, queue_id, offset = self._store, request.topic, request.queue_id, request.offset
        return (
            store.is_at_end(topic, queue_id, offset)
            or self._reads.catch_up()
            or offset < store.max_offset(topic, queue_id)
        )

    def _read_or_hold(self, context: RequestContext, request: PullRequest) -> None:
        if not self._is_at_end(request):
            self._reads.serve(
                context,
                lambda: self._read(request),
                lambda outcome: self._answer_of_or_hold(context, request, outcome),
            )
            return
        if request.group:
            self._offsets.pulled[request.topic, request.group, request.queue_id] = request.offset
        if request.wait_ms > 0:
            self._hold(context, request)
        else:
            self._answer_end(context, request)

    def _answer_end(self, context: RequestContext, request: PullRequest) -> None:
        context.reply(self._ends.answer(request.topic, request.queue_id, request.offset))

    def _answer_of_or_hold(
        self, context: RequestContext, request: PullRequest, outcome: PullOutcome
    ) -> RemotingCommand | None:
        if outcome.code != ResponseCode.PULL_NOT_FOUND or request.wait_ms <= 0:
            return answer_of(outcome)
        self._hold(context, request)
        return None

    def _is_at_end(self, request: PullRequest) -> bool:
        """Return True if no message is dispatched from the offset on, so that a read may be spared."""
        if self._offsets.resets or self._store.max_offset(request.topic, request.queue_id) != request.offset:
            return False
        self._stats.gets_missed += 1
        return True

    def _hold(self, context: RequestContext, request: PullRequest) -> None:
        connection = context.connection
        request.context = context
        request.owner = connection
        request.deadline_ns = deadline_of(self._clock.monotonic_ns(), request.wait_ms)
        request.on_resume = self._resume_held
        self._held.hold(request)
        context.let_go_of_request()
        if _WATCHED not in connection.attributes.extra:
            connection.attributes.extra[_WATCHED] = True
            connection.on_close(self._held.forget)

    def _let_go_of_other_tags(self, group_name: str) -> None:
        """End the wait of pulls for tags that their group wants no longer: who is told that there is nothing
        comes again, with what it subscribes to now, and at the same offset.
        """
        group = self._clients.group(group_name)
        assert group is not None, group_name  # one of its members has just told it

        def waits_for_other_tags(pull: HeldPull) -> bool:
            assert isinstance(pull, PullRequest)
            if not pull.is_told or pull.group != group_name:
                return False
            subscription = group.subscriptions.get(pull.topic)
            try:
                return subscription is None or filter_of(subscription) != pull.wanted
            except Refused:
                return True

        for member in group.members.values():
            for pull in self._held.of_owner(member.connection, waits_for_other_tags):
                assert isinstance(pull, PullRequest)
                if not member.connection.is_closed:
                    pull.context.reply(not_found(self._nothing_at(pull)))

    def _nothing_at(self, request: PullRequest) -> GetMessageResult:
        first = self._store.min_offset(request.topic, request.queue_id)
        end = self._store.max_offset(request.topic, request.queue_id)
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, request.offset, first, end)

    def _resume(self, pull: HeldPull) -> None:
        assert isinstance(pull, PullRequest)
        context = pull.context
        if context.connection.is_closed:
            return
        if context.connection.over_high_water:
            # Its peer is behind: nothing more is produced for it until it has caught up.
            context.connection.when_drained(lambda _: self._resume(pull))
            return
        try:
            if self._is_at_end(pull):
                self._check_queue(pull.topic, pull.queue_id)
                self._answer_end(context, pull)
            else:
                self._reads.admit(context.connection)
                self._reads.serve(context, lambda: self._read_again(pull), answer_of)
        except Exception as error:  # noqa: BLE001 - one pull's damage is its own answer, and ends no other's
            context.refuse(error)

    def _check_queue(self, topic_name: str, queue_id: int) -> None:
        topic = self._topics.for_pulling(topic_name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic_name!r} cannot be read: "
                f"it has queues 0 to {topic.read_queue_nums - 1}",
            )
