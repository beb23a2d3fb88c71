"""The process of a lake as a detached Ray actor: it copies topics into Iceberg tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from jobs.lake_service.service import LakeService


class Lake(ActorShell):
    """The actor of one lake."""

    def make_service(self) -> Service:
        """Create the service from the settings in the actor's spec."""
        from cluster.client.config import CREDENTIALS_ENV
        from jobs.lake_service.engines import engine_of
        from jobs.lake_service.lake_rounds import LakeRounds
        from jobs.lake_service.process_settings import LakeProcessSettings
        from jobs.lake_service.service import LakeService
        from store.common.clock import SystemClock

        settings, clock = LakeProcessSettings.model_validate(self._spec["settings"]), SystemClock()
        if settings.credentials_file is not None:
            # The readers of splits take it from there.
            os.environ[CREDENTIALS_ENV] = str(settings.credentials_file)
        rounds = LakeRounds(settings, lambda: engine_of(settings), clock)
        return LakeService(settings, rounds, str(self._spec["name"]), clock, self.service_failed)

    def details(self) -> dict[str, Any]:
        """Return what is known about each table."""
        return self._service.details()

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuse changes: `raymq up` restarts the actor for them."""
        raise ValueError("a change of the settings of a lake needs a restart")

    @property
    def _service(self) -> LakeService:
        return cast("LakeService", self._host.service)
