"""MemberRequests: the requests that show and change the members of a Raft group.

    raymq replica add ──CHANGE_RAFT_MEMBERS──→ leader     one step, then `changed`
                      ──CHANGE_RAFT_MEMBERS──→ leader     `waiting`: the new replica copies the log
                      ──CHANGE_RAFT_MEMBERS──→ leader     …, `done`

The requests name the goal, and each makes at most one step to it. So nothing is remembered between them: the
same request continues a change that was interrupted, at a new leader too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from actors.broker.replication.raft.addresses import MemberAddresses
from actors.raft.members import Member, Members, NotAllowed, next_change
from actors.raft.node import RaftNode
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import ChangeRaftMembersHeader
from actors.wire.bodies.raft_members import (
    CHANGED,
    DONE,
    WAITING,
    RaftChange,
    RaftMember,
    RaftMembers,
)
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.common.logs import get_logger
from store.message.hosts import split_address

_log = get_logger(__name__)


class ChangesMembers(Protocol):
    """What the requests need of the driver of a replica."""

    @property
    def node(self) -> RaftNode:
        """The node of the replica."""

    @property
    def is_leader(self) -> bool:
        """True while the replica leads."""

    @property
    def accepts_sends(self) -> bool:
        """True while the replica leads, and may append."""

    @property
    def failure(self) -> str:
        """Why this replica takes no part in its group; empty while it does."""

    def change_members(self, members: Members) -> None:
        """Append a group record with other members. Raises NotAllowed."""


class GroupOfReplica(NamedTuple):
    """The group of a replica, as its requests see it."""

    name: str
    driver: ChangesMembers
    addresses: MemberAddresses


class MemberRequests:
    """Request handler for GET_RAFT_MEMBERS and CHANGE_RAFT_MEMBERS."""

    def __init__(self, group: GroupOfReplica | None) -> None:
        """Create the handler; `group` is None for a broker that is in no group."""
        self._group = group

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, served = RayMQRequestCode, OnSlave.SERVED
        return (
            RequestRow(
                code.CHANGE_RAFT_MEMBERS, self.change, ChangeRaftMembersHeader, on_cluster(Action.UPDATE),
                on_slave=served,
            ),
            RequestRow(code.GET_RAFT_MEMBERS, self.members, None, on_cluster(Action.GET), on_slave=served),
        )  # fmt: skip

    def members(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_RAFT_MEMBERS: return the members as this replica knows them."""
        group = self._require_group()
        node = group.driver.node
        matches = {**node.match_offsets, **({node.me: node.confirmed} if group.driver.is_leader else {})}
        found = [
            RaftMember(
                each.replica,
                each.store_id,
                group.addresses.of(each),
                each in node.members.voters,
                each == node.leader,
                matches.get(each, -1),
            )
            for each in node.members.everyone
        ]
        return RemotingCommand.response(
            body=RaftMembers(group.name, node.term, node.confirmed, found).encode()
        )

    def change(self, context: RequestContext) -> RemotingCommand:
        """Handle CHANGE_RAFT_MEMBERS: make the next step to the requested members, if it can be made now."""
        group, header = self._require_group(), context.header
        node = group.driver.node
        if not group.driver.is_leader:
            leader = "" if node.leader is None else group.addresses.of(node.leader)
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{node.me} does not lead its group: send the change to its leader, "
                f"{leader or 'not known yet'}",
            )
        add, remove = self._added(header, node.members), _removed(header)
        if not group.driver.accepts_sends:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{node.me} has not confirmed its first record as the leader yet, or hands over: try again",
            )
        try:
            change = self._step(group, remove, add, header.add_address)
        except NotAllowed as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the members were not changed: {error}") from None
        return RemotingCommand.response(body=change.encode())

    def _require_group(self) -> GroupOfReplica:
        if self._group is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "this broker is in no Raft group: it has no replication: raft"
            )
        if self._group.driver.failure:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, self._group.driver.failure)
        return self._group

    def _added(self, header: ChangeRaftMembersHeader, members: Members) -> Member | None:
        """Return the member to add. Raises Refused if it is invalid, or conflicts with another member."""
        if not header.add_store_id:
            return None
        add = Member(header.add_replica, header.add_store_id)
        try:
            split_address(header.add_address)
        except ValueError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"addAddress: {error}") from None
        if add.replica < 0:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"addReplica is {add.replica}: it must be 0 or more"
            )
        if add == _removed(header):
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"{add} is to be added and removed: name one change"
            )
        for each in members.everyone:
            is_same_store = each.store_id == add.store_id and each != add
            is_same_number = each.replica == add.replica and each != add and each != _removed(header)
            if is_same_store or is_same_number:
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"{add} cannot be added beside {each}: give it another replica number and an empty "
                    "store, or replace that member by it",
                )
        return add

    def _step(
        self, group: GroupOfReplica, remove: Member | None, add: Member | None, address: str
    ) -> RaftChange:
        """Make the next step. Raises NotAllowed."""
        node = group.driver.node
        members = node.members
        new = next_change(members, remove, add)
        if not node.is_settled:
            return RaftChange(WAITING, "the last change is not confirmed yet")
        if new is None:
            return RaftChange(DONE, "")
        if add is not None and add in new.voters and not node.has_caught_up(add):
            copied = node.match_offsets.get(add, 0)
            return RaftChange(
                WAITING, f"replica {add.replica} has copied the log up to {copied:,} of {node.confirmed:,} B"
            )
        if add is not None:
            new = new.with_addresses({add: address})
        group.driver.change_members(new)
        text = _describe(members, new)
        _log.info("raft_members_changed", change=text)
        return RaftChange(CHANGED, text)


def _removed(header: ChangeRaftMembersHeader) -> Member | None:
    return Member(header.remove_replica, header.remove_store_id) if header.remove_store_id else None


def _describe(old: Members, new: Members) -> str:
    """Return what a step has changed."""
    for each in new.everyone:
        if each not in old.everyone:
            return f"{each} gets the log"
        if each in new.voters and each not in old.voters:
            return f"{each} is a voter"
    [gone] = [each for each in old.everyone if each not in new.everyone]
    return f"{gone} is removed"
