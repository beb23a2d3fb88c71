"""Builds the metrics of a broker that RocketMQ 5 has too, except those of the timer and of transactions."""

from __future__ import annotations

from actors.broker.capability import Capability
from actors.broker.metrics.connection_figures import connection_figures
from actors.broker.metrics.lags import Lags, lag_figures
from actors.broker.metrics.message_figures import message_figures
from actors.broker.metrics.request_figures import request_figures
from actors.broker.metrics.store_figures import store_figures
from actors.broker.parts import BrokerParts


def build_metrics(parts: BrokerParts) -> Capability:
    """Return a Capability without requests, which adds the figures to the broker's."""
    loop, tables, clock = parts.loop, parts.tables, parts.clock
    lags = Lags(loop.store, loop.reads, tables, parts.groups.progress, clock)
    return Capability(
        figures=(
            *message_figures(loop.stats, tables),
            *lag_figures(lags, tables, clock),
            *request_figures(loop),
            *connection_figures(parts.groups.clients),
            *store_figures(parts.settings, loop.store, loop.reads, clock),
        )
    )
