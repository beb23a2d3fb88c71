"""Clients: the rpcs Telemetry and Heartbeat, and checks of open transactions.

Brokers get the topics of the connected producers as producer groups, with a heartbeat of the gateway. A
broker checks an open transaction with CHECK_TRANSACTION_STATE; one of the producers of its topic gets it on
its Telemetry stream, and responds with EndTransaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from google.protobuf.duration_pb2 import Duration

from actors.bounds import AtLimit, Bound, Use
from actors.gateway.access import Access, targets_for
from actors.gateway.callers import Caller
from actors.gateway.groups import (
    CONSUMER_TYPES,
    UNKNOWN_GROUP,
    GatewayGroups,
    consumer_settings,
)
from actors.gateway.grpc.calls import Call
from actors.gateway.members import HEARTBEAT_TIMEOUT_MS, GatewayMembers
from actors.gateway.messages import BODY_BYTES_MAX, message_of
from actors.gateway.proto.definition_pb2 import (
    ClientType,
    Code,
    ExponentialBackoff,
    Resource,
    RetryPolicy,
    Settings,
    Status,
)
from actors.gateway.proto.service_pb2 import (
    HeartbeatRequest,
    HeartbeatResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from actors.gateway.receipts import ReceiptRenewals
from actors.gateway.sends import TransactionId
from actors.gateway.statuses import RpcFailed, check_count, check_length, ok, status_of
from actors.gateway.topics import GatewayTopics, check_endpoints, topic_name
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext, RequestRow
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.header import EXPRESSION_CHARS_MAX, ITEMS_MAX
from actors.wire.headers import CheckTransactionStateHeader
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, Target
from store.common.logs import get_logger
from store.message.compression import decompress
from store.message.message import MessageExt
from store.message.record import decode_record
from store.store_errors import MessageInvalid, RecordDamaged

_log = get_logger(__name__)

MAX_ATTEMPTS: Final = 3
INITIAL_BACKOFF_MS: Final = 10
MAX_BACKOFF_MS: Final = 1000
SETTINGS_BYTES_MAX: Final = 256 * 1024
"""Size of one client's settings."""
KEPT: Final = Bound(
    "gateway_settings_bytes",
    64 * 1024 * 1024,
    AtLimit.REFUSE,
    "Size of the settings of all open Telemetry streams, with 256 bytes for each client and topic.",
)
ENTRY_BYTES: Final = 256


