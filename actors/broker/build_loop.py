"""Builds the parts of a broker that run its event loop: server, end of turn, flusher and reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.admission import Admission
from actors.broker.core.counters import RequestCounters
from actors.broker.core.loop.end_of_turn import EndOfTurn
from actors.broker.core.loop.flusher import Flusher
from actors.broker.core.loop.log_end import LogEnd
from actors.broker.core.loop.off_loop import OffLoop
from actors.broker.core.loop.reads import Reads
from actors.broker.core.loop.turn import Turn, TurnStep
from actors.broker.core.loop.wait_registry import WaitRegistry
from actors.broker.core.sending.acks import AckLimit, Acks
from actors.broker.core.stats import BrokerStats
from actors.host.cluster_tls import server_tls
from actors.host.loop_lag import LoopLag
from actors.ports import Ports
from actors.transport.chain import Step
from actors.transport.limits import KEPT_BYTES, RemotingLimits
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.codes import ResponseCode
from store.commitlog.confirm_policy import InSyncReplicas, confirm_policy
from store.common.clock import Clock
from store.common.live_settings import LiveSettings
from store.message_store import Arrival, MessageStore


@dataclass(frozen=True, slots=True)
class BrokerLoop:
    """The parts of a broker that its request handlers use: store, server, end of turn, reads and counters."""

    store: MessageStore
    requests: RequestTable
    counters: RequestCounters
    server: RemotingServer
    admission: Admission
    stats: BrokerStats
    lag: LoopLag
    held: WaitRegistry[Arrival]
    acks: Acks
    flusher: Flusher
    log_end: LogEnd
    turn: Turn
    end_of_turn: EndOfTurn
    off_loop: OffLoop
    reads: Reads


def build_loop(
    live: LiveSettings[BrokerSettings], clock: Clock, store: MessageStore, access_steps: Sequence[Step]
) -> BrokerLoop:
    """Build the server and the event-loop services of a broker, with an empty request table.

    Args:
        live: the settings of the broker.
        access_steps: the chain steps that authenticate and authorize requests; they run before admission.

    Raises StoreError if a certificate is missing or invalid.
    """
    settings = live.settings
    requests, counters = RequestTable(), RequestCounters()
    admission = Admission(settings, store, clock)
    steps: Sequence[Step] = (*access_steps, admission)
    ports, tls = Ports(clock, store.spare_descriptors), server_tls(settings)
    server = RemotingServer(requests, clock, _limits(settings), None, steps, (counters,), tls, ports)
    live.on_change(lambda _: server.hub.change_limits(**_memory_limits(settings)))
    held, stats = WaitRegistry[Arrival](clock, settings.max_held_pulls), BrokerStats(clock)
    flusher = Flusher(
        store,
        clock,
        server.request_tick,
        flushes_each_tick=settings.store.flush == "sync",
        flush_interval_ms=settings.store.flush_interval_ms,
    )
    log_end = LogEnd(settings, store.positions)
    end_of_turn = EndOfTurn(
        store,
        flusher,
        held,
        clock,
        server.hub,
        stats.put_times,
        log_end,
        settings.wait_in_pull_queue_ms,
    )
    turn = _turn(server, store, flusher, end_of_turn, admission)
    threads, capacity = settings.cold_read_threads, settings.pull_queue_capacity
    off_loop = OffLoop(clock, threads, capacity, settings.wait_in_pull_queue_ms)
    return BrokerLoop(
        store,
        requests,
        counters,
        server,
        admission,
        stats,
        LoopLag(clock, admission.note_lag, lambda: server.hub.turns),
        held,
        Acks(store, clock, tuple(_ack_limits(settings, store))),
        flusher,
        log_end,
        turn,
        end_of_turn,
        off_loop,
        Reads(store, off_loop, admission.admit_response, end_of_turn),
    )


def _turn(
    server: RemotingServer,
    store: MessageStore,
    flusher: Flusher,
    end_of_turn: EndOfTurn,
    admission: Admission,
) -> Turn:
    """Return the steps of every broker."""
    positions = store.positions

    def is_due() -> bool:
        return positions.written != end_of_turn.written or positions.waiting > 0 or admission.stalled_ms > 0

    steps = (
        TurnStep("flush", flusher.flush_if_idle),  # first: the disk works while this thread dispatches
        TurnStep("confirm", end_of_turn.confirm),
        TurnStep("dispatch", end_of_turn.dispatch),
        TurnStep("admit", admission.end_turn),
    )
    return Turn(server.hub, is_due, steps)


def _ack_limits(settings: BrokerSettings, store: MessageStore) -> Iterable[AckLimit]:
    positions = store.positions
    policy = confirm_policy(settings.store.flush, settings.replication, settings.in_sync_replicas)
    if isinstance(policy, InSyncReplicas):
        limit_ms, slaves = settings.slave_timeout_ms, settings.in_sync_replicas - 1
        yield AckLimit(
            limit_ms,
            lambda: policy.replicated(positions.replicas),
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            f"stored, but not acknowledged by {slaves} slaves within slave_timeout_ms {limit_ms}",
        )
    if settings.store.flush == "sync":
        limit_ms = settings.sync_flush_timeout_ms
        yield AckLimit(
            limit_ms,
            lambda: positions.flushed,
            ResponseCode.FLUSH_DISK_TIMEOUT,
            f"stored, but not flushed within sync_flush_timeout_ms {limit_ms}: the disk is slow",
        )


def _memory_limits(settings: BrokerSettings) -> dict[str, int]:
    unread_bytes = 2 * settings.max_unread_bytes  # `Admission` refuses pulls at half of this
    return {"max_unread_bytes": unread_bytes, "max_kept_bytes": max(KEPT_BYTES, unread_bytes)}


def _limits(settings: BrokerSettings) -> RemotingLimits:
    return RemotingLimits(
        busy_poll_us=settings.busy_poll_us,
        **_memory_limits(settings),
        unread_ms=settings.unread_timeout_ms,
        idle_ms=settings.idle_timeout_ms,
        max_connections_per_address=settings.max_connections_per_address,
        max_connections=settings.max_connections,
    )
