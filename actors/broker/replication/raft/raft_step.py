"""What a replica of a Raft group serves: a chain step."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.raft.driver import RaftDriver
from actors.transport.request import OnSlave, RequestContext
from actors.wire.codes import ResponseCode, request_name
from actors.wire.remoting_errors import Refused


class RaftStep:
    """Refuses what a replica does not serve, or only as the leader."""

    def __init__(
        self,
        settings: BrokerSettings,
        driver: RaftDriver,
        leader_address: Callable[[], str],
        have_services: Callable[[], bool],
    ) -> None:
        """Create the step.

        Args:
            settings: `slave_read_enable` decides whether followers serve pulls.
            driver: drives the node of this replica.
            leader_address: returns the address of the leader, empty if it is not known.
            have_services: returns True if the services of this term's leader have started.
        """
        self._settings = settings
        self._driver = driver
        self._leader_address = leader_address
        self._have_services = have_services

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused if this replica does not serve the request now."""
        row, driver = context.row, self._driver
        if row.on_slave is OnSlave.SERVED:
            return
        if driver.failure:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, driver.failure)
        if row.on_slave is OnSlave.READ:
            if not (driver.is_leader or self._settings.slave_read_enable):
                self._refuse(row.code)
        elif not driver.accepts_sends:
            self._refuse(row.code)
        elif row.needs_services and not self._have_services():
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"{request_name(row.code)} is refused: services of the new leader are starting: try again",
            )

    def _refuse(self, code: int) -> None:
        if self._driver.is_leader:
            reason = "the leader has not confirmed the first record of its term yet: try again"
        else:
            leader = self._leader_address() or "not known yet"
            reason = f"replica {self._settings.replica} does not lead its group; the leader is {leader}"
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{request_name(code)} is refused: {reason}")
