"""GatewayService: starts and stops one gateway; works without Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from actors.gateway.access import Access, targets_for
from actors.gateway.callers import Caller
from actors.gateway.clients import GatewayClients
from actors.gateway.consumers import Consumers
from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.groups import GatewayGroups
from actors.gateway.grpc.calls import Call, Method
from actors.gateway.grpc.server import GrpcServer
from actors.gateway.lite import LiteSubscriptions
from actors.gateway.members import GatewayMembers
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.receipts import ReceiptRenewals
from actors.gateway.self_signed import SelfSigned
from actors.gateway.sends import Sends
from actors.gateway.statuses import RpcFailed, status_of
from actors.gateway.topics import GatewayTopics
from actors.host.cluster_access import cluster_client, inner_signer
from actors.host.cluster_tls import reload_tls, server_tls
from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind, described
from actors.host.metrics.endpoint import MetricsEndpoint
from actors.memory_account import MemoryAccount
from actors.ports import Ports
from actors.supervisor import GiveUp, Supervisor
from actors.transport.clients.nameservers import Nameservers
from actors.transport.limits import RemotingLimits
from actors.transport.table import RequestTable
from actors.wire.remoting_errors import Refused, RemotingError
from actors.wire.targets import Action, Target
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.hosts import join_address

_log = get_logger(__name__)

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
RENEWAL_INTERVAL_MS: Final = 5_000
IDLE_MS: Final = 600_000
"""Java's client pings every 300 s if it makes no call."""

Alternatives = Callable[[Any], Iterable[Iterable[Target]]]
"""Function that returns the targets of an rpc; permission for one of the lists suffices."""


class GatewayService:
    """One gateway. `start` and `stop` must run on the same event loop."""

    def __init__(self, settings: GatewaySettings, clock: Clock, give_up: GiveUp | None = None) -> None:
        """Create the service; `give_up` is called with the reason when a background task fails permanently.

        Raises StoreError if a certificate or the inner credentials of the settings are invalid.
        """
        self.settings = settings
        self._supervisor = Supervisor(clock, give_up)
        from_brokers = RequestTable()
        self._client = cluster_client(
            settings, inner_signer(settings), clock, settings.nameservers, from_brokers
        )
        nameservers = Nameservers(self._client, lambda: settings.nameservers, settings.route_timeout_ms)
        topics = GatewayTopics(
            nameservers, self._client, clock, settings.route_cache_ms, settings.route_timeout_ms
        )
        client_id = f"gateway@{socket.gethostname()}@{os.getpid()}"
        refresh_ms, timeout_ms = settings.route_cache_ms, settings.send_timeout_ms
        groups = GatewayGroups(topics, self._client, clock, refresh_ms, timeout_ms)
        access = Access(
            nameservers if settings.authentication_enabled else None,
            self._client,
            clock,
            refresh_ms,
            timeout_ms,
        )
        renewals, members = ReceiptRenewals(clock), GatewayMembers(topics, self._client, clock)
        lite = LiteSubscriptions(topics, groups, members, self._client, timeout_ms)
        self._consumers = Consumers(
            access, topics, groups, members, renewals, lite, self._client, clock, timeout_ms
        )
        self._clients = GatewayClients(access, topics, self._client, client_id, groups, members, renewals)
        from_brokers.add_rows((*self._clients.rows(), *lite.rows()))
        account = MemoryAccount(settings.queued_max_request_bytes)
        kept = (account, access, topics, groups, renewals, lite, self._clients)
        sends = Sends(topics, self._client, clock, timeout_ms)
        limits = RemotingLimits(idle_ms=IDLE_MS, max_connections=settings.max_connections)
        methods = _methods(access, topics, sends, self._clients, self._consumers, lite)
        self._made = SelfSigned(settings.listen_host, clock) if settings.makes_certificate else None
        tls = server_tls(settings, ("h2",), self._made.own if self._made is not None else None)
        reserve_descriptors(settings.max_connections)
        ports = Ports(clock)
        self.server = GrpcServer(methods, clock, limits, account, tls=tls, ports=ports)
        self.figures = self._figures(renewals)
        self.metrics = MetricsEndpoint(settings, self.figures, self._labels, ports, (*kept, self.server))

    @property
    def address(self) -> str:
        """The address on which it listens."""
        return join_address(self.settings.listen_host, self.server.port)

    async def start(self) -> None:
        """Listen, and start the background tasks. Raises OSError if the port is in use."""
        settings = self.settings
        await self.server.start(settings.listen_host, settings.listen_port)
        await self.metrics.start(settings.listen_port)
        interval_ms = settings.producer_heartbeat_interval_ms
        self._supervisor.every("producer-heartbeat", lambda: interval_ms, self._clients.announce)
        self._supervisor.every("receipt-renewal", lambda: RENEWAL_INTERVAL_MS, self._consumers.renew)
        reload_tls(self._supervisor, self.server.tls, self._client.tls)
        _log.info("gateway_serving", address=self.address)

    async def stop(self) -> None:
        """Let open calls end for `drain_timeout_ms`, and close all connections."""
        await self.metrics.stop()
        await self._supervisor.stop()
        await self.server.stop(self.settings.drain_timeout_ms)
        await self._client.close()
        if self._made is not None:
            self._made.close()

    def describe(self) -> dict[str, object]:
        """Return the values of the figures."""
        return described(self.figures)

    def _figures(self, renewals: ReceiptRenewals) -> Sequence[Figure]:
        def gauge(name: str, read: Callable[[], int], text: str) -> Figure:
            return Figure(name, Kind.GAUGE, "", read, text, metric=f"raymq_gateway_{name}")

        return (
            Figure("address", Kind.TEXT, "", lambda: self.address, "Address that it listens on."),
            gauge("connections", lambda: len(self.server.hub.connections), "Connections of clients."),
            gauge("producers", lambda: self._clients.count, "Producers with a telemetry stream."),
            gauge(
                "renewed_messages",
                lambda: len(renewals),
                "Messages whose invisible time is renewed for push consumers.",
            ),
        )

    def _labels(self) -> dict[str, str]:
        return {"node_type": "gateway", "node_id": self.address}


