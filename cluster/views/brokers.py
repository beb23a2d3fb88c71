"""View of the brokers of a cluster: rates, disk usage, and messages that wait in a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.client import Admin
    from store.clock import Clock


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker. RocketMQ's brokers do not report the counts of waiting messages: they are None.

    Attributes:
        put_tps: Messages stored per second in the last 10 seconds.
        get_tps: Messages read per second in the last 10 seconds.
        disk_used: Used part of the disk that holds the CommitLog, from 0 to 1.
        up_s: Seconds since the start.
    """

    version: str | None
    put_tps: float
    get_tps: float
    disk_used: float
    open_transactions: int | None
    pending_timers: int | None
    retries: int | None
    dead_letters: int | None
    up_s: int


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One replica of a broker; `load` is None for a slave."""

    cluster: str
    broker: str
    id: int
    address: str
    load: BrokerLoad | None


def list_brokers(admin: Admin, clock: Clock) -> list[BrokerView]:
    """Return all replicas of all brokers, by name and id. Raises `ClientError`."""
    return [
        BrokerView(
            data.cluster,
            name,
            replica,
            address,
            load_of(admin.broker_runtime(name), clock.wall_ms()) if replica == 0 else None,
        )
        for name, data in sorted(admin.cluster_info().brokers.items())
        for replica, address in sorted(data.broker_addrs.items())
    ]


def load_of(runtime: Mapping[str, str], now_ms: int) -> BrokerLoad:
    """Return the load in a broker's runtime information. `now_ms`: milliseconds since the epoch."""

    def count(key: str) -> int | None:
        return int(runtime[key]) if key in runtime else None

    return BrokerLoad(
        runtime.get("brokerVersionDesc"),
        _first_rate(runtime.get("putTps")),
        _first_rate(runtime.get("getTransferredTps")),
        float(runtime.get("commitLogDiskRatio") or 0),
        count("openTransactions"),
        count("pendingTimers"),
        count("retriesPending"),
        count("deadLettersPending"),
        max(0, now_ms - int(runtime.get("bootTimestamp") or 0)) // 1000,
    )


def _first_rate(text: str | None) -> float:
    """Return the first of RocketMQ's three rates, that of the last 10 seconds."""
    parts = (text or "").split()
    return float(parts[0]) if parts else 0.0
