"""Ray actor that runs the web console of a cluster."""

from __future__ import annotations

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
        from store.common.clock import SystemClock

        return ConsoleService(ConsoleSettings.model_validate(self._spec["settings"]), SystemClock())

    def details(self) -> dict[str, Any]:
        """Return the address of the console."""
        return {"url": self._service.address}

    @property
    def _service(self) -> ConsoleService:
        return cast("ConsoleService", self._host.service)
