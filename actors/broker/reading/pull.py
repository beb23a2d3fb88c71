"""Puller: reads the messages of a queue from an offset on, now or as soon as there are any.

    pull ──► dispatched? ──► read ──► found ─────────────────────────────► response
                               └────► nothing ──► held (`WaitRegistry`) ──► read again ──► response
                                          └─ if it may not wait ──────────► response

Records are handed to the socket as slices of the mapped log; no body is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from actors.broker.broker_settings import BrokerSettings
from actors.broker.compat.late_subscriptions import LateSubscriptions
from actors.broker.group.clients import Clients
from actors.broker.group.subscriptions import compile_filter, filter_of, require_tag_type
from actors.broker.loop.reads import Reads
from actors.broker.loop.wait_registry import HeldRequest, WaitRegistry, suspend_ms
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
from actors.remoting.request import Cost, RequestContext, RequestRow
from actors.remoting.targets import Action, each_of, on_group, on_topic
from store.message_store import Arrival, GetMessageResult, GetMessageStatus, MessageStore
from store.reading.message_filter import MessageFilter

COMMIT_OFFSET = 0x1
SUSPEND = 0x2
SUBSCRIPTION = 0x4

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class Consumer(NamedTuple):
    """What a pull is for."""

    group: str
    wanted: MessageFilter
    is_subscribed: bool = False
    """Whether `wanted` is what the group's heartbeats have subscribed to, and not of the pull itself."""


class ReadLimits(NamedTuple):
    """How much a pull gets at most."""

    max_messages: int
    max_bytes: int


class PullRequest(HeldRequest[Arrival]):
    """One pull. A broker may hold 50,000, so it is as small as possible."""

    __slots__ = ("_puller", "consumer", "limits", "offset", "wait_ms")

    def __init__(
        self,
        puller: Puller,
        context: RequestContext,
        key: tuple[str, int],
        offset: int,
        limits: ReadLimits,
        consumer: Consumer,
        wait_ms: int,
    ) -> None:
        """`key` is the queue: topic and queue id."""
        super().__init__(context, key)
        self._puller = puller
        self.offset = offset
        self.limits = limits
        self.consumer = consumer
        self.wait_ms = wait_ms

    def is_satisfied(self, arrival: Arrival) -> bool:
        """Return True if the queue may have got a message that is wanted."""
        wanted = self.consumer.wanted
        return self.offset < arrival.max_offset and (
            wanted.accepts_all or any(map(wanted.prefilter, arrival.tags_codes))
        )

    def resume(self) -> None:
        """Read again, or respond that there is nothing."""
        self._puller.resume(self)


@dataclass(frozen=True, slots=True)
class PullOutcome:
    """What a pull found: RocketMQ's response code, and the offset of the next pull."""

    code: ResponseCode
    next_offset: int
    found: GetMessageResult


def outcome_of(found: GetMessageResult, offset: int) -> PullOutcome:
    """Translate the store's status into a pull's response code (RocketMQ PullMessageProcessor)."""
    code = _CODES.get(found.status)
    if code is None:
        # No such queue yet, or an empty one: 0 is its end, and any other offset is wrong.
        code = ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED
    return PullOutcome(code, found.next_begin_offset, found)


def response_of(outcome: PullOutcome) -> RemotingCommand:
    """Return the response to a pull."""
    found = outcome.found
    remark = None if outcome.code == ResponseCode.SUCCESS else found.status.name
    ext = offsets_of(found)
    ext["nextBeginOffset"] = str(outcome.next_offset)
    return RemotingCommand.response(outcome.code, remark, ext, parts=found.slices)


