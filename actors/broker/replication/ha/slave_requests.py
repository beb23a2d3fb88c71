"""SlaveRequests: the chain step that decides what slaves and former masters serve (`RequestRow.on_slave`)."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.role import Role
from actors.transport.request import OnSlave, RequestContext
from actors.wire.codes import ResponseCode, request_name
from actors.wire.remoting_errors import Refused


class SlaveRequests:
    """Refuses what only a master handles, while the broker is a slave or fenced."""

    def __init__(
        self,
        settings: BrokerSettings,
        role: Callable[[], Role],
        master: Callable[[], str | None],
        write_refusal: Callable[[], str | None],
        is_former_master: Callable[[], bool],
    ) -> None:
        """Create the step.

        Args:
            settings: `slave_read_enable` decides whether the slave serves pulls.
            role: returns the current role of the broker.
            master: returns the address of the master, or None while it is unknown.
            write_refusal: returns why the store of a fenced broker refuses writes.
            is_former_master: returns True if the broker is fenced because another replica was promoted.
        """
        self._settings = settings
        self._role = role
        self._master = master
        self._write_refusal = write_refusal
        self._is_former_master = is_former_master

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused if this broker is a slave or fenced, and does not handle the request then."""
        if context.row.on_slave is OnSlave.SERVED:
            return
        role = self._role()
        if role is Role.SLAVE:
            self._refuse_on_slave(context)
        elif role is Role.FENCED:
            self._refuse_if_fenced(context)

    def _refuse_if_fenced(self, context: RequestContext) -> None:
        is_read = context.row.on_slave in (OnSlave.READ, OnSlave.OFFSETS)
        if not is_read or self._is_former_master():
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{request_name(context.row.code)} is refused by a fenced broker: {self._write_refusal()}",
            )

    def _refuse_on_slave(self, context: RequestContext) -> None:
        on_slave = context.row.on_slave
        if on_slave is OnSlave.OFFSETS or (on_slave is OnSlave.READ and self._settings.slave_read_enable):
            return
        name = request_name(context.row.code)
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
