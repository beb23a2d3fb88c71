"""LitePops: the requests POP_LITE_MESSAGE and LITE_SUBSCRIPTION_CTL, and the acks of lite messages.

pop ──► messages of the client's lite topics ──► response, one batch per lite topic in flight
  └───► none ──► held by client ──event──► pop again
                   └──pollTime is over──► POLLING_TIMEOUT
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.reads import Reads
from actors.broker.core.reading.queue_reader import QueueReader, ReadLimits
from actors.broker.features.lite.lite_groups import LiteGroups
from actors.broker.features.lite.lite_orders import (
    FoundMessages,
    LiteTopics,
    OffsetOption,
    Start,
    lite_queue,
)
from actors.broker.features.lite.lite_sessions import LiteSessions, Sync
from actors.broker.features.lite.subscriptions import LiteClient
from actors.broker.features.pop.claims import check_invisible_ms
from actors.broker.features.pop.waiting import TimedRequest, WaitingPops
from actors.transport.connection import Connection
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.wire.bodies.lite import (
    PopLiteHeader,
    PopLiteResponse,
    SyncAction,
    SyncEntry,
    UnsubscribeLiteHeader,
    decode_sync,
)
from actors.wire.bodies.pops import AckMessageHeader, ChangeInvisibleTimeHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, each_of, on_group, on_topic
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.pop_records import MESSAGES_MAX, ORDER_REVIVE_QUEUE, Receipt
from store.message_store import Arrival, GetMessageStatus, MessageStore
from store.store_errors import StoreError

_log = get_logger(__name__)

_POLICIES = {0: None, 1: OffsetOption(Start.MIN), 2: OffsetOption(Start.MAX)}


class LitePop(TimedRequest):
    """A pop of a lite client, which may be held until one of its lite topics has a message."""

    __slots__ = ("handler", "header")

    def __init__(
        self, context: RequestContext, handler: LitePops, header: PopLiteHeader, clock: Clock, wait_ms: int
    ) -> None:
        super().__init__(
            context, wait_key(header.topic, header.consumer_group, header.client_id), clock, wait_ms
        )
        self.handler = handler
        self.header = header

    def is_satisfied(self, arrival: Arrival) -> bool:
        """Return False: an event resumes the pop, not the arrival in a queue of the topic."""
        return False

    def resume(self) -> None:
        """Handle the request again, at an event or at its deadline."""
        self.handler.resume(self)


def wait_key(topic: str, group: str, client_id: str) -> tuple[str, tuple[str, str]]:
    """Return the key under which the pops of a client are held."""
    return topic, (group, client_id)


class FoundRecords(NamedTuple):
    """What a pop has found, with the records."""

    client: LiteClient | None
    messages: Sequence[FoundMessages]
    records: Sequence[memoryview]


class LitePops:
    """Request handler for the clients of lite groups."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: MessageStore,
        reader: QueueReader,
        reads: Reads,
        groups: LiteGroups,
        topics: LiteTopics,
        sessions: LiteSessions,
        waits: WaitingPops,
        clock: Clock,
    ) -> None:
        """Create the handler, which refuses pops until `start`."""
        self._settings = settings
        self._store = store
        self._reader = reader
        self._reads = reads
        self._groups = groups
        self._topics = topics
        self._sessions = sessions
        self._waits = waits
        self._clock = clock
        self._is_serving = False

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode
        sub = each_of(on_group(Action.SUB), on_topic(Action.SUB))
        row = partial(RequestRow, needs_services=True)
        return (
            row(code.POP_LITE_MESSAGE, self.pop, PopLiteHeader, sub, Cost.PULL),
            row(code.LITE_SUBSCRIPTION_CTL, self.sync, None, _sync_targets, Cost.CLIENT, is_ack=True),
        )

    async def start(self) -> None:
        """Accept pops from now on."""
        self._is_serving = True

    async def stop(self) -> None:
        """Refuse pops from now on, and forget the clients: another replica may serve them."""
        self._is_serving = False
        self._sessions.clear()

    def sync(self, context: RequestContext) -> RemotingCommand | None:
        """Handle LITE_SUBSCRIPTION_CTL: change what clients subscribe.

        Raises Refused if the body is invalid, a lite topic has an invalid name, the topic or group is not for
        lite topics, or a quota is exceeded.
        """
        self._check_serving()
        entries = decode_sync(context.command.body)

        def apply(context: RequestContext) -> RemotingCommand:
            for entry in entries:
                self._sync(entry, context.connection)
            return RemotingCommand.response()

        return self._reads.when_caught_up(context, apply)

    def pop(self, context: RequestContext) -> None:
        """Handle POP_LITE_MESSAGE: respond with messages of the client's lite topics, or hold the request.

        Raises Refused if a field is out of range, the topic or group is not for lite topics, or the client is
        unknown and needs a subscription.
        """
        header: PopLiteHeader = context.header
        self._check_serving()
        if not 0 < header.max_msg_num <= MESSAGES_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._settings.broker_name}] pop message's num is greater than {MESSAGES_MAX}: "
                f"maxMsgNum is {header.max_msg_num}",
            )
        check_invisible_ms(header.invisible_time, self._settings)
        self._groups.topic(header.topic)
        self._groups.for_consuming(header.consumer_group, header.topic)
        known = self._sessions.subscriptions.client(header.consumer_group, header.client_id)
        if known is None and header.needs_subscription:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"client {header.client_id!r} has no lite subscription here: synchronize it",
            )
        wait_ms = min(max(header.poll_time, 0), self._settings.max_hold_ms)
        self._serve(LitePop(context, self, header, self._clock, wait_ms))

    def resume(self, request: LitePop) -> None:
        """Handle a request again that was held."""
        connection = request.context.connection
        if connection.is_closed:
            self._waits.wake_first(request.key, LitePop)
            return
        if connection.over_high_water:  # the client does not read its responses
            connection.when_drained(lambda _: self.resume(request))
            return
        try:
            self._reads.admit(connection)
            self._groups.for_consuming(request.header.consumer_group, request.header.topic)
            self._serve(request)
        except Exception as error:  # noqa: BLE001 - the error goes to this client, and others continue
            request.context.refuse(error)

    def ack(self, header: AckMessageHeader, receipt: Receipt) -> None:
        """Note the ack of a lite message. Raises Refused if group, queue or offset is not one of its pop."""
        self._check_queue(header, receipt)
        queue = lite_queue(header.consumer_group, header.topic, header.lite_topic)
        self._sessions.orders.ack(queue, header.offset, receipt.pop_ms)

    def change(self, header: ChangeInvisibleTimeHeader, receipt: Receipt) -> int | None:
        """Make a lite message, or with `suspend` its whole batch, visible again after another time."""
        self._check_queue(header, receipt)
        queue = lite_queue(header.consumer_group, header.topic, header.lite_topic)
        return self._sessions.orders.change(
            queue, header.offset, receipt.pop_ms, header.invisible_time, is_suspension=header.suspend
        )

    def _sync(self, entry: SyncEntry, connection: Connection) -> None:
        sessions, action = self._sessions, entry.action
        if action is SyncAction.COMPLETE_REMOVE:
            sessions.remove_client(entry.group, entry.client_id)
        elif action is SyncAction.PARTIAL_REMOVE:
            group = self._groups.find(entry.group)
            sessions.remove(Sync(group, entry.client_id, entry.names, connection))
        else:
            group = self._groups.for_subscribing(entry.group, entry.topic, entry.names)
            sync = Sync(group, entry.client_id, entry.names, connection, _option(entry))
            if action is SyncAction.COMPLETE_ADD:
                sessions.replace(sync)
            else:
                sessions.add(sync)

    def _serve(self, request: LitePop) -> None:
        if self._reads.catch_up():
            self._read(request)
        else:
            self._reads.wait_for_dispatch(request.context, lambda _: self._read(request))

    def _read(self, request: LitePop) -> None:
        self._reads.serve(
            request.context, lambda: self._find(request.header), partial(self._respond, request)
        )

    def _find(self, header: PopLiteHeader) -> FoundRecords:
        """Return the messages of a pop with their records. Raises NotResident."""
        client = self._sessions.subscriptions.client(header.consumer_group, header.client_id)
        if client is None or client.topic != header.topic:
            return FoundRecords(None, (), ())
        limits = ReadLimits(header.max_msg_num, self._settings.pull_max_bytes)
        messages = self._sessions.find(client, header.attempt_id, limits)
        records: list[memoryview] = []
        readable = [self._readable(each, records) for each in messages]
        return FoundRecords(client, readable, records)

    def _readable(self, found: FoundMessages, records: list[memoryview]) -> FoundMessages:
        """Add the records of a lite topic to `records`; leave out entries whose record cannot be read."""
        entries = []
        for entry in found.entries:
            try:
                records.append(self._store.record_at(entry.physical_offset))
            except StoreError as error:
                _log.warning(
                    "lite_record_skipped", lite_topic=found.name, offset=entry.offset, reason=error.reason
                )
                continue
            entries.append(entry)
        if found.entries and not entries:
            self._sessions.orders.skip(found.queue, found.entries[-1].offset + 1)
        return found._replace(entries=entries)

    def _respond(self, request: LitePop, found: FoundRecords) -> RemotingCommand | None:
        """Claim what was found and respond; hold the request if that is nothing."""
        self._check_serving()
        header, records = request.header, found.records
        counts: Sequence[str] = ()
        pop_ms = self._clock.wall_ms()
        if found.client is not None:
            counts = self._sessions.claim(
                found.client, found.messages, pop_ms, header.invisible_time, header.attempt_id
            )
            if found.client.events:  # another waiting pop may have the rest now
                self._waits.wake_first(request.key, LitePop)
        ext = PopLiteResponse(pop_ms, header.invisible_time, ORDER_REVIVE_QUEUE, ";".join(counts)).to_ext()
        if records:
            self._reader.count(header.consumer_group, header.topic, len(records), sum(map(len, records)))
            return RemotingCommand.response(0, GetMessageStatus.FOUND.name, ext, parts=records)
        if self._waits.hold(request):
            return None
        code, remark = ResponseCode.POLLING_TIMEOUT, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name
        if not self._waits.is_over(request):
            code, remark = ResponseCode.POLLING_FULL, "too many requests are held: raise max_held_pulls"
        return RemotingCommand.response(code, remark, ext)

    def _check_serving(self) -> None:
        if not self._is_serving:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker does not serve pops at present")

    def _check_queue(self, header: AckMessageHeader | ChangeInvisibleTimeHeader, receipt: Receipt) -> None:
        self._groups.for_consuming(header.consumer_group, header.topic)
        if header.offset > self._topics.max_offset(header.topic, header.lite_topic):
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"ack offset illegal. {header.offset} is behind the end of lite topic {header.lite_topic!r}",
            )
        if header.queue_id != 0 or receipt.revive_queue != ORDER_REVIVE_QUEUE:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"ack queue illegal. A receipt of a lite message has queue 0 and revive queue "
                f"{ORDER_REVIVE_QUEUE}, not {header.queue_id} and {receipt.revive_queue}",
            )


def notify_unsubscribed(client: LiteClient, name: str) -> None:
    """Tell a client that another one has taken over a lite topic."""
    connection = client.channel
    if isinstance(connection, Connection) and not connection.is_closed:
        header = UnsubscribeLiteHeader(name, client.group, client.client_id)
        connection.oneway(RemotingCommand(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header.to_ext()))


def _option(entry: SyncEntry) -> OffsetOption | None:
    if entry.option is None:
        return None
    kind, value = entry.option
    if kind == "POLICY" and value in _POLICIES:
        return _POLICIES[value]
    try:
        return OffsetOption(Start(kind), value)
    except ValueError as error:
        raise Refused(
            ResponseCode.ILLEGAL_OPERATION,
            f"the offset option {kind[:100]!r} with the value {value} is not valid: use POLICY (0 to 2), "
            "OFFSET, TAIL_N or TIMESTAMP",
        ) from error


def _sync_targets(context: DecodedRequest) -> Iterable[Target]:
    for entry in decode_sync(context.command.body):
        yield Target(Resource.GROUP, entry.group, Action.SUB)
        yield Target(Resource.TOPIC, entry.topic, Action.SUB)
