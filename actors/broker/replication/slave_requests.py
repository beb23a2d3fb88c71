"""SlaveRequests: the chain step that decides which requests a slave handles (`RequestRow.on_slave`)."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.broker_settings import BrokerSettings
from actors.broker.role import Role
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import OnSlave, RequestContext

_NAMES = {int(code): code.name for codes in (RequestCode, RayMQRequestCode) for code in codes}


class SlaveRequests:
    """Refuses what only a master handles, while the broker is a slave."""

    def __init__(
        self, settings: BrokerSettings, role: Callable[[], Role], master: Callable[[], str | None]
    ) -> None:
        """Create the step.

        Args:
            settings: `slave_read_enable` decides whether the slave serves pulls.
            role: returns the current role of the broker.
            master: returns the address of the master, or None while it is unknown.
        """
        self._settings = settings
        self._role = role
        self._master = master

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused if this broker is a slave that does not handle the request."""
        on_slave = context.row.on_slave
        if on_slave is OnSlave.SERVED or self._role() is not Role.SLAVE:
            return
        if on_slave is OnSlave.READ and self._settings.slave_read_enable:
            return
        name = _NAMES.get(context.row.code, f"request code {context.row.code}")
        master = self._master() or "which is not registered at the nameservers"
        reason = f"{name} is not served by a slave: send it to the master of {self._settings.broker_name}"
        if on_slave is OnSlave.UNAVAILABLE:
            raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, f"{reason}, {master}")
        if on_slave is OnSlave.REFUSED:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{reason}, {master}")
        hint = ", or set slave_read_enable to true" if on_slave is OnSlave.READ else ""
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            # RocketMQ's remark up to the colon.
            f"[REJECTREQUEST]system busy, start flow control for a while: {reason}, {master}{hint}",
        )
