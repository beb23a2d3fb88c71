"""RebalancerLink: the requests that a broker sends to the rebalancers.

The hash of a group's name selects the group's rebalancer. Clients send requests only to brokers, and brokers
forward heartbeats to the rebalancers. Every broker receives the same member list from a rebalancer, and
caches it for MEMBERS_CACHE_NS or until the group changes. If a rebalancer does not respond, callers use the
members that are connected to this broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.transport.client import RemotingClient
from actors.transport.connection import Connection
from actors.wire.bodies.groups import GroupMembers, HeartbeatData, SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerGroupHeader, ForwardHeartbeatHeader, ForwardUnregisterHeader
from actors.wire.remoting_errors import RemotingError
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.tags import java_hash

_log = get_logger(__name__)

MEMBERS_CACHE_NS = 5_000_000_000
"""Time for which a member list is cached."""
MEMBERS_TIMEOUT_MS = 1000
"""Limit of a request for a member list. A Java client waits 3 s for the list, or retries after 20 s."""

OnMembers = Callable[[GroupMembers | None], None]
"""Receives the members of a group, or None if its rebalancer did not respond."""
OnResponse = Callable[[RemotingCommand | RemotingError], None]
"""Receives the response, or the error if the rebalancer did not respond."""


class RebalancerLink:
    """One broker's connections to the rebalancers."""

    def __init__(
        self,
        client: RemotingClient,
        addresses: Sequence[str],
        broker_name: str,
        timeout_ms: int,
        clock: Clock,
    ) -> None:
        self._client = client
        self.addresses = list(addresses)
        self._broker_name = broker_name
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._members: dict[str, tuple[GroupMembers, int]] = {}
        self._failing: set[str] = set()

    @property
    def is_used(self) -> bool:
        """True if the broker has rebalancers (setting `rebalancers`)."""
        return bool(self.addresses)

    def address_of(self, group: str) -> str:
        """Return the address, `host:port`, of a group's rebalancer."""
        return self.addresses[(java_hash(group) & 0x7FFF_FFFF) % len(self.addresses)]

    def forward_heartbeat(self, heartbeat: HeartbeatData, connection: Connection) -> None:
        """Forward a client's heartbeat: each consumer of it to the rebalancer of the consumer's group."""
        header = ForwardHeartbeatHeader(
            self._broker_name, connection.attributes.language or "OTHER", connection.attributes.version
        )
        by_address: dict[str, HeartbeatData] = {}
        for consumer in heartbeat.consumers:
            address = self.address_of(consumer.group_name)
            part = by_address.setdefault(address, HeartbeatData(heartbeat.client_id))
            part.consumers.append(consumer)
        for address, part in by_address.items():
            self._send(address, RayMQRequestCode.FORWARD_HEARTBEAT, header.to_ext(), part.encode())

    def forward_unregister(self, group: str, client_id: str, *, connection_closed: bool) -> None:
        """Report to the group's rebalancer that a consumer has unregistered, expired or disconnected."""
        header = ForwardUnregisterHeader(self._broker_name, client_id, group, connection_closed)
        self._send(self.address_of(group), RayMQRequestCode.FORWARD_UNREGISTER, header.to_ext(), b"")

    def forward_sync(self, request: SyncGroupRequest, on_response: OnResponse) -> None:
        """Forward a member's SYNC_GROUP request, and pass the rebalancer's response to `on_response`."""
        command = RemotingCommand(RayMQRequestCode.FORWARD_SYNC, body=request.encode())
        address = self.address_of(request.group)

        def handle_response(response: RemotingCommand | RemotingError) -> None:
            self._log_reachability(address, response)
            on_response(response)

        self._client.invoke_callback(address, command, self._timeout_ms, handle_response)

    def members(self, group: str, on_members: OnMembers) -> None:
        """Pass the group's members, cached or from its rebalancer, to `on_members`."""
        cached = self._members.get(group)
        if cached is not None and self._clock.monotonic_ns() - cached[1] < MEMBERS_CACHE_NS:
            on_members(cached[0])
            return
        address = self.address_of(group)

        def handle_response(response: RemotingCommand | RemotingError) -> None:
            self._log_reachability(address, response)
            if isinstance(response, RemotingError) or response.code != ResponseCode.SUCCESS:
                on_members(None)
                return
            members = GroupMembers.decode(response.body)
            self.cache_members(group, members)
            on_members(members)

        command = RemotingCommand(RayMQRequestCode.GROUP_MEMBERS, ConsumerGroupHeader(group).to_ext())
        timeout_ms = min(self._timeout_ms, MEMBERS_TIMEOUT_MS)
        self._client.invoke_callback(address, command, timeout_ms, handle_response)

    def cache_members(self, group: str, members: GroupMembers) -> None:
        """Cache a member list that a rebalancer sent."""
        self._members[group] = (members, self._clock.monotonic_ns())

    def drop_members(self, group: str) -> None:
        """Remove the cached member list of a group that has changed."""
        self._members.pop(group, None)

    def _send(self, address: str, code: RayMQRequestCode, ext: dict[str, str], body: bytes) -> None:
        command = RemotingCommand(code, ext, body)
        self._client.invoke_callback(
            address, command, self._timeout_ms, lambda response: self._log_reachability(address, response)
        )

    def _log_reachability(self, address: str, response: RemotingCommand | RemotingError) -> None:
        if isinstance(response, RemotingError):
            if address not in self._failing:
                self._failing.add(address)
                _log.warning("rebalancer_unreachable", rebalancer=address, error=str(response))
        elif address in self._failing:
            self._failing.discard(address)
            _log.info("rebalancer_reachable", rebalancer=address)
