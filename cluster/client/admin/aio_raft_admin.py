"""Async admin requests about the members of Raft groups."""

from __future__ import annotations

from typing import Any

import orjson

from actors.wire.admin_headers import ChangeRaftMembersHeader
from actors.wire.bodies.raft_members import RaftChange, RaftMember, RaftMembers
from actors.wire.codes import RayMQRequestCode
from cluster.client.admin.admin_core import AdminCore
from cluster.client.errors import ConfigInvalid

NO_MEMBER = RaftMember()


class RaftAdmin(AdminCore):
    """Requests about the members of Raft groups."""

    async def raft_members(self, broker: str) -> RaftMembers:
        """Return the members of a Raft group as its leader knows them.

        Raises:
            ConfigInvalid: The group is unknown, or has no leader now.
            BrokerRefused: The broker is in no Raft group.
        """
        response = await self._call(await self._leader(broker), RayMQRequestCode.GET_RAFT_MEMBERS)
        return RaftMembers.decode(response.body)

    async def change_raft_members(
        self, broker: str, add: RaftMember = NO_MEMBER, remove: RaftMember = NO_MEMBER
    ) -> RaftChange:
        """Make at most one step to a group with `add` and without `remove`; the default means none.

        Repeat the call until the `state` of the result is DONE.

        Raises:
            ConfigInvalid: The group is unknown, or has no leader now.
            BrokerRefused: The step is not safe or not possible now; nothing was changed.
        """
        header = ChangeRaftMembersHeader(
            add.replica if add.store_id else -1,
            add.store_id,
            add.address,
            remove.replica if remove.store_id else -1,
            remove.store_id,
        )
        response = await self._call(await self._leader(broker), RayMQRequestCode.CHANGE_RAFT_MEMBERS, header)
        return RaftChange.decode(response.body)

    async def broker_at(self, address: str) -> dict[str, Any]:
        """Return what a broker of RayMQ reports of itself, such as its names, `replica` and `store_id`.

        Raises BrokerUnreachable if it does not respond, ConfigInvalid if the address is invalid.
        """
        response = await self._call(address, RayMQRequestCode.DESCRIBE_BROKER)
        found: dict[str, Any] = orjson.loads(response.body)
        return found

    async def _leader(self, broker: str) -> str:
        info = await self.cluster_info()
        data = info.brokers.get(broker)
        if data is not None and 0 not in data.broker_addrs:
            known = ", ".join(map(str, data.broker_addrs.values()))
            raise ConfigInvalid(
                f"group {broker} has no leader now: start its replicas, of which {known} are registered; if "
                "a majority is lost for good, see `raymq replica recover-group --help`"
            )
        return await self._master(broker)
