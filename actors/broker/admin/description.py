"""The fields of DESCRIBE_BROKER: names, addresses, store positions and counters of one broker."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from actors.broker.broker_settings import BrokerSettings
from actors.broker.build_loop import BrokerLoop
from actors.broker.capability import Capability
from actors.broker.drain import BrokerDrain
from actors.broker.identity import BrokerIdentity
from actors.broker.metadata.tables import BrokerTables
from actors.broker.role import BrokerRole
from actors.broker.sending.delays import Delays
from actors.host.supervisor import Supervisor


def describe_broker(
    settings: BrokerSettings,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    role: BrokerRole,
    drain: BrokerDrain,
    delays: Delays,
    capabilities: Sequence[Capability],
    supervisor: Supervisor,
) -> dict[str, object]:
    """Return the fields of DESCRIBE_BROKER, including those of `capabilities`."""
    store, positions = loop.store, loop.store.positions
    return {
        "cluster": identity.cluster,
        "broker": identity.name,
        "broker_id": identity.broker_id,
        "replica": settings.replica,
        "address": identity.address,
        "pid": os.getpid(),
        "flush": settings.store.flush,
        "store_root": str(settings.store_root.resolve()),
        "store_id": store.identity.store_id,
        "epoch": store.epoch,
        "min_position": positions.min,
        "written": positions.written,
        "flushed": positions.flushed,
        "confirmed": positions.confirmed,
        "dispatched": positions.dispatched,
        "write_refusal": store.write_refusal or "",
        "role": str(role.role),
        "drain_state": str(drain.state),
        "topics": len(tables.topics.table.topics),
        "groups": len(tables.groups.table.groups),
        "connections": len(loop.server.connections),
        "held_pulls": len(loop.held),
        "sends_waiting": positions.waiting,
        "messages_in": loop.stats.put_total.messages,
        "messages_out": loop.stats.got_total.messages,
        "flushes": loop.flusher.flushes,
        "longest_flush_us": loop.flusher.longest_flush_ns // 1000,
        "unread_bytes": loop.server.hub.unread_bytes,
        "cold_reads": loop.reads.cold,
        "log_holes": len(store.holes),
        "messages_skipped": store.skipped,
        "delayed_messages_skipped": delays.skipped,
        "disk_percent": used_percent(store.root),
        "requests_refused": loop.admission.refused,
        "background_task_failures": supervisor.failures,
        **loop.lag.figures(),
        **dict(chain.from_iterable(each.fields().items() for each in capabilities)),
    }


def used_percent(folder: Path) -> float:
    """Return the used part of the disk that contains `folder`, in percent."""
    disk = shutil.disk_usage(folder)
    return round(100 * disk.used / max(disk.used + disk.free, 1), 1)
