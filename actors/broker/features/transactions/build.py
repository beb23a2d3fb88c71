"""Builds the transactions of a broker: half messages, END_TRANSACTION and the checks of open transactions."""

from __future__ import annotations

from actors.broker.core.capability import Capability
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.features.transactions.checks import TransactionChecks
from actors.broker.features.transactions.end_transaction import EndTransaction
from actors.broker.features.transactions.half_messages import HalfMessages
from actors.broker.features.transactions.op_messages import OpWriter
from actors.broker.features.transactions.transaction_counts import TransactionCounts
from actors.broker.features.transactions.transaction_log import TransactionLog
from actors.host.figures import Figure, Kind

SAVE_PROGRESS_MS = 1000


def build_transactions(parts: BrokerParts) -> Capability:
    """Build the open transactions of a broker."""
    settings, clock, supervisor = parts.settings, parts.clock, parts.supervisor
    loop, topics = parts.loop, parts.tables.topics
    store, reads = loop.store, loop.reads
    ops = OpWriter(store, loop.acks, clock, parts.identity.host.packed, loop.server.request_tick)
    log = TransactionLog(store, reads, topics, parts.tables.offsets, ops)
    checks = TransactionChecks(settings, store, log, topics, parts.groups.clients, clock)
    counts, may_send = TransactionCounts(clock, topics, log), parts.access.may_send
    end = EndTransaction(store, reads, log, topics, loop.acks, loop.stats, may_send, counts)
    master, check_ms = frozenset({Role.MASTER}), settings.transaction_check_interval_ms
    return Capability(
        rows=tuple(end.rows()),
        interceptors=(HalfMessages(parts.properties),),
        services=(
            RoleService("transactions", master, log.load, log.stop),
            periodic(supervisor, "transaction-progress", master, SAVE_PROGRESS_MS, log.save_progress),
            periodic(supervisor, "transaction-checks", master, check_ms, checks.check),
        ),
        figures=(
            *counts.figures(),
            Figure(
                "open_transactions",
                Kind.GAUGE,
                "",
                loop.log_end.known(lambda: log.open_count),
                "Transactions without a decision.",
                runtime_names=("openTransactions",),
                metric="raymq_open_transactions",
            ),
            Figure(
                "transactions_discarded",
                Kind.COUNTER,
                "",
                lambda: checks.discarded,
                "Transactions without a decision after the last check.",
                metric="raymq_transactions_discarded_total",
            ),
        ),
    )
