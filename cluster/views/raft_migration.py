"""Changes of the members of a Raft group that a broker becomes, or that becomes a single broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cluster.views.raft_change import NO_LEADER_S, POLL_S, plan_change, run_change

if TYPE_CHECKING:
    from actors.remoting.bodies.raft_members import RaftMembers
    from cluster.client import Admin
    from store.clock import Clock


class MemberSteps:
    """Makes the changes by the nameservers of the cluster, and reports each step."""

    def __init__(
        self,
        open_admin: Callable[[str], AbstractContextManager[Admin]],
        report: Callable[[str], None],
        sleep: Callable[[float], None],
        clock: Clock,
    ) -> None:
        self._open_admin = open_admin
        self._report = report
        self._sleep = sleep
        self._clock = clock

    def add(self, nameservers: str, broker: str, addresses: Sequence[str]) -> None:
        """Add the replicas at these addresses that are no voters yet.

        Raises ConfigInvalid, ClientError if the group has no leader for a minute, or refuses a step.
        """
        with self._open_admin(nameservers) as admin:
            voters = {each.store_id for each in self._led(admin, broker).members if each.is_voter}
            for address in addresses:
                if str(admin.broker_at(address)["store_id"]) not in voters:
                    self._report(f"adding {address} to {broker}")
                    change = plan_change(admin, broker, address=address)
                    run_change(admin, change, self._report, self._sleep, self._clock)

    def keep_only(self, nameservers: str, broker: str, replica: int) -> None:
        """Remove all members but one, which must lead.

        Raises ConfigInvalid, ClientError if another one leads, the group has no leader, or refuses a step.
        """
        from cluster.client.errors import ConfigInvalid

        with self._open_admin(nameservers) as admin:
            members = self._led(admin, broker).members
            leaders = [each.replica for each in members if each.is_leader]
            if leaders != [replica]:
                remedy = f"`raymq transfer {broker} --to {replica}` first"
                raise ConfigInvalid(f"replica {replica} of {broker} does not lead: {remedy}")
            for number in sorted(each.replica for each in members if not each.is_leader):
                self._report(f"removing replica {number} from {broker}")
                change = plan_change(admin, broker, replica=number)
                run_change(admin, change, self._report, self._sleep, self._clock)

    def _led(self, admin: Admin, broker: str) -> RaftMembers:
        """Return the members of a group, once its leader is registered."""
        from cluster.client.errors import BrokerRefused, BrokerUnreachable, ConfigInvalid

        begin_ns = self._clock.monotonic_ns()
        while True:
            try:
                return admin.raft_members(broker)
            except (ConfigInvalid, BrokerRefused, BrokerUnreachable):
                if self._clock.monotonic_ns() - begin_ns > NO_LEADER_S * 1_000_000_000:
                    raise
            self._sleep(POLL_S)