class GatewayClients:
    """The clients that are connected to one gateway."""

    def __init__(
        self,
        access: Access,
        topics: GatewayTopics,
        client: RemotingClient,
        client_id: str,
        groups: GatewayGroups,
        members: GatewayMembers,
        renewals: ReceiptRenewals,
    ) -> None:
        """Create the object.

        Args:
            access: checks the users of Telemetry streams.
            topics: the routes of the producers' topics.
            client: sends heartbeats to brokers.
            client_id: that of the gateway in its heartbeats to brokers.
            groups: completes the settings of consumers.
            members: registers consumers with the brokers.
            renewals: gets to know which consumers are alive.
        """
        self._access = access
        self._topics = topics
        self._groups = groups
        self._members = members
        self._renewals = renewals
        self._client = client
        self._client_id = client_id
        self._streams: dict[Call, dict[str, Resource]] = {}
        self._kept: dict[Call, int] = {}
        self._kept_bytes = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (KEPT.use(lambda: self._kept_bytes),)

    @property
    def count(self) -> int:
        """Number of open Telemetry streams with settings."""
        return len(self._streams)

    async def telemetry(self, call: Call) -> None:
        """Handle Telemetry: respond to settings; the stream stays open for checks of transactions."""
        try:
            caller = await self._access.caller(call)
        except (RpcFailed, Refused, RemotingError) as error:
            await call.send(TelemetryCommand(status=_refused("", error)))
            return
        try:
            while (command := await call.receive()) is not None:
                if command.HasField("settings"):
                    await call.send(await self._settings(call, caller, command.settings))
        finally:
            self._forget(call)

    async def heartbeat(self, call: Call, caller: Caller, request: HeartbeatRequest) -> HeartbeatResponse:
        """Handle Heartbeat: the messages of a consumer are renewed as long as it is alive."""
        if request.client_type not in (ClientType.PRODUCER, *CONSUMER_TYPES):
            raise _unrecognized(request.client_type)
        self._renewals.seen(caller)
        return HeartbeatResponse(status=ok())

    def rows(self) -> Iterable[RequestRow]:
        """Return the requests that brokers send to the gateway."""
        return (
            RequestRow(
                RequestCode.CHECK_TRANSACTION_STATE, self.check_transaction, CheckTransactionStateHeader
            ),
        )

    def check_transaction(self, context: RequestContext) -> None:
        """Handle CHECK_TRANSACTION_STATE: pass the check to a producer of the topic; without one, drop it."""
        header: CheckTransactionStateHeader = context.header
        try:
            record = decode_record(context.command.body)
        except RecordDamaged as error:
            _log.warning("transaction_check_invalid", msg_id=header.msg_id, error=str(error))
            return
        found = next(
            ((call, of[record.topic]) for call, of in self._streams.items() if record.topic in of), None
        )
        if found is None:
            _log.info("transaction_check_dropped", topic=record.topic, msg_id=header.msg_id)
            return
        call, resource = found
        self._streams[call] = self._streams.pop(call)  # the next check goes to another producer
        context.connection.hub.spawn(_send_check(call, resource, record, header))

    async def announce(self) -> None:
        """Send heartbeats of the producers, with their topics as groups, and of the consumers to brokers."""
        await self._members.announce()
        await self._announce_producers()

    async def _announce_producers(self) -> None:
        names = sorted({name for topics in self._streams.values() for name in topics})
        groups: dict[str, list[str]] = {}
        for name in names:
            try:
                topic = await self._topics.get(name)
            except (RpcFailed, Refused, RemotingError):
                continue  # the other topics have their transactions checked
            for address in topic.masters.values():
                groups.setdefault(address, []).append(name)
        await asyncio.gather(*(self._announce(address, names) for address, names in groups.items()))

    async def _announce(self, address: str, names: list[str]) -> None:
        for first in range(0, len(names), ITEMS_MAX):
            body = HeartbeatData(self._client_id, producer_groups=names[first : first + ITEMS_MAX])
            command = RemotingCommand(RequestCode.HEART_BEAT, {}, body.encode())
            try:
                await self._client.ask(address, command, HEARTBEAT_TIMEOUT_MS)
            except (Refused, RemotingError) as error:
                _log.info("producer_heartbeat_failed", broker=address, error=str(error))

    def _topics_of(self, settings: Settings) -> dict[str, Resource]:
        if settings.client_type != ClientType.PRODUCER or not settings.HasField("publishing"):
            raise _unrecognized(settings.client_type)
        return {topic_name(each): each for each in settings.publishing.topics}

    def _keep(self, call: Call, settings: Settings) -> None:
        """Reserve memory for the settings of a stream. Raises RpcFailed if that exceeds the limit."""
        count = 1 + len(settings.publishing.topics) + len(settings.subscription.subscriptions)
        size_bytes = settings.ByteSize() + count * ENTRY_BYTES
        kept_bytes = self._kept_bytes - self._kept.get(call, 0) + size_bytes
        if kept_bytes > KEPT.limit:
            raise RpcFailed(
                Code.TOO_MANY_REQUESTS,
                f"the settings of all clients of this gateway take {kept_bytes:,} bytes, over the limit of "
                f"{KEPT.limit:,}: connect to another gateway",
            )
        self._kept[call], self._kept_bytes = size_bytes, kept_bytes

    def _forget(self, call: Call) -> None:
        self._streams.pop(call, None)
        left = self._members.leave(call)
        if left is not None:
            self._renewals.left(left)
        self._kept_bytes -= self._kept.pop(call, 0)

    async def _settings(self, call: Call, caller: Caller, settings: Settings) -> TelemetryCommand:
        """Return the response to a client's settings, with the values that the server decides."""
        try:
            _check(settings)
            await self._access.check(caller, _targets(settings))
            self._keep(call, settings)
            if settings.client_type in CONSUMER_TYPES and settings.HasField("subscription"):
                merged = await self._groups.settings(settings)
                self._members.join(call, caller, settings)
                self._renewals.seen(caller)
                return TelemetryCommand(status=ok(), settings=merged)
            topics = self._topics_of(settings)
        except (RpcFailed, Refused, RemotingError) as error:
            self._forget(call)  # the user may have lost the permission
            return TelemetryCommand(status=_refused(caller.client_id, error), settings=_completed(settings))
        is_new = self._streams.get(call, {}).keys() != topics.keys()
        self._streams[call] = topics
        if is_new:
            self._client.hub.spawn(self._announce_producers())
        return TelemetryCommand(status=ok(), settings=_completed(settings))


