"""RebalancerLink: connects a broker to the rebalancers; each group has one, by the hash of its name.

Clients talk only to brokers. A broker forwards their heartbeats, and caches the member lists that rebalancers
return, which are the same for every broker, for a short time or until the group changes. If no rebalancer
responds, callers fall back on the members that this broker knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.remoting.bodies.groups import GroupMembers, HeartbeatData
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode, ResponseCode
from actors.remoting.command import Buffer, RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.headers import ConsumerGroupHeader, ForwardHeartbeatHeader, ForwardUnregisterHeader
from actors.remoting.remoting_errors import RemotingError
from store.clock import Clock
from store.logs import get_logger
from store.message.tags import java_hash

_log = get_logger(__name__)

MEMBERS_KEPT_NS = 5_000_000_000
# A Java client waits 3 s for the list, and without one retries only after 20 s.
MEMBERS_TIMEOUT_MS = 1000

OnMembers = Callable[[GroupMembers | None], None]
OnResponse = Callable[[RemotingCommand | RemotingError], None]


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
        """Whether there are rebalancers."""
        return bool(self.addresses)

    def address_of(self, group: str) -> str:
        """Return the address of the rebalancer of a group."""
        return self.addresses[(java_hash(group) & 0x7FFF_FFFF) % len(self.addresses)]

    def forward_heartbeat(self, heartbeat: HeartbeatData, connection: Connection) -> None:
        """Forward a client's consumers, each to the rebalancer of its group."""
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
        """Report to the rebalancer that a consumer has left."""
        header = ForwardUnregisterHeader(self._broker_name, client_id, group, connection_closed)
        self._send(self.address_of(group), RayMQRequestCode.FORWARD_UNREGISTER, header.to_ext(), b"")

    def forward_sync(self, group: str, body: Buffer, on_answer: OnResponse) -> None:
        """Forward a member's SYNC_GROUP."""
        command = RemotingCommand(RayMQRequestCode.FORWARD_SYNC, body=body)
        address = self.address_of(group)

        def answered(answer: RemotingCommand | RemotingError) -> None:
            self._note(address, answer)
            on_answer(answer)

        self._client.invoke_callback(address, command, self._timeout_ms, answered)

    def members(self, group: str, on_members: OnMembers) -> None:
        """Call back with the group's members, or None if its rebalancer does not respond."""
        kept = self._members.get(group)
        if kept is not None and self._clock.monotonic_ns() - kept[1] < MEMBERS_KEPT_NS:
            on_members(kept[0])
            return
        address = self.address_of(group)

        def answered(answer: RemotingCommand | RemotingError) -> None:
            self._note(address, answer)
            if isinstance(answer, RemotingError) or answer.code != ResponseCode.SUCCESS:
                on_members(None)
                return
            members = GroupMembers.decode(answer.body)
            self.keep_members(group, members)
            on_members(members)

        command = RemotingCommand(RayMQRequestCode.GROUP_MEMBERS, ConsumerGroupHeader(group).to_ext())
        timeout_ms = min(self._timeout_ms, MEMBERS_TIMEOUT_MS)
        self._client.invoke_callback(address, command, timeout_ms, answered)

    def keep_members(self, group: str, members: GroupMembers) -> None:
        """Cache a member list that a rebalancer sent."""
        self._members[group] = (members, self._clock.monotonic_ns())

    def drop_members(self, group: str) -> None:
        """Drop the cached member list of a group that has changed."""
        self._members.pop(group, None)

    def _send(self, address: str, code: RayMQRequestCode, ext: dict[str, str], body: bytes) -> None:
        command = RemotingCommand(code, ext, body)
        self._client.invoke_callback(
            address, command, self._timeout_ms, lambda answer: self._note(address, answer)
        )

    def _note(self, address: str, answer: RemotingCommand | RemotingError) -> None:
        if isinstance(answer, RemotingError):
            if address not in self._failing:
                self._failing.add(address)
                _log.warning("rebalancer_unreachable", rebalancer=address, reason=str(answer))
        elif address in self._failing:
            self._failing.discard(address)
            _log.info("rebalancer_reachable", rebalancer=address)
