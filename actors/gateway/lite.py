"""Lite topics: the rpc SyncLiteSubscription, the pops of lite groups, and what brokers say to their clients.

    sync ──► LITE_SUBSCRIPTION_CTL to each broker of the topic; the gateway keeps a copy of the names
    pop  ──► POP_LITE_MESSAGE ──client unknown──► the copy (COMPLETE_ADD) ──► POP_LITE_MESSAGE
    NOTIFY_UNSUBSCRIBE_LITE ──► Telemetry stream of the client

Brokers have subscriptions only in memory, and clients repeat theirs every 30 s. The copy is for a broker that
has restarted, or leads its replicas since now. Without a copy, the client's next repetition has the same
effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from actors.bounds import AtLimit, Bound, Use
from actors.gateway.callers import Caller
from actors.gateway.groups import GatewayGroups, group_name
from actors.gateway.grpc.calls import Call
from actors.gateway.members import GatewayMembers
from actors.gateway.messages import check_lite_topic
from actors.gateway.proto.definition_pb2 import Code, LiteSubscriptionAction, OffsetOption
from actors.gateway.proto.service_pb2 import (
    NotifyUnsubscribeLiteCommand,
    SyncLiteSubscriptionRequest,
    SyncLiteSubscriptionResponse,
    TelemetryCommand,
)
from actors.gateway.statuses import RpcFailed, ok
from actors.gateway.topics import GatewayTopics, topic_name
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext, RequestRow
from actors.wire.bodies.lite import PopLiteHeader, SyncAction, SyncEntry, UnsubscribeLiteHeader, encode_sync
from actors.wire.bodies.pops import PopMessageHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ConnectFailed, Refused, RemotingError
from store.common.logs import get_logger

_log = get_logger(__name__)

SUBSCRIBED: Final = Bound(
    "gateway_lite_subscriptions",
    200_000,
    AtLimit.EVICT,
    "Lite topics, and clients that subscribe them, of which a gateway keeps a copy for brokers that restart.",
)
_OPTIONS: Final = {"policy": "POLICY", "offset": "OFFSET", "tail_n": "TAIL_N", "timestamp": "TIMESTAMP"}


@dataclass(frozen=True, slots=True)
class _Copy:
    """What one client of a lite group subscribes."""

    topic: str
    user: str
    names: set[str]


class LiteSubscriptions:
    """The clients of lite groups that are connected to one gateway."""

    def __init__(
        self,
        topics: GatewayTopics,
        groups: GatewayGroups,
        members: GatewayMembers,
        client: RemotingClient,
        timeout_ms: int,
    ) -> None:
        """Create the object; `timeout_ms` limits each request to a broker, beyond the time that it waits."""
        self._topics = topics
        self._groups = groups
        self._members = members
        self._client = client
        self._timeout_ms = timeout_ms
        self._copies: dict[tuple[str, str], _Copy] = {}  # by group and client id, that of the newest last
        self._size = 0

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (SUBSCRIBED.use(lambda: self._size),)

    def rows(self) -> Iterable[RequestRow]:
        """Return the requests that brokers send to the gateway."""
        return (RequestRow(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self.unsubscribed, UnsubscribeLiteHeader),)

    async def sync(
        self, call: Call, caller: Caller, request: SyncLiteSubscriptionRequest
    ) -> SyncLiteSubscriptionResponse:
        """Handle SyncLiteSubscription: change what the client subscribes, at all brokers of the topic."""
        group, topic = group_name(request.group), topic_name(request.topic)
        await self._groups.lite(group, topic)
        if request.action not in LiteSubscriptionAction.values():
            raise RpcFailed(
                Code.BAD_REQUEST, f"the lite subscription has the unknown action {request.action}"
            )
        action = SyncAction(LiteSubscriptionAction.Name(request.action))
        names = dict.fromkeys(request.lite_topic_set)
        for name in names if action.is_add else ():
            check_lite_topic(name)
        option = _option(request.offset_option) if request.HasField("offset_option") else None
        entry = SyncEntry(action, caller.client_id, group, topic, list(names), option)
        added = self._note(caller, entry)  # first: a pop at this time may send the copy
        try:
            await self._send(caller, entry)
        except (Refused, RemotingError):
            if action is SyncAction.PARTIAL_ADD:
                self._note(caller, entry._replace(action=SyncAction.PARTIAL_REMOVE, names=added))
            raise
        return SyncLiteSubscriptionResponse(status=ok())

    async def pop(self, caller: Caller, address: str, wanted: PopMessageHeader) -> RemotingCommand:
        """Return the response to a pop; before, synchronize a client that the broker does not know."""
        group, topic, timeout_ms = wanted.consumer_group, wanted.topic, wanted.poll_time + self._timeout_ms
        header = PopLiteHeader(
            caller.client_id, group, topic, wanted.max_msg_nums, wanted.invisible_time, wanted.poll_time,
            attempt_id=wanted.attempt_id, needs_subscription=True,
        )  # fmt: skip
        command = caller.request(RequestCode.POP_LITE_MESSAGE, header)
        response = await self._client.invoke(address, command, timeout_ms)
        if response.code != ResponseCode.SUBSCRIPTION_NOT_EXIST:
            return response
        names = self._names(caller, group, topic)
        if names is None and (await self._groups.get(group, topic)).is_wildcard:
            names = set()  # such a client subscribes nothing by itself
        if names is not None:
            entry = SyncEntry(SyncAction.COMPLETE_ADD, caller.client_id, group, topic, list(names))
            self._note(caller, entry)
            await self._client.ask(address, _command(caller, entry), self._timeout_ms)
            _log.info("lite_client_subscribed_again", broker=address, group=group, client_id=caller.client_id)
        header.needs_subscription = False
        command = caller.request(RequestCode.POP_LITE_MESSAGE, header)
        return await self._client.invoke(address, command, timeout_ms)

    async def leave(self, caller: Caller, group: str) -> None:
        """Unsubscribe a client that has ended: its lite topics are for others from now on."""
        copy = self._copies.get((group, caller.client_id))
        if copy is not None and copy.user == caller.user:
            entry = SyncEntry(SyncAction.COMPLETE_REMOVE, caller.client_id, group, copy.topic)
            self._note(caller, entry)
            await self._send(caller, entry)

    def unsubscribed(self, context: RequestContext) -> None:
        """Handle NOTIFY_UNSUBSCRIBE_LITE: tell the client, on its Telemetry stream."""
        header: UnsubscribeLiteHeader = context.header
        group, client_id, name = header.consumer_group, header.client_id, header.lite_topic
        copy = self._copies.get((group, client_id))
        if copy is not None and name in copy.names:
            copy.names.discard(name)
            self._size -= 1
        stream = self._members.stream(group, client_id)
        if stream is not None:
            notice = NotifyUnsubscribeLiteCommand(lite_topic=name)
            context.connection.hub.spawn(
                stream.send(TelemetryCommand(notify_unsubscribe_lite_command=notice))
            )

    async def _send(self, caller: Caller, entry: SyncEntry) -> None:
        """Send an entry to all brokers of its topic. Raises Refused or RemotingError.

        A broker that does not serve has forgotten the client: it gets the copy at the client's next pop. It
        is an error only if the entry has more than a copy, or no broker serves.
        """
        addresses = (await self._topics.get(entry.topic)).masters.values()
        asks = [self._client.ask(each, _command(caller, entry), self._timeout_ms) for each in addresses]
        results = await asyncio.gather(*asks, return_exceptions=True)
        errors = [each for each in results if isinstance(each, BaseException)]
        for error in errors:
            if isinstance(error, Refused | RemotingError):
                self._topics.failed(entry.topic, error)
        decisive = [each for each in errors if not _forgets_clients(each)]
        if not decisive and (entry.option is not None or len(errors) == len(results)):
            decisive = errors
        for error in decisive:
            raise error

    def _names(self, caller: Caller, group: str, topic: str) -> set[str] | None:
        copy = self._copies.get((group, caller.client_id))
        return copy.names if copy is not None and (copy.topic, copy.user) == (topic, caller.user) else None

    def _note(self, caller: Caller, entry: SyncEntry) -> list[str]:
        """Change the copy of a client; return the names that are new."""
        key, action = (entry.group, entry.client_id), entry.action
        known = self._names(caller, entry.group, entry.topic) or set()
        added = [each for each in entry.names if each not in known]
        self._drop(key)
        if action is SyncAction.COMPLETE_REMOVE:
            return []
        if action is SyncAction.COMPLETE_ADD:
            known = set(entry.names)
        elif action is SyncAction.PARTIAL_ADD:
            known.update(added)
        else:
            known.difference_update(entry.names)
        self._copies[key] = _Copy(entry.topic, caller.user, known)
        self._size += 1 + len(known)
        while self._size > SUBSCRIBED.limit:
            self._drop(next(iter(self._copies)))
        return added

    def _drop(self, key: tuple[str, str]) -> None:
        dropped = self._copies.pop(key, None)
        if dropped is not None:
            self._size -= 1 + len(dropped.names)


def _command(caller: Caller, entry: SyncEntry) -> RemotingCommand:
    return caller.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=encode_sync(entry))


def _forgets_clients(error: BaseException) -> bool:
    if isinstance(error, Refused):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, ConnectFailed)


def _option(option: OffsetOption) -> tuple[str, int]:
    kind = option.WhichOneof("offset_type")
    if kind is None:
        raise RpcFailed(Code.BAD_REQUEST, "the offset option says neither policy nor offset, tail or time")
    return _OPTIONS[kind], getattr(option, kind)
