"""BrokerParts: what those who answer a broker's requests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors.broker.broker_settings import BrokerSettings
from actors.broker.group.clients import Clients
from actors.broker.group.consumer_offsets import ConsumerOffsets
from actors.broker.group.groups import Groups
from actors.broker.group.queue_locks import QueueLocks
from actors.broker.metadata.tables import BrokerTables
from actors.broker.metadata.topics import Topics
from actors.broker.reading.hold import HeldPulls
from actors.broker.reading.reads import Reads
from actors.broker.sending.acks import Acks
from actors.broker.sending.delays import Delays
from actors.broker.stats import BrokerStats
from actors.host.loop_lag import LoopLag
from actors.remoting.connection import Connection
from store.clock import Clock
from store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """One broker's store, tables and books; each is made once, by the service."""

    settings: BrokerSettings
    address: str
    """Where clients find it, `host:port`."""
    clock: Clock
    store: MessageStore
    reads: Reads
    tables: BrokerTables
    clients: Clients[Connection]
    locks: QueueLocks
    acks: Acks
    held: HeldPulls
    stats: BrokerStats
    lag: LoopLag
    wake: Callable[[str], None]
    """Answers the pulls that are held for a topic."""
    request_tick: Callable[[], None]
    """Asks for another turn's end."""

    @property
    def topics(self) -> Topics:
        """Which there are."""
        return self.tables.topics

    @property
    def groups(self) -> Groups:
        """What is set about each."""
        return self.tables.groups

    @property
    def offsets(self) -> ConsumerOffsets:
        """How far groups have committed."""
        return self.tables.offsets

    @property
    def delays(self) -> Delays:
        """What is to be delivered later."""
        return self.tables.delays