def _methods(
    access: Access,
    topics: GatewayTopics,
    sends: Sends,
    clients: GatewayClients,
    consumers: Consumers,
    lite: LiteSubscriptions,
) -> Mapping[str, Method]:
    of = partial(_rpc, access)
    methods = {
        "QueryRoute": of(rpc.QueryRouteRequest, rpc.QueryRouteResponse, topics.query_route, targets=_route),
        "SendMessage": of(rpc.SendMessageRequest, rpc.SendMessageResponse, sends.send),
        "RecallMessage": of(rpc.RecallMessageRequest, rpc.RecallMessageResponse, sends.recall),
        "EndTransaction": of(rpc.EndTransactionRequest, rpc.EndTransactionResponse, sends.end_transaction),
        "Heartbeat": of(rpc.HeartbeatRequest, rpc.HeartbeatResponse, clients.heartbeat, targets=_group),
        "NotifyClientTermination": of(
            rpc.NotifyClientTerminationRequest,
            rpc.NotifyClientTerminationResponse,
            consumers.terminate,
            targets=_group,
        ),
        "QueryAssignment": of(
            rpc.QueryAssignmentRequest,
            rpc.QueryAssignmentResponse,
            consumers.query_assignment,
            targets=lambda request: [targets_for(Action.SUB, [request.group], [request.topic])],
        ),
        "AckMessage": of(rpc.AckMessageRequest, rpc.AckMessageResponse, consumers.ack),
        "ChangeInvisibleDuration": of(
            rpc.ChangeInvisibleDurationRequest, rpc.ChangeInvisibleDurationResponse, consumers.change
        ),
        "ForwardMessageToDeadLetterQueue": of(
            rpc.ForwardMessageToDeadLetterQueueRequest,
            rpc.ForwardMessageToDeadLetterQueueResponse,
            consumers.dead_letter,
        ),
        "SyncLiteSubscription": of(
            rpc.SyncLiteSubscriptionRequest, rpc.SyncLiteSubscriptionResponse, lite.sync
        ),
        "ReceiveMessage": Method(rpc.ReceiveMessageRequest, consumers.receive, is_stream=True),
        "Telemetry": Method(rpc.TelemetryCommand, clients.telemetry, is_stream=True),
    }
    return {SERVICE + name: method for name, method in methods.items()}


def _route(request: Any) -> Iterable[Iterable[Target]]:
    """Return what QueryRoute needs: a producer's permission, or a consumer's."""
    return (targets_for(action, topics=[request.topic]) for action in (Action.PUB, Action.SUB))


def _group(request: Any) -> Iterable[Iterable[Target]]:
    return [targets_for(Action.SUB, [request.group] if request.HasField("group") else ())]


def _rpc(
    access: Access,
    request_type: type[Message],
    response_type: Callable[..., Message],
    handle: Callable[[Call, Caller, Any], Awaitable[Message]],
    targets: Alternatives | None = None,
) -> Method:
    """Return the method of an rpc whose response has a status; errors of RocketMQ become this status.

    `targets` are the permissions that are checked here: those that no broker checks in a request of `handle`.
    """

    async def serve(call: Call) -> None:
        try:
            caller = await access.caller(call)  # first: a request is decoded for a known user only
            request = await call.request()
            if targets is not None:
                await access.check(caller, *targets(request))
            response = await handle(call, caller, request)
        except (RpcFailed, Refused, RemotingError) as error:
            response = response_type(status=status_of(error))
        await call.send(response)

    return Method(request_type, serve)
