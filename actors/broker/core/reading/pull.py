"""Puller: returns the messages of a queue from an offset on, and holds pulls at the end of a queue.

    pull ──► dispatched? ──► read ──► messages ─────────────────────────────► response
                               └────► none ──► held in `WaitRegistry` ──► read again ──► response
                                        └── without a wait time ────────────► response

A held pull is read again when a matching message arrives or when its wait time ends (long polling). The
response contains slices of the memory-mapped CommitLog; only small messages are copied, into one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from actors.bounds import Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.compat.late_subscriptions import LateSubscriptions
from actors.broker.core.group.clients import Clients
from actors.broker.core.group.subscriptions import compile_filter, compile_in_steps, filter_of, takes_long
from actors.broker.core.loop.log_history import PastPositions
from actors.broker.core.loop.reads import SEARCH_ATTEMPTS, Reads
from actors.broker.core.loop.wait_registry import HeldRequest, WaitRegistry, suspend_ms
from actors.broker.core.metadata.consumer_offsets import ConsumerOffsets
from actors.broker.core.reading.queue_ends import EndResponses, not_found_response, offset_fields
from actors.broker.core.reading.queue_reader import Consumer, Queue, QueueReader, ReadLimits
from actors.broker.core.reading.replica_choice import ReplicaChoice
from actors.transport.connection import Connection
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import PullRecordsHeader
from actors.wire.hot_headers import PullMessageHeader
from actors.wire.raymq_requests import PULL_RECORDS_BYTES_MAX
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, each_of, on_group, on_topic
from store.lite.lite_index import lmq_name
from store.message.validate import lite_topic_of
from store.message_store import Arrival, GetMessageResult, GetMessageStatus

# Bits of a pull's sysFlag (RocketMQ PullSysFlag).
COMMIT_OFFSET = 0x1
SUSPEND = 0x2
SUBSCRIPTION = 0x4

SHORT_POLLING_MS = 1_000
"""The longest wait of a pull if `long_polling` is off: clients repeat a pull at once (RocketMQ's default)."""

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class PullRequest(HeldRequest[Arrival]):
    """One pull, which may be held. A broker may hold 50,000 pulls, so this object is kept small."""

    __slots__ = ("_puller", "consumer", "history", "limits", "offset", "wait_ms")

    key: Queue

    def __init__(
        self,
        puller: Puller,
        context: RequestContext,
        key: Queue,
        offset: int,
        limits: ReadLimits,
        consumer: Consumer,
        wait_ms: int,
        history: str = "",
    ) -> None:
        """Create a pull of the queue `key`, which is (topic, queue id), starting at `offset`.

        `history` is the epoch of the log that the client has named; empty if it is not the present one.
        """
        super().__init__(context, key)
        self._puller = puller
        self.offset = offset
        self.limits = limits
        self.consumer = consumer
        self.wait_ms = wait_ms
        self.history = history

    def is_satisfied(self, arrival: Arrival) -> bool:
        """Return True if the arrived messages may include one that the pull's filter accepts."""
        message_filter = self.consumer.message_filter
        return self.offset < arrival.max_offset and (
            message_filter.accepts_all or any(map(message_filter.prefilter, arrival.tags_codes))
        )

    def resume(self) -> None:
        """Read the queue again and respond, at the arrival of a message or at the end of the wait time."""
        self._puller.resume(self)


def response_of(found: GetMessageResult, offset: int) -> RemotingCommand:
    """Return the response to a pull at `offset`, with the messages as slices of the mapped CommitLog."""
    code = code_of(found, offset)
    remark = None if code == ResponseCode.SUCCESS else found.status.name
    return RemotingCommand.response(code, remark, offset_fields(found), parts=found.slices)


def code_of(found: GetMessageResult, offset: int) -> ResponseCode:
    """Return the response code for the result of a read at `offset` (RocketMQ PullMessageProcessor)."""
    code = _CODES.get(found.status)
    if code is not None:
        return code
    # The queue is empty or does not exist yet: its end is offset 0, and other offsets are out of range.
    return ResponseCode.PULL_NOT_FOUND if offset == 0 else ResponseCode.PULL_OFFSET_MOVED


class Puller:
    """Request handler for PULL_MESSAGE, LITE_PULL_MESSAGE and PULL_RECORDS."""

    def __init__(
        self,
        settings: BrokerSettings,
        reader: QueueReader,
        reads: Reads,
        ends: EndResponses,
        offsets: ConsumerOffsets,
        clients: Clients[Connection],
        held: WaitRegistry[Arrival],
        replicas: ReplicaChoice,
        past: PastPositions,
    ) -> None:
        """Create the handler.

        Args:
            settings: the limits of responses and of waits.
            reader: checks and reads the queues.
            reads: reads without waiting for the disk on the loop.
            ends: the responses to pulls at the ends of queues.
            offsets: the groups' positions; a pull may commit one.
            clients: the groups' subscriptions.
            held: the held requests.
            replicas: suggests the replica to read from, if slaves serve pulls.
            past: finds positions that consumers have from another past of the log.
        """
        self._settings = settings
        self._reader = reader
        self._reads = reads
        self._ends = ends
        self._offsets = offsets
        self._subscriptions = LateSubscriptions(clients, self.pull)
        self._clients = clients
        self._clients.on_subscription(self._complete_outdated_pulls)
        self._held = held
        self._replicas = replicas
        self._past = past

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (*self._subscriptions.bounds(), *self._ends.bounds())

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.READ)
        sub = each_of(on_topic(Action.SUB), on_group(Action.SUB))
        pull, cost = PullMessageHeader, Cost.PULL
        return (
            row(RequestCode.PULL_MESSAGE, self.pull, pull, sub, cost),
            row(RequestCode.LITE_PULL_MESSAGE, self.pull, pull, sub, cost),
            row(RayMQRequestCode.PULL_RECORDS, self.pull_records, PullRecordsHeader, sub, cost),
        )

    def pull(self, context: RequestContext) -> None:
        """Handle PULL_MESSAGE and LITE_PULL_MESSAGE: respond with messages, or hold the pull.

        The settings `pull_max_messages` and `pull_max_bytes` limit the response, as in RocketMQ. Raises
        Refused if the queue does not exist or is not readable, or if the group may not consume.
        """
        header: PullMessageHeader = context.header
        if takes_long(header.subscription, header.expression_type):
            context.work(self._compile(context, self.pull))
            return
        if header.lite_topic:
            header.topic, header.lite_topic = lmq_name(header.topic, header.lite_topic), None
        group = header.consumer_group
        self._reader.check_group(group, header.topic)
        self._reader.check_mode(group, header.topic)
        self._reader.check_queue(header.topic, header.queue_id)
        if header.sys_flag & SUBSCRIPTION:
            consumer = Consumer(group, compile_filter(header.subscription or "", header.expression_type))
        else:
            message_filter = self._subscriptions.filter_for(context)
            if message_filter is None:
                return
            consumer = Consumer(group, message_filter, is_subscribed=True)
        settings = self._settings
        wait_ms = suspend_ms(header.suspend_timeout_millis, settings.max_hold_ms)
        request = PullRequest(
            self,
            context,
            (header.topic, header.queue_id),
            header.queue_offset,
            ReadLimits(max(min(header.max_msg_nums, settings.pull_max_messages), 1), settings.pull_max_bytes),
            consumer,
            self._hold_ms(wait_ms, header.topic) if header.sys_flag & SUSPEND else 0,
        )
        if header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0:
            self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        self._respond_or_hold(request)

    def pull_records(self, context: RequestContext) -> None:
        """Handle PULL_RECORDS: respond with the records that fit into the requested bytes, or hold the pull.

        The format is in `raymq_requests`. Raises Refused for the same reasons as `pull`.
        """
        header: PullRecordsHeader = context.header
        if takes_long(header.subscription, header.expression_type):
            context.work(self._compile(context, self.pull_records))
            return
        group = header.consumer_group
        if group or header.commit_offset is not None:
            self._reader.check_group(group, header.topic)
        self._reader.check_mode(group, header.topic)
        self._reader.check_queue(header.topic, header.queue_id)
        if header.history is not None and self._past.must_check(header.history):
            self._reads.serve(context, lambda: self._checked(header), lambda found: found, SEARCH_ATTEMPTS)
            return
        message_filter = compile_filter(header.subscription, header.expression_type)
        if header.commit_offset is not None:
            self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset)
        request = PullRequest(
            self,
            context,
            (header.topic, header.queue_id),
            header.queue_offset,
            ReadLimits(max(header.max_messages, 1), max(min(header.max_bytes, PULL_RECORDS_BYTES_MAX), 1)),
            Consumer(group, message_filter),
            self._hold_ms(min(header.wait_ms, self._settings.max_hold_ms), header.topic),
            header.history if header.history and header.history == self._past.current else "",
        )
        self._respond_or_hold(request)

    def _checked(self, header: PullRecordsHeader) -> RemotingCommand:
        """Return the response to a pull of a consumer that has read in another epoch of the log.

        The consumer repeats the pull at once: at the same offset, or where its past of the log ended.
        """
        topic, queue_id, offset = header.topic, header.queue_id, header.queue_offset
        valid = self._past.valid(topic, queue_id, offset, header.history or "", header.consumer_group)
        moved, kept = GetMessageStatus.OFFSET_OVERFLOW_BADLY, GetMessageStatus.NO_MATCHED_MESSAGE
        found = self._reader.empty_result((topic, queue_id), moved if valid < offset else kept, valid)
        response = response_of(found, offset)
        response.ext["history"] = self._past.named(header.history or "")
        return response

    def _compile(self, context: RequestContext, handle: Callable[[RequestContext], None]) -> Steps:
        """Compile the filter of a pull, then call `handle` again."""
        header: PullMessageHeader | PullRecordsHeader = context.header
        yield from compile_in_steps(header.subscription or "", header.expression_type)
        handle(context)
        return None

    def resume(self, request: PullRequest) -> None:
        """Respond to a pull that was held. Its topic may have been deleted or made unreadable meanwhile."""
        context = request.context
        if context.connection.is_closed:
            return
        if context.connection.over_high_water:
            # The client does not read its responses: produce the next one when it has read enough of them.
            context.connection.when_drained(lambda _: self.resume(request))
            return
        try:
            if self._reader.is_at_end(request.key, request.offset):
                self._reader.check_queue(*request.key)
                self._respond_at_end(request)
            else:
                self._reads.admit(context.connection)
                self._reads.serve(
                    context,
                    lambda: self._read_again(request),
                    lambda found: self._response(request, found),
                )
        except Exception as error:  # noqa: BLE001 - the error goes to this pull's client, and other pulls continue
            context.refuse(error)

    def _hold_ms(self, wait_ms: int, topic: str) -> int:
        """Return how long to hold a pull; no arrival resumes that of a light message queue."""
        is_long = self._settings.long_polling and lite_topic_of(topic) is None
        return wait_ms if is_long else min(wait_ms, SHORT_POLLING_MS)

    def _respond_or_hold(self, request: PullRequest) -> None:
        if self._offsets.starting:
            self._offsets.note_start(request.consumer.group, *request.key, request.offset)
        if self._reader.can_read(request.key, request.offset):
            self._read_or_hold(request)
        else:
            self._reads.wait_for_dispatch(request.context, lambda _: self._read_or_hold(request))

    def _read_or_hold(self, request: PullRequest) -> None:
        if not self._reader.is_at_end(request.key, request.offset):
            self._reads.serve(
                request.context,
                lambda: self._read(request),
                lambda found: self._response_or_hold(request, found),
            )
            return
        group = request.consumer.group
        if group:
            topic, queue_id = request.key
            self._offsets.note_pull(group, topic, queue_id, request.offset)
        if request.wait_ms > 0:
            self._hold(request)
        else:
            self._respond_at_end(request)

    def _response_or_hold(self, request: PullRequest, found: GetMessageResult) -> RemotingCommand | None:
        response = self._response(request, found)
        if response.code != ResponseCode.PULL_NOT_FOUND or request.wait_ms <= 0:
            return response
        self._hold(request)
        return None

    def _hold(self, request: PullRequest) -> None:
        self._held.hold(request, request.wait_ms)
        request.context.release_request()
        request.context.was_held = True

    def _response(self, request: PullRequest, found: GetMessageResult) -> RemotingCommand:
        response = response_of(found, request.offset)
        if request.history and request.history != self._past.current:
            response.ext["history"] = self._past.current  # the leader has changed while the pull was held
        if self._settings.slave_read_enable:
            self._replicas.advise(response, found, request.consumer.group, request.offset)
        return response

    def _respond_at_end(self, request: PullRequest) -> None:
        if self._settings.slave_read_enable:
            status = GetMessageStatus.OFFSET_OVERFLOW_ONE
            found = self._reader.empty_result(request.key, status, request.offset)
            request.context.reply(self._response(request, found))
        else:
            request.context.reply(self._ends.response(*request.key, request.offset))

    def _read(self, request: PullRequest) -> GetMessageResult:
        return self._reader.read(request.key, request.offset, request.limits, request.consumer)

    def _read_again(self, request: PullRequest) -> GetMessageResult:
        self._reader.check_queue(*request.key)
        return self._read(request)

    def _complete_outdated_pulls(self, group_name: str) -> None:
        """Complete held pulls whose filter differs from the group's new subscription.

        The response has no messages and the same offset, so the client pulls again, with the new filter.
        """
        group = self._clients.group(group_name)
        assert group is not None, group_name  # its member's heartbeat is being handled

        def is_outdated(request: PullRequest) -> bool:
            consumer = request.consumer
            if not consumer.is_subscribed or consumer.group != group_name:
                return False
            subscription = group.subscriptions.get(request.key[0])
            try:
                return subscription is None or filter_of(subscription) != consumer.message_filter
            except Refused:
                return True

        for connection in group.connections():
            for request in self._held.of_connection(connection, PullRequest, is_outdated):
                status = GetMessageStatus.NO_MATCHED_MESSAGE
                found = self._reader.empty_result(request.key, status, request.offset)
                request.context.reply(not_found_response(found))
