"""Builds the transactions of a broker: half messages, END_TRANSACTION and the checks of open transactions."""

from __future__ import annotations

from actors.broker.auth.access import BrokerAccess
from actors.broker.broker_settings import BrokerSettings
from actors.broker.build_loop import BrokerLoop
from actors.broker.capability import Capability
from actors.broker.group.clients import Clients
from actors.broker.identity import BrokerIdentity
from actors.broker.metadata.tables import BrokerTables
from actors.broker.role import Role, RoleService, periodic
from actors.broker.sending.stored_properties import PropertyWriter
from actors.broker.transactions.checks import TransactionChecks
from actors.broker.transactions.end_transaction import EndTransaction
from actors.broker.transactions.half_messages import HalfMessages
from actors.broker.transactions.op_messages import OpWriter
from actors.broker.transactions.transaction_counts import TransactionCounts
from actors.broker.transactions.transaction_log import TransactionLog
from actors.host.figures import Figure, Kind
from actors.remoting.connection import Connection
from actors.supervisor import Supervisor
from store.clock import Clock

SAVE_PROGRESS_MS = 1000


def build_transactions(
    settings: BrokerSettings,
    clock: Clock,
    identity: BrokerIdentity,
    loop: BrokerLoop,
    tables: BrokerTables,
    clients: Clients[Connection],
    properties: PropertyWriter,
    access: BrokerAccess,
    supervisor: Supervisor,
) -> tuple[TransactionLog, Capability]:
    """Build the open transactions of a broker.

    Args:
        clients: the producers that the broker can send CHECK_TRANSACTION_STATE to.
        properties: adds the broker's properties to a half message.
        access: decides whether a user may commit to the real topic.
    """
    store, reads, topics = loop.store, loop.reads, tables.topics
    ops = OpWriter(store, loop.acks, clock, identity.host.packed, loop.server.request_tick)
    log = TransactionLog(store, reads, topics, tables.offsets, ops)
    checks = TransactionChecks(settings, store, log, topics, clients, clock)
    counts = TransactionCounts(clock, topics)
    end = EndTransaction(store, reads, log, topics, loop.acks, loop.stats, access.may_send, counts)
    master, check_ms = frozenset({Role.MASTER}), settings.transaction_check_interval_ms
    return log, Capability(
        rows=tuple(end.rows()),
        interceptors=(HalfMessages(properties),),
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
                lambda: log.open_count,
                "Transactions without a decision.",
                runtime_names=("openTransactions",),
                metric="raymq_open_transactions",
            ),
        ),
    )
