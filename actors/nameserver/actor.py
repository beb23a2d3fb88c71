"""The nameserver as a Ray actor: each method runs its work on the nameserver's event loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from actors.host.ray_port import control
from actors.host.service_host import Service
from actors.host.shell import ActorShell

if TYPE_CHECKING:
    from actors.nameserver.service import NameserverService


class Nameserver(ActorShell):
    """The actor of one nameserver."""

    def make_service(self) -> Service:
        """Create the nameserver's service from the settings in the actor's spec."""
        from actors.nameserver.nameserver_settings import NameserverSettings
        from actors.nameserver.service import build_nameserver
        from store.common.clock import SystemClock

        settings = NameserverSettings.model_validate(self._spec["settings"])
        service = build_nameserver(settings, SystemClock(), self.service_failed)
        service.live.on_change(self.settings_changed)
        return service

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change live settings. Raises ValueError if a changed setting needs a restart."""
        from actors.nameserver.nameserver_settings import NameserverSettings

        self._service.live.change(NameserverSettings.model_validate(settings))

    def details(self) -> dict[str, Any]:
        """Return the values of the nameserver's figures."""
        return self._service.describe()

    @control
    def route(self, topic: str) -> bytes | None:
        """Return RocketMQ's TopicRouteData of a topic as JSON (as request 105); None for an unknown topic."""
        return self._host.call(lambda: self._service.routes.encoded_route(topic, None))

    @property
    def _service(self) -> NameserverService:
        return cast("NameserverService", self._host.service)
