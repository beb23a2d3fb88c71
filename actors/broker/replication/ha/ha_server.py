"""HaServer: a master's HA port, to which slaves connect to copy the CommitLog (RocketMQ's DefaultHAService).

The stream has no names, so a replica is an IP address: the connections of one address count as one slave, at
the position of the newest one. Slaves on one machine would be lost together.

With `replication: sync`, appends are refused while fewer than `in_sync_replicas` replicas, the master
included, are in sync (`SendGate`). Anything else that a send must wait for is decided by `InSyncReplicas`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.bounds import AtLimit, Bound, Use
from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.ha.ha_connection import Credit, HaConnection, HaLoop
from actors.broker.replication.ha.slave_stream import REPORTS_AHEAD
from actors.broker.replication.ha.written_times import WrittenTimes
from actors.ports import Port, Ports
from store.commitlog.confirm_policy import SYNC
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message_store import MessageStore
from store.writing.send_gate import REPLICATION

_log = get_logger(__name__)

Gate = Callable[[Callable[[], HaConnection]], asyncio.BufferedProtocol]
SWEEP_MS = 100
SAMPLE_MS = 1_000
CONNECTIONS: Final = Bound(
    "ha_connections",
    64,
    AtLimit.CLOSE,
    "Connections of the HA port; those of no slave are closed first.",
)
DRAIN_MS = 2_000
"""How long a stop waits for the slaves that are in sync."""
_DRAIN_PAUSE_S = 0.002
_CLOSED = (
    "authentication_enabled is true and the HA port has no authentication: set ha_tls, or "
    "ha_allow_unauthenticated"
)


@dataclass(frozen=True, slots=True)
class SlaveState:
    """What is known about one connected slave."""

    address: str
    acknowledged: int
    """The slave has the log up to this CommitLog offset."""
    sent: int
    """The log was sent up to this CommitLog offset."""
    lag_bytes: int
    lag_s: int
    is_in_sync: bool
    bytes_per_s: int


class HaServer:
    """The HA port of one broker and its connections. All methods run on the loop that owns the store."""

    def __init__(
        self,
        settings: BrokerSettings,
        port: int,
        store: MessageStore,
        clock: Clock,
        loop: HaLoop,
        request_tick: Callable[[], object],
        ports: Ports,
        gate: Gate | None = None,
    ) -> None:
        """Create the server; it does not listen yet.

        Args:
            settings: replication mode and limits; `ha_max_bytes_per_s` may change.
            port: the port to listen on; 0 keeps it closed.
            store: the log to send; its positions get the acknowledgements.
            clock: for time-outs and lags.
            loop: runs and delays the work of the connections.
            request_tick: requests a turn, which confirms what slaves have acknowledged.
            ports: the ports of the process.
            gate: returns the first protocol of a connection, which the protocol of the slave follows after
                the TLS handshake; None without TLS.
        """
        self._settings = settings
        self._port = port
        self._store = store
        self._clock = clock
        self._request_tick = request_tick
        self._is_sync = settings.replication == SYNC
        self._credit = Credit()
        self._make = partial(HaConnection, store, clock, loop, self._credit, self._changed)
        self._accept = self._make if gate is None else partial(gate, self._make)
        self._connections: list[HaConnection] = []
        self._first = 0
        self._counted: dict[str, HaConnection] = {}
        self._replica_of: dict[str, int] = {}
        self._replicas = 0
        self._ports = ports
        self._listener: Port | None = None
        self._is_stopped = False
        self._times = WrittenTimes()
        self._sampled_ns = 0
        self._rates: dict[HaConnection, tuple[int, int]] = {}
        self._move_gate()

    @property
    def in_sync(self) -> int:
        """Number of replicas in sync, the master included."""
        return 1 + sum(each.stream.is_in_sync for each in self._counted.values())

    @property
    def connections(self) -> int:
        """Number of open connections, those without a report included."""
        return len(self._connections)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            CONNECTIONS.use(lambda: len(self._connections)),
            REPORTS_AHEAD.use(
                lambda: max((each.stream.reports_ahead for each in self._connections), default=0)
            ),
        )

    def slaves(self) -> Sequence[SlaveState]:
        """Return the state of each connected slave."""
        now_ns = self._clock.monotonic_ns()
        return [
            SlaveState(
                each.address,
                each.stream.acknowledged,
                each.stream.next,
                each.stream.lag_bytes,
                self._times.age_s(each.stream.acknowledged, now_ns),
                each.stream.is_in_sync,
                self._rates.get(each, (0, 0))[1],
            )
            for each in self._counted.values()
        ]

    async def start(self) -> None:
        """Listen for slaves. Raises OSError if the port is in use."""
        settings = self._settings
        self._is_stopped = False
        self._credit.refill(settings.ha_max_bytes_per_s, SWEEP_MS)
        self._move_gate()
        if not self._port:
            _log.warning("ha_port_closed", reason=_CLOSED)
            return
        try:
            self._listener = await self._ports.listen(
                settings.listen_host, self._port, self._accept, lambda: self._connections, CONNECTIONS.limit
            )
        except OSError as error:
            raise OSError(
                error.errno,
                f"the HA port {settings.listen_host}:{self._port} could not be bound: {error.strerror} (set "
                "ha_listen_port, or stop the process that uses it)",
            ) from error
        _log.info("ha_port_open", host=settings.listen_host, port=self._port)

    async def stop(self) -> None:
        """Refuse sends, wait up to DRAIN_MS until the slaves in sync have the log, and disconnect them."""
        self._is_stopped = True
        self._store.gate.close(REPLICATION, "this broker is no longer the master of its group")
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        ends_ns = self._clock.monotonic_ns() + DRAIN_MS * NS_PER_MS
        while self._is_draining() and self._clock.monotonic_ns() < ends_ns:
            self._request_tick()
            await asyncio.sleep(_DRAIN_PAUSE_S)
        for connection in self._connections[:]:
            connection.close()

    def push(self) -> None:
        """Send new bytes of the log to all slaves; called at the end of each turn."""
        for connection in self._connections:
            connection.push()

    def sweep(self) -> None:
        """Refill the rate limit, send heartbeats, disconnect silent slaves; called every SWEEP_MS."""
        now_ns = self._clock.monotonic_ns()
        self._credit.refill(self._settings.ha_max_bytes_per_s, SWEEP_MS)
        self._first = (self._first + 1) % max(len(self._connections), 1)  # to spend what may be sent
        for connection in self._connections[self._first :] + self._connections[: self._first]:
            connection.sweep(now_ns)
        if now_ns - self._sampled_ns >= SAMPLE_MS * NS_PER_MS:
            self._sample(now_ns)
        self._move_gate()

    def _is_draining(self) -> bool:
        return any(each.stream.is_in_sync and each.stream.lag_bytes for each in self._counted.values())

    def _sample(self, now_ns: int) -> None:
        seconds = (now_ns - self._sampled_ns) / 1e9
        self._sampled_ns = now_ns
        self._times.add(self._store.positions.written, now_ns)
        self._rates = {
            each: (each.sent_bytes, int((each.sent_bytes - self._rates.get(each, (0, 0))[0]) / seconds))
            for each in self._connections
        }

    def _changed(self, connection: HaConnection) -> None:
        """Update the positions after a connection was opened or lost, or has received a report."""
        if not connection.is_open:
            if connection in self._connections:
                self._connections.remove(connection)
        elif connection not in self._connections:
            if self._listener is None or len(self._connections) >= CONNECTIONS.limit:
                connection.refuse(f"{CONNECTIONS.limit} connections are open, or the port is being closed")
                return
            self._connections.append(connection)
            return
        if not connection.is_open or self._counted.get(connection.host) is not connection:
            self._recount()
        self._acknowledge(connection)

    def _recount(self) -> None:
        """Find the newest streaming connection of each address."""
        self._counted = {each.host: each for each in self._connections if each.stream.is_streaming}
        for host in self._replica_of.keys() - self._counted.keys():
            self._store.positions.remove_replica(self._replica_of.pop(host))
        for host, connection in self._counted.items():
            if host not in self._replica_of:
                self._replicas += 1
                self._replica_of[host] = self._replicas
            self._acknowledge(connection)
        self._move_gate()

    def _acknowledge(self, connection: HaConnection) -> None:
        if self._counted.get(connection.host) is connection:
            replica = self._replica_of[connection.host]
            self._store.positions.acknowledge(replica, connection.stream.acknowledged)
            if self._is_sync:
                self._request_tick()

    def _move_gate(self) -> None:
        """Refuse sends while too few replicas are in sync, before anything is appended."""
        needed = self._settings.in_sync_replicas
        if self._is_stopped:
            return
        if not self._is_sync or (in_sync := self.in_sync) >= needed:
            self._store.gate.open(REPLICATION)
        else:
            cause = f"{in_sync} of in_sync_replicas {needed}, the master included, are in sync"
            remark = f"in-sync replicas not enough: {cause}" + ("" if self._port else f"; {_CLOSED}")
            self._store.gate.close(REPLICATION, remark)
