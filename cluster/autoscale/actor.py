"""The autoscaler as a detached Ray actor on the head node. `raymq up` creates it, `raymq down` stops it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from actors.host.ray_port import control
from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from cluster.autoscale.controller import Controller
    from cluster.autoscale.service import AutoscalerService

CALL_TIMEOUT_S = 60.0
"""Exceeds the duration of a tick in which several brokers do not respond."""


class Autoscaler(ActorShell):
    """The actor of a cluster's autoscaler."""

    def make_service(self) -> Service:
        """Create the service from the settings in the actor's spec."""
        from cluster.autoscale.autoscaler_settings import AutoscalerSettings
        from cluster.autoscale.service import AutoscalerService

        given = self._spec["settings"]
        settings = AutoscalerSettings.model_validate(
            {key: value for key, value in given.items() if key in AutoscalerSettings.model_fields}
        )

        def make_controller() -> Controller:
            from cluster.autoscale.controller import Controller, FleetLimits
            from cluster.autoscale.elastic_fleet import ElasticFleet
            from cluster.control.topology.topology import Topology

            topology = Topology.model_validate(given["topology"])
            limits = FleetLimits(settings.drain_timeout_s, settings.ignore_offline_groups, settings.dry_run)
            export_to = None if settings.export_to is None else Path(settings.export_to)
            fleet = ElasticFleet(topology, Path(given["home"]), export_to)
            return Controller(settings.rules, limits, fleet, time.monotonic)

        return AutoscalerService(make_controller, settings, Path(given["data_dir"]), self.service_failed)

    @control
    def autoscale_status(self) -> dict[str, Any]:
        """Return the target, the last decision with its figures, the brokers and recent events."""
        return self._host.call_async(self._service.status, timeout_s=CALL_TIMEOUT_S)

    @control
    def autoscale_pause(self) -> None:
        """Stop adding and removing brokers, also after a restart of this actor."""
        self._host.call_async(lambda: self._service.set_paused(paused=True), timeout_s=CALL_TIMEOUT_S)

    @control
    def autoscale_resume(self) -> None:
        """Add and remove brokers again."""
        self._host.call_async(lambda: self._service.set_paused(paused=False), timeout_s=CALL_TIMEOUT_S)

    @property
    def _service(self) -> AutoscalerService:
        return cast("AutoscalerService", self._host.service)
