"""The features of every broker, in the order in which their interceptors see a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.broker.capability import Feature
from actors.broker.delay.build import delay_levels
from actors.broker.metrics.build import build_metrics
from actors.broker.pop.build import build_pop
from actors.broker.replication.build import build_replication
from actors.broker.replication.build_master import build_master
from actors.broker.replication.raft.build import Restart, first_and_last_feature
from actors.broker.replication.raft.opening import RaftReplica
from actors.broker.retry.build import build_retries
from actors.broker.timer.build import build_timer
from actors.broker.transactions.build import build_transactions


def raft_features(
    open_replica: Callable[[Sequence[Feature]], RaftReplica], restart: Restart | None
) -> tuple[RaftReplica, Sequence[Feature]]:
    """Open the store of a replica of a Raft group, and return the replica with its features.

    Args:
        open_replica: opens the store with the dispatch sinks of the features.
        restart: stops the broker and starts it again; None if nothing would start it.

    Raises the errors of `open_replica`.
    """
    first, last = first_and_last_feature(lambda: replica, restart)
    features = (
        first,
        Feature(build_retries),
        Feature(build_transactions),
        Feature(build_timer),
        Feature(build_pop),
        delay_levels(is_progress_replicated=True),
        Feature(build_metrics),
        last,
    )
    replica = open_replica(features)
    return replica, features


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
