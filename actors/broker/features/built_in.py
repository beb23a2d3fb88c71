"""The features of every broker, in the order in which their interceptors see a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.broker.broker_settings import RAFT, BrokerSettings
from actors.broker.core.capability import Feature
from actors.broker.features.delay.build import delay_levels
from actors.broker.features.kept_log.build import build_kept_log
from actors.broker.features.lite.build import pops_with_lite_topics
from actors.broker.features.metrics.build import build_metrics
from actors.broker.features.retry.build import build_retries
from actors.broker.features.timer.build import build_timer
from actors.broker.features.transactions.build import build_transactions
from actors.broker.replication.build import build_replication, open_single
from actors.broker.replication.ha.build_master import build_master
from actors.broker.replication.raft.build import Restart, first_and_last_feature

GROUP: Final = frozenset({RAFT})
PAIR: Final = frozenset({"", "async", "sync"})
"""Single brokers, and pairs of a master with its slaves."""
EVERYWHERE: Final = GROUP | PAIR


def built_in_features(settings: BrokerSettings, restart: Restart | None) -> Sequence[Feature]:
    """Return the features of a broker with this `replication`.

    The first interceptor that redirects a message decides: a dead letter is neither a transaction nor
    delayed, and a transaction is not delayed. `restart` stops the broker and starts it again; None if nothing
    would start it.
    """
    first, last = first_and_last_feature(restart)
    rows = (
        (PAIR, Feature(build_replication, open_store=open_single)),
        (GROUP, first),
        (EVERYWHERE, Feature(build_retries)),
        (EVERYWHERE, Feature(build_transactions)),
        (EVERYWHERE, Feature(build_timer)),
        (EVERYWHERE, pops_with_lite_topics()),
        (PAIR, delay_levels()),
        (GROUP, delay_levels(is_progress_replicated=True)),
        (EVERYWHERE, Feature(build_kept_log)),
        (EVERYWHERE, Feature(build_metrics)),
        (PAIR, Feature(build_master)),
        (GROUP, last),
    )
    return [feature for where, feature in rows if settings.replication in where]
