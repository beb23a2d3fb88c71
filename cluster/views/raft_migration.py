"""Changes of the members of a Raft group that a broker becomes, or that becomes a single broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cluster.views.raft_change import NO_LEADER_S, POLL_S, plan_change, run_change
from cluster.waiting import SYSTEM_WAITING, Waiting

if TYPE_CHECKING:
    from actors.wire.bodies.raft_members import RaftMembers
    from cluster.client import Admin


class MemberSteps:
    """Makes the changes by the nameservers of the cluster, and reports each step."""

    def __init__(
        self,
        open_admin: Callable[[str], AbstractContextManager[Admin]],
        report: Callable[[str], None],
        waiting: Waiting = SYSTEM_WAITING,
    ) -> None:
        self._open_admin = open_admin
        self._report = report
        self._waiting = waiting

    def add(self, nameservers: str, broker: str, addresses: Sequence[str]) -> None:
        """Add the replicas at these addresses that are no voters yet.

        Raises ConfigInvalid, ClientError if the group has no leader for a minute, or refuses a step.
        """
        with self._open_admin(nameservers) as admin:
            voters = {each.store_id for each in self._wait_for_leader(admin, broker).members if each.is_voter}
            for address in addresses:
                if str(admin.broker_at(address)["store_id"]) not in voters:
                    self._report(f"adding {address} to {broker}")
                    change = plan_change(admin, broker, address=address)
                    run_change(admin, change, self._report, self._waiting)

    def remove_other_members(self, nameservers: str, broker: str, replica: int) -> None:
        """Remove all members but one, which must lead.

        Raises ConfigInvalid, ClientError if another one leads, the group has no leader, or refuses a step.
        """
        from cluster.client.errors import ConfigInvalid

        with self._open_admin(nameservers) as admin:
            members = self._wait_for_leader(admin, broker).members
            leaders = [each.replica for each in members if each.is_leader]
            if leaders != [replica]:
                remedy = f"`raymq transfer {broker} --to {replica}` first"
                raise ConfigInvalid(f"replica {replica} of {broker} does not lead: {remedy}")
            for number in sorted(each.replica for each in members if not each.is_leader):
                self._report(f"removing replica {number} from {broker}")
                change = plan_change(admin, broker, replica=number)
                run_change(admin, change, self._report, self._waiting)

    def _wait_for_leader(self, admin: Admin, broker: str) -> RaftMembers:
        """Return the members of a group, once its leader is registered."""
        from cluster.client.errors import BrokerRefused, BrokerUnreachable, ConfigInvalid

        deadline = self._waiting.deadline(NO_LEADER_S, POLL_S)
        while True:
            try:
                return admin.raft_members(broker)
            except (ConfigInvalid, BrokerRefused, BrokerUnreachable):
                if not deadline.pause():
                    raise
