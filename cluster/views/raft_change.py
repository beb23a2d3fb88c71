"""View of a change of the members of a Raft group: its preview, its checks, and its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.wire.bodies.raft_members import CHANGED, DONE, RaftMember, RaftMembers
from actors.wire.codes import ResponseCode
from cluster.counted import counted
from cluster.waiting import Waiting

if TYPE_CHECKING:
    from cluster.client import Admin

POLL_S = 0.5
NO_LEADER_S = 60
"""How long a change waits for a leader: an election takes a few seconds."""
NO_MEMBER = RaftMember()


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A change of the members of a group, which is checked, and not begun.

    Attributes:
        broker: The name of the group.
        before: Its members as the leader knows them.
        add: The member to add; one without a store id means none.
        remove: The member to remove; likewise.
    """

    broker: str
    before: RaftMembers
    add: RaftMember
    remove: RaftMember

    @property
    def voters_after(self) -> int:
        """The number of voters when the change is done."""
        voters = {each.store_id for each in self.before.members if each.is_voter}
        voters.discard(self.remove.store_id)
        return len({*voters, *([self.add.store_id] if self.add.store_id else [])})

    @property
    def warning(self) -> str:
        """What the group cannot survive afterwards; empty for an odd number of voters from 3 on."""
        count = self.voters_after
        if count < 3:
            return f"with {counted(count, 'voter')} the group stops if one of them is lost"
        if count % 2 == 0:
            return f"{counted(count, 'voter')} survive the loss of no more replicas than {count - 1}"
        return ""

    @property
    def leaves_a_broker(self) -> bool:
        """True if the removed member may still run: the new broker has not taken its place."""
        return bool(self.remove.store_id) and self.remove.address != self.add.address

    def as_json(self) -> dict[str, Any]:
        """Return the facts of the change."""
        return {
            "broker": self.broker,
            "add": self.add.to_json() if self.add.store_id else None,
            "remove": self.remove.to_json() if self.remove.store_id else None,
            "votersAfter": self.voters_after,
        }


def plan_change(admin: Admin, broker: str, *, address: str = "", replica: int | None = None) -> MemberChange:
    """Return the change that adds the broker at `address` and removes member number `replica`.

    Raises:
        ConfigInvalid: the group is unknown or has no leader; it has no such member, or this one leads; the
            broker at `address` belongs elsewhere, or cannot be added beside the other members.
        ClientError: a broker does not respond or refuses.
    """
    before = admin.raft_members(broker)
    add = _candidate(admin, before, address) if address else NO_MEMBER
    remove = NO_MEMBER if replica is None else _removed(broker, before, replica, add)
    _check_beside(broker, before, add, remove, is_replacement=replica is not None)
    return MemberChange(broker, before, add, remove)


def _candidate(admin: Admin, before: RaftMembers, address: str) -> RaftMember:
    from cluster.client.errors import ConfigInvalid

    found = admin.broker_at(address)
    group = f"{found.get('cluster')}/{found.get('broker')}"
    if group != before.group:
        raise ConfigInvalid(
            f"the broker at {address} belongs to {group}, not to {before.group}: set its cluster_name and "
            "broker_name to those of the group, and give it an empty store"
        )
    if "raft_state" not in found:
        raise ConfigInvalid(
            f"the broker at {address} has no replication: raft: start it with that setting, without "
            "raft_members, and with an empty store"
        )
    return RaftMember(int(found["replica"]), str(found["store_id"]), str(found["address"]))


def _removed(broker: str, before: RaftMembers, replica: int, add: RaftMember) -> RaftMember:
    """Return the member to remove; none if an interrupted replacement has removed it already."""
    from cluster.client.errors import ConfigInvalid

    found = [each for each in before.members if each.replica == replica and each.store_id != add.store_id]
    if not found and any(each.store_id == add.store_id for each in before.members):
        return NO_MEMBER
    if not found:
        numbers = ", ".join(str(each.replica) for each in before.members)
        raise ConfigInvalid(f"group {broker} has no replica {replica}: its replicas are {numbers}")
    if found[0].is_leader:
        raise ConfigInvalid(
            f"replica {replica} leads group {broker}: transfer the leadership first, by "
            f"`raymq transfer {broker} --to N`"
        )
    return found[0]


def _check_beside(
    broker: str, before: RaftMembers, add: RaftMember, remove: RaftMember, *, is_replacement: bool
) -> None:
    """Raise ConfigInvalid if `add` cannot be a member beside the others."""
    from cluster.client.errors import ConfigInvalid

    for each in before.members if add.store_id else ():
        if each.store_id == add.store_id and each.is_voter and not is_replacement:
            raise ConfigInvalid(f"replica {each.replica} at {add.address} is a member of {broker} already")
        if each.replica == add.replica and each.store_id not in (add.store_id, remove.store_id):
            raise ConfigInvalid(
                f"group {broker} has a replica {each.replica}, at {each.address}: give the new broker "
                f"another number, or use `raymq replica replace {broker} {each.replica} {add.address}`"
            )


def run_change(admin: Admin, change: MemberChange, report: Callable[[str], None], waiting: Waiting) -> None:
    """Make the steps of a change, and report each one.

    A change that fails or is interrupted can be repeated: it continues.

    Raises:
        ClientError: a step is refused, or the group has had no leader for a minute.
    """
    from cluster.client.errors import ClientError

    said, deadline = "", waiting.deadline(NO_LEADER_S, POLL_S)
    while True:
        try:
            step = admin.change_raft_members(change.broker, change.add, change.remove)
        except ClientError as error:
            if not _may_pass(error) or not deadline.pause():
                raise
        else:
            deadline = waiting.deadline(NO_LEADER_S, POLL_S)
            if step.text and step.text != said:
                said = step.text
                report(said)
            if step.state == DONE:
                return
            if step.state != CHANGED:
                deadline.pause()


def _may_pass(error: Exception) -> bool:
    """Return True for an error that a change of the leader causes."""
    from cluster.client.errors import BrokerRefused, BrokerUnreachable, ConfigInvalid, DeadlineExceeded

    if isinstance(error, BrokerRefused):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, BrokerUnreachable | ConfigInvalid | DeadlineExceeded)
