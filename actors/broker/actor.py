"""The broker as a Ray actor: each method runs its work on the broker's event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from actors.host import store_binding
from actors.host.node_address import located_settings
from actors.host.ray_port import append, control, own_node_ip, read
from actors.host.service_host import NotServing, Service
from actors.host.shell import ActorShell
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.compiling import compile_once

if TYPE_CHECKING:
    from actors.broker.handle_api import HandleApi
    from actors.broker.service import BrokerService

CALL_TIMEOUT_S = 30.0
"""Exceeds the longest wait of a request (`handle_api.MAX_WAIT_MS`, 20 s)."""


class Broker(ActorShell):
    """One broker. The methods of its handle take and return msgpack bytes (`actors.broker.handle_api`)."""

    def make_service(self) -> Service:
        """Create the broker's service from the settings in the actor's spec."""
        # Imported here: numba and the kernels take a second, which would delay the actor's constructor.
        import store.kernels  # noqa: F401 - fills an empty cache

        compile_once(self.note_progress)
        # After that, because importing these modules compiles the kernels that are not in the cache.
        from actors.broker.broker_settings import BrokerSettings
        from actors.broker.service import BrokerService
        from store.common.clock import SystemClock

        node_ip = own_node_ip()
        settings = BrokerSettings.model_validate(located_settings(self._spec["settings"], node_ip))
        if self._spec.get("slots"):
            store_binding.bind(
                str(self._spec["namespace"]), str(self._spec["name"]), node_ip, settings.store_root
            )
        service = BrokerService(
            settings, SystemClock(), self.service_failed, node_ip=node_ip, restart=self.restart_service
        )
        service.live.on_change(self.settings_changed)
        return service

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Change live settings. Raises ValueError if a changed setting needs a restart."""
        from actors.broker.broker_settings import BrokerSettings

        located = located_settings(settings, own_node_ip())
        self._broker.live.change(BrokerSettings.model_validate(located))

    def details(self) -> dict[str, Any]:
        """Return the fields of DESCRIBE_BROKER: names, addresses, store positions and counters."""
        return self._broker.describe()

    @control
    def raymq_announce(self) -> None:
        """Register with all nameservers; the driver calls this after it has created one."""
        self._host.call(self._broker.announce)

    @control
    def raymq_leave(self) -> None:
        """Hand over the leadership of its Raft group, if it leads; the driver calls this before a restart."""
        self._host.call_async(self._broker.leave, timeout_s=CALL_TIMEOUT_S)

    @control
    def raymq_drain(self, step: str) -> dict[str, Any]:
        """Start, close or cancel the drain of this broker, and return its progress.

        Args:
            step: "start", "close" or "cancel"; any other value only returns the progress.

        Returns:
            The drain state, the number of producers, and the unread messages of each consumer group
            (`BrokerDrain.progress`).
        """
        drain = cast("BrokerService", self._host.service).drain
        steps = {"start": drain.start, "close": drain.close, "cancel": drain.cancel}
        if step in steps:
            self._host.call(steps[step])
        return self._host.call_async(drain.progress, timeout_s=CALL_TIMEOUT_S)

    @append
    def append(self, request: bytes) -> bytes:
        """Append a batch of messages to one queue (see `HandleApi.append`)."""
        return self._respond(lambda: self._api.append(request))

    @read
    def read(self, request: bytes) -> bytes:
        """Read a queue from an offset on; wait for messages if the request has a `wait_ms`."""
        return self._respond(lambda: self._api.read(request))

    @control
    def offsets(self, request: bytes) -> bytes:
        """Return the min and max offset of each queue of a topic, and a group's committed offsets."""
        return self._respond(lambda: self._api.offsets(request))

    @control
    def describe(self, request: bytes = b"") -> bytes:
        """Return the fields of DESCRIBE_BROKER as msgpack: names, addresses, store positions, counters.

        With access control the request has keys.
        """
        return self._respond(lambda: self._api.describe(request))

    @property
    def _broker(self) -> BrokerService:
        return cast("BrokerService", self._host.service)

    @property
    def _api(self) -> HandleApi:
        return self._broker.handle

    def _respond(self, request: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Run a request on the service's loop; return SERVICE_NOT_AVAILABLE if the service is not serving."""
        from actors.broker.handle_api import refusal_reply

        try:
            return self._host.call_async(request, timeout_s=CALL_TIMEOUT_S)
        except (NotServing, TimeoutError) as error:
            return refusal_reply(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
