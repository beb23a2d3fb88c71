"""RestartRequests: the request that restarts a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.admin_headers import RestartBrokerHeader
from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster

Restart = Callable[[str], None]
"""Stops the broker cleanly and starts it again; called with the reason on the broker's event loop."""


class RestartRequests:
    """Request handler for RESTART_BROKER."""

    def __init__(self, broker_name: str, restart: Restart | None) -> None:
        """Create the handler; `restart` is None if nothing would start the broker again."""
        self._broker_name = broker_name
        self._restart = restart

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, update = RayMQRequestCode.RESTART_BROKER, on_cluster(Action.UPDATE)
        return (RequestRow(code, self.restart, RestartBrokerHeader, update, on_slave=OnSlave.SERVED),)

    def restart(self, context: RequestContext) -> RemotingCommand:
        """Handle RESTART_BROKER: respond, then restart the broker with the same settings.

        Raises Refused if the broker does not run as an actor.
        """
        header: RestartBrokerHeader = context.header
        if self._restart is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"broker {self._broker_name} is not an actor of Ray, which would start it again: restart its "
                "process on its machine",
            )
        if not header.dry_run:
            reason = f"restart requested by {context.connection.peer}"
            asyncio.get_running_loop().call_soon(self._restart, reason)
        return RemotingCommand.response()
