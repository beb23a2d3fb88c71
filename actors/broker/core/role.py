"""BrokerRole: the role of a broker in its group, and the services that run only in some roles.

    STOPPED ──start──> MASTER or SLAVE ──stop──> STOPPED
                             └──another process or replica has taken over──> FENCED ──stop──> STOPPED

A change of role first stops the services that the new role does not have, in reverse order of their start,
and then starts the services that it adds. The requests that a slave refuses are refused by one chain step
(`replication.slave_requests`); the broker id depends on the role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from actors.broker.broker_settings import SLAVE
from actors.supervisor import Supervisor
from store.common.logs import get_logger

_log = get_logger(__name__)


class Role(StrEnum):
    """The roles of a broker."""

    STOPPED = "stopped"
    MASTER = "master"
    SLAVE = SLAVE
    """The broker follows the master of its group: it copies the CommitLog and handles no writes."""
    FENCED = "fenced"
    """Another process has opened the store for writing, or another replica was promoted.

    Until it is stopped, the broker serves reads in the first case; in the second case only administrators,
    because the log of the new master may differ.
    """


@dataclass(frozen=True, slots=True)
class RoleService:
    """A service that runs while the broker has one of `roles`."""

    name: str
    roles: frozenset[Role]
    start: Callable[[], Awaitable[None]]
    stop: Callable[[], Awaitable[None]]
    needs_end: bool = True
    """False if a master starts it before the end of its log is known (`LogEnd`).

    Others may read the ends of queues, and find all messages before them.
    """


@dataclass(frozen=True, slots=True)
class PeriodicService(RoleService):
    """A service that calls `act` periodically."""

    act: Callable[[], Awaitable[None] | None] = field(kw_only=True)


class BrokerRole:
    """The role of one broker, and its services."""

    def __init__(
        self, services: Iterable[RoleService] = (), is_end_known: Callable[[], bool] = lambda: True
    ) -> None:
        """Create the object in role STOPPED; `services` are started in the given order."""
        self._is_end_known = is_end_known
        self.role = Role.STOPPED
        self.state_version = 0
        """RocketMQ's stateVersion: the setting `group_epoch`; of a replica of a Raft group, its term."""
        self._services = [*services]
        self._running: list[RoleService] = []
        self._change = asyncio.Lock()

    @property
    def services(self) -> Sequence[RoleService]:
        """The services, in the order in which they are started."""
        return tuple(self._services)

    def add_services(self, services: Iterable[RoleService]) -> None:
        """Add services after the present ones; to be called before the first change of the role."""
        self._services += services

    async def become(self, role: Role, state_version: int | None = None) -> None:
        """Change the role, after any change in progress. An exception of a service's `start` propagates.

        Without `state_version`, the present one remains.
        """
        async with self._change:
            if role is self.role:
                return
            if state_version is not None:
                self.state_version = state_version
            _log.info("role_changed", role=str(role), previous=str(self.role), epoch=self.state_version)
            self.role = role
            for service in reversed(self._running[:]):
                if role not in service.roles:
                    self._running.remove(service)
                    await service.stop()
            await self._start_services()

    async def start_waiting(self) -> None:
        """Start the services that wait for the end of the log, if it is known now."""
        async with self._change:
            await self._start_services()

    async def _start_services(self) -> None:
        for service in self._services:
            if self.role not in service.roles or service in self._running:
                continue
            if self.role is Role.MASTER and service.needs_end and not self._is_end_known():
                continue
            self._running.append(service)
            try:
                await service.start()
            except BaseException:
                self._running.remove(service)
                raise


def periodic(
    supervisor: Supervisor,
    name: str,
    roles: Iterable[Role],
    interval_ms: int | Callable[[], int],
    act: Callable[[], Awaitable[None] | None],
    *,
    needs_end: bool = True,
) -> PeriodicService:
    """Return a service that calls `act` every `interval_ms` while the broker has one of `roles`.

    If `interval_ms` is a function, it gives the time before each call.
    """
    tasks: list[asyncio.Task[None]] = []
    pause_ms = interval_ms if callable(interval_ms) else lambda: interval_ms

    async def start() -> None:
        tasks.append(supervisor.every(name, pause_ms, act))

    async def stop() -> None:
        # Wait for an action in progress: the next service may stop what it uses.
        task = tasks.pop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return PeriodicService(name, frozenset(roles), start, stop, needs_end, act=act)
