"""Builds the replication of tables through the log of a Raft group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService, periodic
from actors.broker.core.table_names import GROUP, TIMER, TOPIC
from actors.broker.replication.raft.group_tables import GroupTables
from actors.broker.replication.raft.meta_log import MetaLog
from actors.broker.replication.tables.table_entries import TimerEntries
from actors.broker.replication.tables.table_specs import entries_of
from store.timer.timer_files import follow_timer

LOG_PROGRESS_MS = 1_000


class GroupServices:
    """The services that follow the role of a replica, and whether those of a leader have all started."""

    def __init__(self, parts: BrokerParts, timer: TimerEntries) -> None:
        self._root = parts.settings.store_root
        self._role = parts.role
        self._timer = timer
        self._have_started = False

    def have_started(self, term: int) -> bool:
        """Return True if the services of the leader of `term` have started."""
        return self._have_started and self._role.state_version == term

    def before(self) -> RoleService:
        """Return the service that is started before all others."""
        return RoleService("raft-progress", frozenset({Role.MASTER}), self._follow_timer, _nothing)

    def after(self) -> RoleService:
        """Return the service that is started after all others, and stopped before them."""
        return RoleService("raft-services", frozenset({Role.MASTER}), self._started, self._stop)

    async def _follow_timer(self) -> None:
        if self._timer.followed is not None:
            await asyncio.to_thread(follow_timer, self._root, self._timer.followed)

    async def _started(self) -> None:
        self._timer.followed = None
        self._have_started = True

    async def _stop(self) -> None:
        self._have_started = False


def build_meta(
    parts: BrokerParts, confirmed: GroupTables, leads: Callable[[], bool]
) -> tuple[MetaLog, GroupServices, Sequence[RoleService]]:
    """Build the replication of the tables, and its services."""
    kinds = entries_of(parts.specs.values(), parts)
    timer = kinds[TIMER]
    assert isinstance(timer, TimerEntries)
    meta = MetaLog(parts.loop.store, confirmed, kinds, leads, parts.specs)
    parts.tables.subscribe(lambda name: meta.changed(TOPIC, name), lambda name: meta.changed(GROUP, name))

    async def turn() -> None:
        await meta.turn()
        if parts.access.control is not None:
            await parts.access.control.file.save()
        parts.loop.server.request_tick()

    both = frozenset({Role.MASTER, Role.SLAVE})
    services = GroupServices(parts, timer)
    return meta, services, (periodic(parts.supervisor, "raft-tables", both, LOG_PROGRESS_MS, turn),)


async def _nothing() -> None:
    """Do nothing."""
