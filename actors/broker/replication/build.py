"""Builds the replication of a broker: the requests that a slave refuses."""

from __future__ import annotations

from actors.broker.broker_settings import SLAVE
from actors.broker.capability import Capability
from actors.broker.parts import BrokerParts
from actors.broker.replication.slave_requests import SlaveRequests
from actors.broker.role import Role


def build_replication(parts: BrokerParts) -> Capability:
    """Build the replication of a broker; one that starts as a master has no step on its hot path."""
    role, registration = parts.role, parts.registration
    if parts.settings.role != SLAVE:
        return Capability()
    step = SlaveRequests(parts.settings, lambda: role.role, lambda: registration.master.master_addr)
    return Capability(steps=(step,), permits_plain_sends=lambda: role.role is Role.MASTER)