class Puller:
    """Handles PULL_MESSAGE, LITE_PULL_MESSAGE and PULL_RECORDS."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reads: Reads,
        tables: BrokerTables,
        clients: Clients[Connection],
        held: WaitRegistry[Arrival],
        stats: BrokerStats,
    ) -> None:
        self._settings = settings
        self._store = store
        self._reads = reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._subscriptions = LateSubscriptions(clients, self.pull)
        self._clients = clients
        self._clients.on_subscription(self._end_outdated_waits)
        self._held = held
        self._stats = stats
        self._ends = QueueEnds(store)

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        sub = each_of(on_topic(Action.SUB), on_group(Action.SUB))
        pull, cost = PullMessageHeader, Cost.PULL
        return (
            RequestRow(RequestCode.PULL_MESSAGE, self.pull, pull, sub, cost),
            RequestRow(RequestCode.LITE_PULL_MESSAGE, self.pull, pull, sub, cost),
            RequestRow(RayMQRequestCode.PULL_RECORDS, self.pull_records, PullRecordsHeader, sub, cost),
        )

    def pull(self, context: RequestContext) -> None:
        """PULL_MESSAGE and LITE_PULL_MESSAGE, within RocketMQ's limits of messages and bytes."""
        header: PullMessageHeader = context.header
        group = header.consumer_group
        self._groups.for_consuming(group)
        self._check_queue(header.topic, header.queue_id)
        if header.sys_flag & SUBSCRIPTION:
            require_tag_type(header.expression_type)
            consumer = Consumer(group, compile_filter(header.subscription or ""))
        else:
            wanted = self._subscriptions.filter_for(context)
            if wanted is None:
                return
            consumer = Consumer(group, wanted, is_subscribed=True)
        settings = self._settings
        may_wait = settings.long_polling and header.sys_flag & SUSPEND
        request = PullRequest(
            self,
            context,
            (header.topic, header.queue_id),
            header.queue_offset,
            ReadLimits(max(min(header.max_msg_nums, settings.pull_max_messages), 1), settings.pull_max_bytes),
            consumer,
            suspend_ms(header.suspend_timeout_millis, settings.max_hold_ms) if may_wait else 0,
        )
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        self._respond_or_hold(request)

    def pull_records(self, context: RequestContext) -> None:
        """PULL_RECORDS: as many records as fit into the requested bytes (`raymq_requests`)."""
        header: PullRecordsHeader = context.header
        group = header.consumer_group
        if group or header.commit_offset is not None:
            self._groups.for_consuming(group)
        self._check_queue(header.topic, header.queue_id)
        require_tag_type(header.expression_type)
        if header.commit_offset is not None and header.commit_offset >= 0:
            self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        request = PullRequest(
            self,
            context,
            (header.topic, header.queue_id),
            header.queue_offset,
            ReadLimits(max(header.max_messages, 1), max(min(header.max_bytes, PULL_RECORDS_BYTES_MAX), 1)),
            Consumer(group, compile_filter(header.subscription)),
            min(header.wait_ms, self._settings.max_hold_ms),
        )
        self._respond_or_hold(request)

    def resume(self, request: PullRequest) -> None:
        """Respond to a pull that was held: its topic may be gone meanwhile, or not readable any more."""
        context = request.context
        if context.connection.is_closed:
            return
        if context.connection.over_high_water:
            # The peer is behind: no response is produced for it before it has caught up.
            context.connection.when_drained(lambda _: self.resume(request))
            return
        try:
            if self._is_at_end(request):
                self._check_queue(*request.key)
                self._respond_at_end(request)
            else:
                self._reads.admit(context.connection)
                self._reads.serve(context, lambda: self._read_again(request), response_of)
        except Exception as error:  # noqa: BLE001 - a failed pull gets its error, and ends no other
            context.refuse(error)

    def _respond_or_hold(self, request: PullRequest) -> None:
        if self._can_read(request):
            self._read_or_hold(request)
        else:
            self._reads.wait_for_dispatch(request.context, lambda _: self._read_or_hold(request))

    def _can_read(self, request: PullRequest) -> bool:
        """Return True if a pull need not wait for dispatch.

        It waits only where it would find nothing. What can be read already is read, however far dispatch is
        behind in other queues, and also while dispatch fails (a full disk).
        """
        store, offset = self._store, request.offset
        return (
            store.is_at_end(*request.key, offset)
            or self._reads.catch_up()
            or offset < store.max_offset(*request.key)
        )

    def _read_or_hold(self, request: PullRequest) -> None:
        if not self._is_at_end(request):
            self._reads.serve(
                request.context,
                lambda: self._read(request),
                lambda outcome: self._response_or_hold(request, outcome),
            )
            return
        group = request.consumer.group
        if group:
            topic, queue_id = request.key
            self._offsets.pulled[topic, group, queue_id] = request.offset
        if request.wait_ms > 0:
            self._hold(request)
        else:
            self._respond_at_end(request)

    def _response_or_hold(self, request: PullRequest, outcome: PullOutcome) -> RemotingCommand | None:
        if outcome.code != ResponseCode.PULL_NOT_FOUND or request.wait_ms <= 0:
            return response_of(outcome)
        self._hold(request)
        return None

    def _hold(self, request: PullRequest) -> None:
        self._held.hold(request, request.wait_ms)
        request.context.release_request()

    def _is_at_end(self, request: PullRequest) -> bool:
        """Return True if no message is dispatched from the offset on, so that a read may be spared."""
        if self._offsets.resets or self._store.max_offset(*request.key) != request.offset:
            return False
        self._stats.gets_missed += 1
        return True

    def _respond_at_end(self, request: PullRequest) -> None:
        request.context.reply(self._ends.response(*request.key, request.offset))

    def _read_again(self, request: PullRequest) -> PullOutcome:
        self._check_queue(*request.key)
        return self._read(request)

    def _read(self, request: PullRequest) -> PullOutcome:
        if self._offsets.resets and (moved := self._reset(request)) is not None:
            return moved
        topic, queue_id = request.key
        group = request.consumer.group
        found = self._store.get_message(
            topic, queue_id, request.offset, *request.limits, request.consumer.wanted
        )
        self._stats.got(group, topic, found.message_count, found.size_bytes)
        outcome = outcome_of(found, request.offset)
        if group:
            self._offsets.pulled[topic, group, queue_id] = outcome.next_offset
        return outcome

    def _reset(self, request: PullRequest) -> PullOutcome | None:
        """Return the outcome if an administrator has set the group's offset since its last pull."""
        offset = self._offsets.take_reset(request.consumer.group, *request.key)
        if offset is None or offset == request.offset:
            return None
        found = self._nothing(request.key, GetMessageStatus.OFFSET_RESET, offset)
        return PullOutcome(ResponseCode.PULL_OFFSET_MOVED, offset, found)

    def _nothing(self, key: tuple[str, int], status: GetMessageStatus, offset: int) -> GetMessageResult:
        store = self._store
        return GetMessageResult(status, offset, store.min_offset(*key), store.max_offset(*key))

    def _end_outdated_waits(self, group_name: str) -> None:
        """End the waits of pulls with another filter than their group subscribes to now.

        The response says that there is nothing, so the client pulls again at the same offset, and gets what
        the new filter accepts.
        """
        group = self._clients.group(group_name)
        assert group is not None, group_name  # the heartbeat of a member is being handled

        def is_outdated(request: HeldRequest[Arrival]) -> bool:
            assert isinstance(request, PullRequest)
            consumer = request.consumer
            if not consumer.is_subscribed or consumer.group != group_name:
                return False
            subscription = group.subscriptions.get(request.key[0])
            try:
                return subscription is None or filter_of(subscription) != consumer.wanted
            except Refused:
                return True

        for member in group.members.values():
            for request in self._held.of_connection(member.connection, is_outdated):
                assert isinstance(request, PullRequest)
                status = GetMessageStatus.NO_MATCHED_MESSAGE
                request.context.reply(not_found(self._nothing(request.key, status, request.offset)))

    def _check_queue(self, topic_name: str, queue_id: int) -> None:
        topic = self._topics.for_pulling(topic_name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queue {queue_id} of topic {topic_name!r} cannot be read: "
                f"it has queues 0 to {topic.read_queue_nums - 1}",
            )
