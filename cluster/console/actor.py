"""Ray actor that runs the web console of a cluster."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from cluster.console.service import ConsoleService


class Console(ActorShell):
    """Ray actor of one console."""

    def make_service(self) -> Service:
        """Create the console with the settings in the actor's spec."""
        from cluster.console.console_settings import ConsoleSettings
        from cluster.console.service import ConsoleService
        from cluster.control.lake_rows import lake_rows
        from store.common.clock import SystemClock

        settings = ConsoleSettings.model_validate(self._spec["settings"])
        return ConsoleService(settings, SystemClock(), partial(lake_rows, self._spec["namespace"]))

    def details(self) -> dict[str, Any]:
        """Return the address of the console."""
        return {"url": self._service.address}

    @property
    def _service(self) -> ConsoleService:
        return cast("ConsoleService", self._host.service)
