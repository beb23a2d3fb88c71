"""Ray actor that runs a gateway service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from actors.gateway.service import GatewayService


class Gateway(ActorShell):
    """Ray actor of one gateway."""

    def make_service(self) -> Service:
        """Create the gateway service with the settings in the actor's spec."""
        from actors.gateway.gateway_settings import GatewaySettings
        from actors.gateway.service import GatewayService
        from store.common.clock import SystemClock

        settings = GatewaySettings.model_validate(self._spec["settings"])
        return GatewayService(settings, SystemClock(), self.service_failed)

    def details(self) -> dict[str, Any]:
        """Return the values of the gateway's figures."""
        return self._service.describe()

    @property
    def _service(self) -> GatewayService:
        return cast("GatewayService", self._host.service)
