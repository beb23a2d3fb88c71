"""BrokerParts: what the broker offers to the features that are added to it (see `capability`)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from actors.broker.broker_settings import BrokerSettings
from actors.broker.build_loop import BrokerLoop
from actors.broker.core.auth.build_access import BrokerAccess
from actors.broker.core.drain import BrokerDrain
from actors.broker.core.group.assignments import Assignments
from actors.broker.core.group.client_requests import ClientRequests
from actors.broker.core.group.clients import Clients
from actors.broker.core.group.group_progress import GroupProgress
from actors.broker.core.group.popping_groups import PoppingGroups
from actors.broker.core.group.queue_locks import QueueLocks
from actors.broker.core.identity import BrokerIdentity
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.reading.queue_reader import QueueReader
from actors.broker.core.registration import Registration
from actors.broker.core.role import BrokerRole
from actors.broker.core.sending.stored_properties import PropertyWriter
from actors.broker.core.table_spec import TableSpec
from actors.supervisor import Supervisor
from actors.transport.client import RemotingClient
from actors.transport.connection import Connection
from store.common.clock import Clock
from store.common.live_settings import LiveSettings


@dataclass(frozen=True, slots=True)
class BrokerGroups:
    """The clients and consumer groups of one broker, and the handlers of their requests."""

    clients: Clients[Connection]
    progress: GroupProgress
    locks: QueueLocks
    requests: ClientRequests
    assignments: Assignments


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of one broker.

    Only `build` functions use it: they pass each object of their feature the parts that it needs.
    """

    live: LiveSettings[BrokerSettings]
    clock: Clock
    rng: random.Random
    """Source of random numbers, for the choice of queues and for ids."""
    identity: BrokerIdentity
    access: BrokerAccess
    """Decides what the user of a request may read, send and see."""
    loop: BrokerLoop
    """The store, the server and the services of the event loop."""
    tables: BrokerTables
    specs: Mapping[str, TableSpec]
    """The replicated tables, those of features included, by name."""
    groups: BrokerGroups
    drain: BrokerDrain
    popping: PoppingGroups
    """The groups that pop, for a report of those that pull too."""
    reader: QueueReader
    """Checks and reads queues for consumers."""
    properties: PropertyWriter
    """Writes the properties of stored messages; generates unique keys."""
    role: BrokerRole
    registration: Registration
    remoting_client: RemotingClient
    """Sends requests to other processes of the cluster."""
    supervisor: Supervisor

    @property
    def settings(self) -> BrokerSettings:
        """The settings; those marked LIVE may change, see `live`."""
        return self.live.settings
