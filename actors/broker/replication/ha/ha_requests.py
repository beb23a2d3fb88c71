"""GET_BROKER_HA_STATUS: the state of the slaves, as mqadmin's haStatus shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import orjson

from actors.broker.core.role import Role
from actors.broker.replication.ha.ha_server import SlaveState
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.targets import Action, on_cluster
from store.message_store import MessageStore

_NO_CLIENT = {
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}
"""The part for slaves; mqadmin expects all its fields from masters too. Times and speed are not measured."""


HA_ADDRESS: Final = "haServerAddr"
"""RayMQ's field with the address that slaves connect to."""


class HaRequests:
    """Request handler for the state of the replication."""

    def __init__(
        self,
        store: MessageStore,
        role: Callable[[], Role],
        master: Callable[[], str | None],
        slaves: Callable[[], Sequence[SlaveState]],
        address: str,
    ) -> None:
        """Create the handler.

        Args:
            store: has the log.
            role: returns the current role of the broker.
            master: returns the HA address of the master of a slave; None while it is unknown.
            slaves: returns the connected slaves of a master.
            address: the HA address of this broker; empty if the port is closed.
        """
        self._store = store
        self._role = role
        self._master = master
        self._slaves = slaves
        self._address = address

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, get = RequestCode.GET_BROKER_HA_STATUS, on_cluster(Action.GET)
        return (RequestRow(code, self.status, None, get, on_slave=OnSlave.SERVED),)

    def status(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_BROKER_HA_STATUS: return the slaves and the end of the log (HARuntimeInfo)."""
        slaves, is_master = self._slaves(), self._role() is Role.MASTER
        end = self._store.positions.written
        own = {} if is_master else {"masterAddr": self._master() or "", "maxOffset": end}
        status = {
            "haClientRuntimeInfo": _NO_CLIENT | own,
            "haConnectionInfo": [
                {
                    "addr": each.address,
                    "diff": each.lag_bytes,
                    "inSync": each.is_in_sync,
                    "slaveAckOffset": each.acknowledged,
                    "transferFromWhere": each.sent,
                    "transferredByteInSecond": each.bytes_per_s,
                }
                for each in slaves
            ],
            HA_ADDRESS: self._address,
            "inSyncSlaveNums": sum(each.is_in_sync for each in slaves),
            "master": is_master,
            "masterCommitLogMaxOffset": end,
        }
        return RemotingCommand.response(body=orjson.dumps(status))
