"""The features of every broker, in the order in which their interceptors see a message."""

from __future__ import annotations

from collections.abc import Sequence

from actors.broker.capability import Feature
from actors.broker.delay.build import delay_levels
from actors.broker.metrics.build import build_metrics
from actors.broker.pop.build import build_pop
from actors.broker.replication.build import build_replication
from actors.broker.replication.build_master import build_master
from actors.broker.replication.raft.build import Restart, build_raft
from actors.broker.replication.raft.opening import RaftReplica
from actors.broker.retry.build import build_retries
from actors.broker.timer.build import build_timer
from actors.broker.transactions.build import build_transactions


def raft_features(replica: RaftReplica, restart: Restart | None) -> Sequence[Feature]:
    """Return the features of a replica of a Raft group: those whose progress needs no replication."""
    return (Feature(lambda parts: build_raft(parts, replica, restart)), Feature(build_metrics))


def built_in_features() -> Sequence[Feature]:
    """Return the features of every broker, except the replicas of Raft groups.

    The first interceptor that redirects a message decides: a dead letter is neither a transaction nor
    delayed, and a transaction is not delayed.
    """
    return (
        Feature(build_replication),
        Feature(build_retries),
        Feature(build_transactions),
        Feature(build_timer),
        Feature(build_pop),
        delay_levels(),
        Feature(build_metrics),
        Feature(build_master),
    )