def _completed(settings: Settings) -> Settings:
    """Return settings with the values that the server decides.

    Those of a refused client, too: without them Java's SDK waits until its start fails without a reason; with
    them its next call shows one.
    """
    if settings.HasField("subscription"):
        return consumer_settings(settings, UNKNOWN_GROUP)
    merged = Settings()
    merged.CopyFrom(settings)
    merged.backoff_policy.CopyFrom(
        RetryPolicy(
            max_attempts=MAX_ATTEMPTS,
            exponential_backoff=ExponentialBackoff(
                initial=_duration(INITIAL_BACKOFF_MS), max=_duration(MAX_BACKOFF_MS), multiplier=2
            ),
        )
    )
    merged.publishing.validate_message_type = True
    merged.publishing.max_body_size = BODY_BYTES_MAX
    merged.metric.on = False
    return merged


def _refused(client_id: str, error: RpcFailed | Refused | RemotingError) -> Status:
    """Log why a client cannot start, because many SDKs do not show it; return the status."""
    status = status_of(error)
    _log.warning("client_refused", client_id=client_id, code=Code.Name(status.code), reason=status.message)
    return status


def _check(settings: Settings) -> None:
    """Raise RpcFailed if a list or a text in the settings of a client is too long."""
    size_bytes, subscriptions = settings.ByteSize(), settings.subscription.subscriptions
    if size_bytes > SETTINGS_BYTES_MAX:
        raise RpcFailed(
            Code.PAYLOAD_TOO_LARGE,
            f"settings of {size_bytes:,} bytes exceed the limit of {SETTINGS_BYTES_MAX:,}",
        )
    check_endpoints(settings.access_point)
    check_count(settings.publishing.topics, ITEMS_MAX, Code.BAD_REQUEST, "topics")
    check_count(subscriptions, ITEMS_MAX, Code.BAD_REQUEST, "subscriptions")
    code = Code.ILLEGAL_FILTER_EXPRESSION
    for each in subscriptions:
        check_length(each.expression.expression, EXPRESSION_CHARS_MAX, code, "filter expression")


def _targets(settings: Settings) -> list[Target]:
    """Return what a client needs permission for: its messages, or the half messages that it decides on."""
    subscription = settings.subscription
    topics = [each.topic for each in subscription.subscriptions]
    return [
        *targets_for(Action.PUB, topics=settings.publishing.topics),
        *targets_for(Action.SUB, [subscription.group] if settings.HasField("subscription") else (), topics),
    ]


def _duration(milliseconds: int) -> Duration:
    found = Duration()
    found.FromMilliseconds(milliseconds)
    return found


def _unrecognized(client_type: ClientType) -> RpcFailed:
    return RpcFailed(
        Code.UNRECOGNIZED_CLIENT_TYPE,
        f"client type {client_type} with these settings is not supported: this gateway serves producers, "
        "push consumers, simple consumers and those of lite topics",
    )


async def _send_check(
    call: Call, resource: Resource, record: MessageExt, header: CheckTransactionStateHeader
) -> None:
    """Send the half message, decompressed in a thread, to a producer."""
    try:
        record.body = await call.in_thread(lambda: decompress(record.body, record.sys_flag))
    except MessageInvalid as error:
        _log.warning("transaction_check_invalid", msg_id=header.msg_id, error=str(error))
        return
    transaction = TransactionId(
        header.broker_name, header.commit_log_offset, header.tran_state_table_offset, header.msg_id
    )
    command = RecoverOrphanedTransactionCommand(
        message=message_of(record, resource), transaction_id=transaction.encode()
    )
    await call.send(TelemetryCommand(recover_orphaned_transaction_command=command))
