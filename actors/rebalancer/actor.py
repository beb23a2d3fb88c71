"""Ray actor that runs a rebalancer service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from actors.rebalancer.service import RebalancerService


class Rebalancer(ActorShell):
    """Ray actor of one rebalancer."""

    def make_service(self) -> Service:
        """Create the rebalancer service with the settings in the actor's spec."""
        from actors.rebalancer.rebalancer_settings import RebalancerSettings
        from actors.rebalancer.service import build_rebalancer
        from store.common.clock import SystemClock

        settings = RebalancerSettings.model_validate(self._spec["settings"])
        return build_rebalancer(settings, SystemClock(), self.service_failed)

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Apply settings that can change at run time. Raises ValueError if a setting requires a restart."""
        from actors.rebalancer.rebalancer_settings import RebalancerSettings

        self._service.live.change(RebalancerSettings.model_validate(settings))

    def details(self) -> dict[str, Any]:
        """Return the values of the rebalancer's figures."""
        return self._service.describe()

    @property
    def _service(self) -> RebalancerService:
        return cast("RebalancerService", self._host.service)
