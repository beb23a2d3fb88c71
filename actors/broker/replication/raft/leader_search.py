"""LeaderSearch: asks the members that a replica knows whether another store leads their group.

A replica that was down while members were replaced does not know their stores: it accepts the messages of
such a leader only after a member that it knows has named it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.broker.replication.raft.addresses import MemberAddresses
from actors.raft.members import Member
from actors.raft.node import RaftNode
from actors.remoting.bodies.raft_members import RaftMembers
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused, RemotingError
from store.logs import get_logger

_log = get_logger(__name__)

TIMEOUT_MS = 1_000


class LeaderSearch:
    """Searches for one unknown leader at a time."""

    def __init__(self, client: RemotingClient, node: RaftNode, addresses: MemberAddresses) -> None:
        self._client = client
        self._node = node
        self._addresses = addresses
        self._task: asyncio.Task[None] | None = None

    def start(self, stranger: Member, on_named: Callable[[Member, str], None]) -> None:
        """Call `on_named` with the leader and its address if a known member names `stranger`.

        Does nothing while a search runs; the leader repeats its notices.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._search(stranger, on_named))

    def stop(self) -> None:
        """End the search."""
        if self._task is not None:
            self._task.cancel()

    async def _search(self, stranger: Member, on_named: Callable[[Member, str], None]) -> None:
        for member in self._node.members.everyone:
            address = self._addresses.of(member)
            if member == self._node.me or not address:
                continue
            found = await self._leader_known_at(address)
            if found is not None and found[0] == stranger:
                _log.info("raft_leader_named", leader=str(stranger), by=str(member))
                on_named(*found)
                return

    async def _leader_known_at(self, address: str) -> tuple[Member, str] | None:
        command = RemotingCommand(RayMQRequestCode.GET_RAFT_MEMBERS)
        try:
            body = RaftMembers.decode((await self._client.ask(address, command, TIMEOUT_MS)).body)
        except (RemotingError, Refused):
            return None
        leaders = (each for each in body.members if each.is_leader)
        return next(((Member(each.replica, each.store_id), each.address) for each in leaders), None)
