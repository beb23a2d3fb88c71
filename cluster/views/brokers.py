"""View of the brokers of a cluster: rates, disk usage, and messages that wait in a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cluster.views.replicas import Replica, replica_of, roles_of

if TYPE_CHECKING:
    from cluster.client import Admin
    from store.common.clock import Clock


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker. What a broker does not report is None: RocketMQ's brokers report no counts of
    waiting messages.

    Attributes:
        put_tps: Messages stored per second in the last 10 seconds.
        get_tps: Messages read per second in the last 10 seconds.
        disk_used: Used part of the disk that holds the CommitLog, from 0 to 1.
        up_s: Seconds since the start.
        raft_term: Term of its Raft group.
        raft_voters: Voters of its Raft group.
        raft_active_voters: Of a leader, voters that sent something lately, itself included.
    """

    version: str | None
    put_tps: float | None
    get_tps: float | None
    disk_used: float | None
    open_transactions: int | None
    pending_timers: int | None
    retries: int | None
    dead_letters: int | None
    up_s: int | None
    raft_term: int | None = None
    raft_voters: int | None = None
    raft_active_voters: int | None = None

    @property
    def is_bare_majority(self) -> bool:
        """True for the leader of a Raft group that cannot lose another voter."""
        if not self.raft_active_voters or self.raft_voters is None:
            return False
        return self.raft_active_voters <= self.raft_voters // 2 + 1


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """What a replica reports of itself and lacks of its master's log; None if that is unknown.

    `number` is its number in the topology, `role` a text with its role, term and lag.
    """

    number: int
    role: str
    term: int | None
    lag_bytes: int | None
    is_in_sync: bool | None


@dataclass(frozen=True, slots=True)
class BrokerView:
    """One replica of a broker.

    Attributes:
        load: Its load; None for a slave, or if it does not respond.
        replica: Its state if the broker has several; None for one of RocketMQ.
        problem: Why it did not respond; None if it did.
    """

    cluster: str
    broker: str
    id: int
    address: str
    load: BrokerLoad | None
    problem: str | None = None
    replica: ReplicaRow | None = None

    @property
    def is_up(self) -> bool:
        """True if it responds."""
        return self.load is not None or self.replica is not None


def list_brokers(admin: Admin, clock: Clock) -> list[BrokerView]:
    """Return all replicas of all brokers, by name and id.

    Raises `ClientError` if no nameserver responds or a broker refuses the request.
    """
    found: list[BrokerView] = []
    for name, data in sorted(admin.cluster_info().brokers.items()):
        views = [
            _view(admin, clock, data.cluster, name, replica, address)
            for replica, address in sorted(data.broker_addrs.items())
        ]
        has_term = any(each.load is not None and each.load.raft_term is not None for each in views)
        found += _with_states(admin, views) if has_term or len(views) > 1 else views
    return found


def _with_states(admin: Admin, views: Sequence[BrokerView]) -> Sequence[BrokerView]:
    """Return the replicas of one broker with their states, which they report themselves."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import BrokerRefused, ClientError, ConfigInvalid, NotSupported

    replicas: dict[int, Replica] = {}
    found = []
    for each in views:
        try:
            details = admin.broker_at(each.address)
        except NotSupported:
            found.append(each)
            continue
        except (BrokerRefused, ConfigInvalid):
            raise
        except ClientError as error:
            found.append(replace(each, problem=each.problem or str(error)))
            continue
        replicas[len(found)] = replica_of(each.broker, details, details)
        found.append(each)
    for at, role in zip(replicas, roles_of(replicas.values()), strict=True):
        number = replicas[at].number
        state = ReplicaRow(number, role.text, role.term, role.lag_bytes, role.is_in_sync)
        found[at] = replace(found[at], replica=state)
    return found


def _view(admin: Admin, clock: Clock, cluster: str, name: str, replica: int, address: str) -> BrokerView:
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import BrokerRefused, ClientError, ConfigInvalid

    if replica != 0:
        return BrokerView(cluster, name, replica, address, None)
    try:
        load = load_of(admin.broker_runtime(name), clock.wall_ms())
    except (BrokerRefused, ConfigInvalid):
        raise
    except ClientError as error:
        return BrokerView(cluster, name, replica, address, None, str(error))
    return BrokerView(cluster, name, replica, address, load)


def load_of(runtime: Mapping[str, str], now_ms: int) -> BrokerLoad:
    """Return the load in a broker's runtime information. `now_ms`: milliseconds since the epoch."""

    def count(key: str) -> int | None:
        return int(runtime[key]) if key in runtime else None

    return BrokerLoad(
        runtime.get("brokerVersionDesc"),
        _first_rate(runtime.get("putTps")),
        _first_rate(runtime.get("getTransferredTps")),
        float(runtime["commitLogDiskRatio"]) if runtime.get("commitLogDiskRatio") else None,
        count("openTransactions"),
        count("pendingTimers"),
        count("retriesPending"),
        count("deadLettersPending"),
        max(0, now_ms - int(runtime["bootTimestamp"])) // 1000 if runtime.get("bootTimestamp") else None,
        count("raftTerm"),
        count("raftVoters"),
        count("raftActiveVoters"),
    )


def _first_rate(text: str | None) -> float | None:
    """Return the first of RocketMQ's three rates, that of the last 10 seconds, or None."""
    parts = (text or "").split()
    return float(parts[0]) if parts else None
