"""The broker as a Ray actor: lifetime and thread hand-over, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from actors.host.ray_port import append, control, read
from actors.host.service_host import NotServing, Service
from actors.host.shell import ActorShell
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused

if TYPE_CHECKING:
    from actors.broker.handle_api import HandleApi
    from actors.broker.service import BrokerService

CALL_TIMEOUT_S = 30.0
"""Longer than any wait that a request may ask for (20 s)."""


class Broker(ActorShell):
    """One broker. The methods of its handle take and give msgpack bytes; see `actors.broker.handle_api`."""

    def make_service(self) -> Service:
        """The broker's service, with the settings of its spec."""
        # Here and not above: numba and the kernels take a second, which the constructor should not.
        from actors.broker.broker_settings import BrokerSettings
        from actors.broker.service import BrokerService
        from store.clock import SystemClock

        settings = BrokerSettings.model_validate(self._spec["settings"])
        service = BrokerService(settings, SystemClock(), self.service_failed)
        service.live.on_change(self.settings_changed)
        return service

    def change_settings(self, settings: Mapping[str, Any]) -> None:
        """Take over settings that are live. Raises ValueError."""
        from actors.broker.broker_settings import BrokerSettings

        self._broker.live.change(BrokerSettings.model_validate(settings))

    def details(self) -> dict[str, Any]:
        """What the broker says of itself and its store."""
        return self._broker.describe()

    @control
    def raymq_announce(self) -> None:
        """Register with all nameservers: the driver has made a new one."""
        self._host.call(self._broker.announce)

    @control
    def raymq_drain(self, step: str) -> dict[str, Any]:
        """Drain the broker: "start", "close" or "cancel"; "look" only reports.

        Returns what consumer groups and producers still need of this broker (`actors.broker.drain`).
        """
        drain = cast("BrokerService", self._host.service).drain
        steps = {"start": drain.start, "close": drain.close, "cancel": drain.cancel}
        if step in steps:
            self._host.call(steps[step])
        return self._host.call_async(drain.progress, timeout_s=CALL_TIMEOUT_S)

    @append
    def append(self, request: bytes) -> bytes:
        """Store a batch of messages of one topic."""
        return self._answer(lambda: self._api.append(request))

    @read
    def read(self, request: bytes) -> bytes:
        """Read a queue from an offset on, waiting for messages if the request says so."""
        return self._answer(lambda: self._api.read(request))

    @control
    def offsets(self, request: bytes) -> bytes:
        """The ends of a topic's queues, and what a group has committed."""
        return self._answer(lambda: self._api.offsets(request))

    @control
    def describe(self) -> bytes:
        """Who and where the broker is, and how far its store has come."""
        return self._answer(lambda: self._api.describe())

    @property
    def _broker(self) -> BrokerService:
        return cast("BrokerService", self._host.service)

    @property
    def _api(self) -> HandleApi:
        return self._broker.handle

    def _answer(self, request: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Run a request on the service's loop; that it is not up is an answer, not an exception."""
        from actors.broker.handle_api import refusal

        try:
            return self._host.call_async(request, timeout_s=CALL_TIMEOUT_S)
        except (NotServing, TimeoutError) as error:
            return refusal(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
