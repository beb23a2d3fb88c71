"""Builds the metrics of a broker that RocketMQ 5 has too, except those of the timer and of transactions."""

from __future__ import annotations

from actors.broker.core.capability import Capability
from actors.broker.core.parts import BrokerParts
from actors.broker.features.metrics.connection_figures import connection_figures
from actors.broker.features.metrics.lags import Lags, lag_figures
from actors.broker.features.metrics.message_figures import message_figures
from actors.broker.features.metrics.request_figures import request_figures
from actors.broker.features.metrics.store_figures import store_figures


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
